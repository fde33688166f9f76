//! Discrete-event simulation of a schedule on a cluster: the time that the very plan that is executed would
//! take.
//!
//! [`simulate`] runs every step of every rank over the links of a [`Cluster`], in the order that the schedule
//! demands and in the way in which the executor and a transport carry it out ([`Costs`]). It returns an
//! [`Outcome`]: the makespan, the start, end and cause of delay of each step, and the traffic of every link.
//! [`critical_path`] lists the steps that determined the makespan, [`bounds`] computes lower bounds for any
//! plan, and [`svg()`] and [`trace()`] draw the outcome.
//!
//! ```text
//! program   the schedule, flattened; streams of messages
//! machine   progress of steps: their turns and the conditions they wait for
//! network   streams that share links
//! event     the queue of future events
//! ```
//!
//! The simulation is a function of its arguments: equal arguments give bitwise equal results. It knows
//! nothing of data, and does not check that the schedule is right; a schedule that hangs is an error that
//! names a step. `docs/simulation.md` lists what the model leaves out.

pub mod bounds;
mod costs;
mod critical;
mod event;
mod machine;
mod network;
pub mod peers;
mod program;
mod report;
mod svg;
#[cfg(test)]
mod tests;
mod trace;

pub use costs::Costs;
pub use critical::{PathStep, critical_path};
pub use network::LinkUse;
pub use report::{bus_bandwidth, report};
pub use svg::svg;
pub use trace::trace;

use crate::{BlockLayout, Schedule};
use machine::{Machine, Run};
use network::Network;
use program::{NONE, Program};
use thiserror::Error;
use topology::{Cluster, Rank};

/// The reason why a step began no earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartReason {
    /// None: the call began.
    #[default]
    Start,
    /// An earlier step of the same rank that the step comes after.
    Dependency,
    /// The previous message of its stream.
    Fifo,
    /// Another step that occupied the rank's processor.
    Rank,
    /// A message in flight.
    Message,
    /// The receiver had not granted its memory.
    Grant,
    /// The sender had no credit.
    Credit,
}

/// The times of a step, in seconds from the beginning of the call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Time when the steps that it comes after were complete.
    pub ready: f64,
    /// Time when it began; for a receive, when its message began.
    pub begin: f64,
    /// Time when it was complete.
    pub end: f64,
    /// For a send, the seconds in which its message occupied links.
    pub wire: f32,
    /// The reason why it began no earlier.
    pub reason: StartReason,
    /// The step that delayed it, by its number among the steps of all ranks.
    cause: u32,
}

impl Default for Timing {
    fn default() -> Timing {
        let never = f64::NAN;
        Timing { ready: never, begin: never, end: never, wire: 0.0, reason: StartReason::Start, cause: NONE }
    }
}

/// The result of a simulation.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Seconds from the beginning of the call to the end of its last step.
    pub makespan: f64,
    /// The traffic of every link, by its number in [`Cluster::links`].
    pub links: Vec<LinkUse>,
    /// Events that were simulated.
    pub events: u64,
    /// Times of every step, rank after rank.
    timings: Vec<Timing>,
    /// The first step of each rank; one entry more than ranks.
    bases: Vec<u32>,
}

impl Outcome {
    /// Returns the times of a rank's steps.
    #[must_use]
    pub fn timings(&self, rank: Rank) -> &[Timing] {
        &self.timings[self.bases[rank.index()] as usize..self.bases[rank.index() + 1] as usize]
    }

    /// Returns the rank of a step, and its number there.
    fn place(&self, step: u32) -> (Rank, u32) {
        let rank = self.bases.partition_point(|base| *base <= step) - 1;
        (Rank(rank as u32), step - self.bases[rank])
    }
}

/// The error of a simulation without an outcome.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// More ranks than the cluster has.
    #[error("the plan is for {ranks} ranks and the cluster has {room}; choose a larger cluster")]
    TooManyRanks {
        /// The plan's ranks.
        ranks: u32,
        /// The cluster's ranks.
        room: u32,
    },
    /// A message between ranks that nothing connects.
    #[error(
        "rank {from} sends to rank {to}, and nothing connects them; choose a plan between neighbours, or \
         more cables"
    )]
    NoRoute {
        /// The sending rank.
        from: Rank,
        /// The receiving rank.
        to: Rank,
    },
    /// A message without its other end.
    #[error("step {} of rank {} has no partner of the same length", at.1, at.0)]
    Unmatched {
        /// The rank and the number of a step of the stream.
        at: (Rank, u32),
    },
    /// The plan hangs.
    #[error("step {} of rank {} would never be complete: the plan hangs", at.1, at.0)]
    Hangs {
        /// The rank and the number of the first such step.
        at: (Rank, u32),
    },
}

/// Simulates a call of a schedule whose blocks have the layout `layout`, of elements of `elem_size` bytes.
///
/// # Errors
/// [`SimulationError::TooManyRanks`] when the cluster has too few ranks, [`SimulationError::NoRoute`] for a
/// message between ranks that nothing connects, [`SimulationError::Unmatched`] and [`SimulationError::Hangs`]
/// for a schedule that cannot run.
pub fn simulate(
    schedule: &Schedule,
    layout: &BlockLayout,
    elem_size: usize,
    cluster: &Cluster,
    costs: &Costs,
) -> Result<Outcome, SimulationError> {
    let (ranks, room) = (schedule.ranks(), cluster.ranks());
    if ranks > room {
        return Err(SimulationError::TooManyRanks { ranks, room });
    }
    let program = Program::new(schedule, layout, elem_size, cluster)?;
    let Run { timings, network, makespan, events, stuck } =
        Machine::new(&program, costs, Network::new(cluster)).run();
    if let Some(step) = stuck {
        return Err(SimulationError::Hangs { at: program.place(step) });
    }
    Ok(Outcome { makespan, links: network.used(), events, timings, bases: program.bases })
}
