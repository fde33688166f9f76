//! How long a schedule would take on a cluster: a discrete-event simulation of the very object that is executed.
//!
//! [`simulate`] runs every step of every rank over the links of a [`Cluster`], in the order that the schedule demands and in
//! the way in which the executor and a transport carry it out ([`Costs`]). It returns an [`Outcome`]: the makespan, when
//! each step began and ended and what it waited for, and what every link has carried. [`critical_path`] tells which
//! steps made the makespan, [`bounds`] how fast any plan could be, [`svg()`] and [`trace()`] draw it.
//!
//! ```text
//! program   the schedule, flattened; streams of messages
//! machine   steps: whose turn it is, what waits for what
//! network   streams that share links
//! event     the queue of what happens next
//! ```
//!
//! The simulation is a function of its arguments: equal arguments give equal results to the bit. It knows nothing of data,
//! and does not ask whether the schedule is right; one that hangs is an error that names a step. `docs/simulation.md` tells what
//! the model leaves out.

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
pub use critical::{Moment, critical_path};
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

/// Why a step began no earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Why {
    /// Nothing kept it: the call began.
    #[default]
    Start,
    /// Another step of its rank, which it comes after.
    Dependency,
    /// The message before it in its stream.
    Fifo,
    /// Its rank was busy with another step.
    Rank,
    /// A message that was on its way.
    Message,
    /// Its receiver had not said where it goes.
    Grant,
    /// There was no room at its receiver.
    Credit,
}

/// When a step was carried out, in seconds from the beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// When the steps that it comes after were complete.
    pub ready: f64,
    /// When it began: of a receive, when its message did.
    pub begin: f64,
    /// When it was complete.
    pub end: f64,
    /// Of a send, the seconds in which its message occupied links.
    pub wire: f32,
    /// Why it began no earlier.
    pub why: Why,
    /// The step that kept it, by its number among those of all ranks.
    cause: u32,
}

impl Default for Timing {
    fn default() -> Timing {
        let never = f64::NAN;
        Timing { ready: never, begin: never, end: never, wire: 0.0, why: Why::Start, cause: NONE }
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
    /// When every step was carried out, rank after rank.
    timings: Vec<Timing>,
    /// The first step of each rank; one entry more than ranks.
    bases: Vec<u32>,
}

impl Outcome {
    /// When the steps of a rank were carried out.
    #[must_use]
    pub fn timings(&self, rank: Rank) -> &[Timing] {
        &self.timings[self.bases[rank.index()] as usize..self.bases[rank.index() + 1] as usize]
    }

    /// The rank of a step, and its number there.
    fn place(&self, step: u32) -> (Rank, u32) {
        let rank = self.bases.partition_point(|base| *base <= step) - 1;
        (Rank(rank as u32), step - self.bases[rank])
    }
}

/// Why there is no outcome.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// More ranks than the cluster has.
    #[error("the plan is for {ranks} ranks and the cluster has {room}; choose a larger cluster")]
    TooManyRanks {
        /// The plan's ranks.
        ranks: u32,
        /// The cluster's.
        room: u32,
    },
    /// A message between ranks that nothing connects.
    #[error(
        "rank {from} sends to rank {to}, and nothing connects them; choose a plan between neighbours, or more cables"
    )]
    NoWay {
        /// The sending rank.
        from: Rank,
        /// To whom.
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

/// Simulates a call of a schedule whose blocks have this layout of elements of `elem_size` bytes.
///
/// # Errors
/// [`SimulationError`] when the cluster has no room or no way for it, or when it can't run.
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
