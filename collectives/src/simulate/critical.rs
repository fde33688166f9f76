//! The critical path: the steps that determined the makespan, and the cause of each step's delay.
//!
//! The path is walked backwards from the step that ended last: from each step to the one that delayed it, as
//! the simulation recorded. A receive whose message was in flight leads to the send.

use super::{Outcome, StartReason, Timing, program::NONE};
use topology::Rank;

/// A step of the critical path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathStep {
    /// The rank of the step.
    pub rank: Rank,
    /// Its number among the steps of its rank.
    pub step: u32,
    /// Time when it could have begun without the delay that `reason` names.
    pub ready: f64,
    /// Time when it began, in seconds from the beginning of the call.
    pub begin: f64,
    /// Time when it was complete.
    pub end: f64,
    /// The cause of the delay.
    pub reason: StartReason,
    /// For a send, the seconds in which its message occupied links.
    pub wire: f64,
}

/// Returns the critical path, from its first step to its last.
#[must_use]
pub fn critical_path(outcome: &Outcome) -> Vec<PathStep> {
    // If several steps end last, the path ends with the latest step of the first such rank.
    let place = |step: &u32| (outcome.place(*step).0, std::cmp::Reverse(*step));
    let last = (0..outcome.timings.len() as u32)
        .filter(|step| outcome.timings[*step as usize].end == outcome.makespan);
    let last = last.min_by_key(place);
    let mut path = Vec::new();
    let mut next = last;
    // Causes are earlier steps or other steps of the same time. No step is visited twice.
    while let Some(step) = next.filter(|_| path.len() < outcome.timings.len()) {
        let (rank, number) = outcome.place(step);
        let Timing { ready, begin, end, reason, wire, cause } = outcome.timings[step as usize];
        path.push(PathStep { rank, step: number, ready, begin, end, reason, wire: f64::from(wire) });
        next = (cause != NONE && cause != step).then_some(cause);
    }
    path.reverse();
    path
}
