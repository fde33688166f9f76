//! Which steps made the makespan, and what each of them waited for.
//!
//! The path is walked backwards from the step that ended last: from each step to the one that kept it from beginning
//! earlier, as the simulation noted. A receive whose message was on its way leads to the send.

use super::{Outcome, Timing, Why, program::NONE};
use topology::Rank;

/// A step on the critical path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment {
    /// The rank of the step.
    pub rank: Rank,
    /// Its number among the steps of its rank.
    pub step: u32,
    /// When it could have begun but for what `why` says.
    pub ready: f64,
    /// When it began, in seconds from the beginning of the call.
    pub begin: f64,
    /// When it was complete, likewise.
    pub end: f64,
    /// The cause of the delay.
    pub why: Why,
    /// Of a send, the seconds in which its message occupied links.
    pub wire: f64,
}

/// The steps that made the makespan, from the first to the last.
#[must_use]
pub fn critical_path(outcome: &Outcome) -> Vec<Moment> {
    // Of several that end last, the latest of the first rank that has one.
    let place = |step: &u32| (outcome.place(*step).0, std::cmp::Reverse(*step));
    let last = (0..outcome.timings.len() as u32)
        .filter(|step| outcome.timings[*step as usize].end == outcome.makespan);
    let last = last.min_by_key(place);
    let mut path = Vec::new();
    let mut next = last;
    // Causes lie earlier, or are other steps of the same moment; a step is met once.
    while let Some(step) = next.filter(|_| path.len() < outcome.timings.len()) {
        let (rank, number) = outcome.place(step);
        let Timing { ready, begin, end, why, wire, cause } = outcome.timings[step as usize];
        path.push(Moment { rank, step: number, ready, begin, end, why, wire: f64::from(wire) });
        next = (cause != NONE && cause != step).then_some(cause);
    }
    path.reverse();
    path
}
