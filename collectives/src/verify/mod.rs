//! Verification: proves from the schedule alone that a schedule is right.
//!
//! The checks run in an order in which each may rely on those before. Every step is well-formed by itself.
//! Every send meets a receive of the same length. No steps wait for each other in a cycle, with a given
//! number of credits. No two steps of a rank touch the same memory in no defined order. Every rank's result
//! is the one that the collective promises, which symbolic execution shows. Since there are no races, one
//! order stands for all. A send that follows a receive gives the same result as one that waits for it
//! (`follows`).
//!
//! A schedule that is safe with zero credits is safe with any number of credits.
//!
//! The verifier does not check that a schedule is fast, nor that all of its dependencies are needed.

mod device;
mod fabric;
mod fault;
mod follows;
mod outcome;
mod races;
pub(crate) mod structure;

pub use device::{DeviceRules, verify_on_device};
pub use fault::{Fault, LocatedStep};

use crate::analysis::{Cycle, Flow, Matching, Mismatch};
use crate::numerics::Numerics;
use crate::schedule::StepId;
use crate::schedule::{Action, Schedule};
use outcome::Outcome;
use std::fmt;

/// How many messages of a lane may wait at the receiver: the sends that can complete before their receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Credits(pub u32);

/// The properties of a schedule that is right.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// Steps of all ranks.
    pub steps: u64,
    /// Messages between all ranks.
    pub messages: u64,
    /// Chunks in those messages.
    pub chunks_sent: u64,
    /// The most that one rank sends, in blocks.
    pub blocks_sent_per_rank: f64,
    /// The most messages of one lane and direction that a rank may have under way at a time.
    pub max_in_flight: u32,
    /// Steps of the longest chain in which each step waits for the one before. A message counts once, and so
    /// do those before it in its FIFO. This is not the number of latencies that a call takes.
    pub stages: u32,
    /// The strongest guarantee about the order in which contributions are combined that the schedule gives.
    pub numerics: Numerics,
    /// The most times that a contribution to a result is packed on its way, alone or as part of a sum. The
    /// error of a quantized result depends on it, see [`Codec::error_bound`](crate::Codec::error_bound).
    pub encodings: u32,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { steps, messages, stages, max_in_flight, .. } = self;
        let sent = self.blocks_sent_per_rank;
        write!(f, "{steps} steps, {messages} messages, {stages} stages, ")?;
        write!(f, "up to {max_in_flight} in flight per lane, up to {sent:.2} blocks sent per rank")?;
        if self.encodings > 0 { write!(f, ", packed up to {} times", self.encodings) } else { Ok(()) }
    }
}

/// Checks everything that does not depend on sizes.
///
/// # Errors
/// The first [`Fault`] of the plan.
pub fn verify(schedule: &Schedule, credits: Credits) -> Result<Report, Fault> {
    structure::check(schedule)?;
    let at = |id: StepId| LocatedStep::new(schedule, id.rank, id.step);
    let matching = Matching::new(schedule).map_err(|mismatch| match mismatch {
        Mismatch::Alone(id) => {
            let at = at(id);
            let peer = at.step.action.message().map_or(at.rank, |(peer, _)| peer);
            Fault::Unmatched { at, peer }
        }
        Mismatch::Unequal { send, recv } => Fault::Unequal { send: at(send), recv: at(recv) },
    })?;
    let flow = Flow::new(schedule, &matching, credits.0).map_err(|Cycle(chain)| Fault::Deadlock {
        credits: credits.0,
        chain: chain.into_iter().map(at).collect(),
    })?;
    let max_in_flight = races::check(schedule, &matching)?;
    let outcome = outcome::check(schedule, &matching, &flow)?;
    Ok(report(schedule, &flow, max_in_flight, outcome))
}

fn report(schedule: &Schedule, flow: &Flow, max_in_flight: u32, outcome: Outcome) -> Report {
    let sends = schedule.programs.iter().map(|program| {
        let lens = program.steps.iter().filter_map(|step| match step.action {
            Action::Send { src, .. } => Some(u64::from(src.len)),
            _ => None,
        });
        lens.fold((0, 0), |(messages, chunks), len| (messages + 1, chunks + len))
    });
    let sends: Vec<(u64, u64)> = sends.collect();
    let most = sends.iter().map(|(_, chunks)| *chunks).max().unwrap_or(0);
    Report {
        steps: flow.order.len() as u64,
        messages: sends.iter().map(|(messages, _)| messages).sum(),
        chunks_sent: sends.iter().map(|(_, chunks)| chunks).sum(),
        blocks_sent_per_rank: most as f64 / f64::from(schedule.chunks),
        max_in_flight,
        stages: flow.stages.iter().map(|stage| stage + 1).max().unwrap_or(0),
        numerics: outcome.numerics,
        encodings: outcome.encodings,
    }
}
