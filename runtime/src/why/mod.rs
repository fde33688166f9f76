//! The wait-for picture of a job: who waits for whom, and why.
//!
//! [`Report::new`] takes the statuses of the ranks, as `bootstrap` has collected them, and finds the *knot*:
//! a process that is stopped, a rank that has not made a call, ranks that wait for each other, a message that
//! does not arrive. It neither asks nor waits.
//!
//! | module | purpose |
//! |---|---|
//! | `status` | the status of a process |
//! | `graph` | ranks, communicators and waits, merged from all statuses |
//! | `cause` | the cause of the waits |
//! | `knot` | the cause in one sentence |
//! | `paused` | processes that did not run for a while, in that sentence |
//! | `words` | times, lists and numbers in words |
//! | `table` | a table of all ranks |

mod cause;
mod graph;
mod knot;
mod paused;
mod status;
mod table;
#[cfg(test)]
mod tests;
mod words;

pub use knot::{Knot, KnotKind};
pub use status::{
    CallStatus, CommunicatorStatus, JoinStatus, Kind, PastCall, PauseStatus, ProcessStatus, RailStatus, Wait,
};
pub use table::{CommunicatorRow, RankRow};

use bootstrap::{ProcessState, Snapshot};
use graph::Graph;
use serde::Serialize;
use std::fmt;

/// Activities of the ranks of a job, and the knot. Its text is the sentence, and a table of the ranks.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The cause of the hang.
    pub knot: Knot,
    /// The communicators of the job, by number.
    pub communicators: Vec<CommunicatorRow>,
    /// The ranks of the job, and each call in progress.
    pub ranks: Vec<RankRow>,
}

impl Report {
    /// Makes the report of snapshots of one job, and of statuses that are known without one. Where no rank
    /// has waited for `min_wait` seconds, there is no knot.
    #[must_use]
    pub fn new(snapshots: &[Snapshot], own: &[ProcessStatus], min_wait: f64) -> Report {
        Report::with_states(snapshots, own, min_wait, &|_, _| ProcessState::Unknown)
    }

    /// Makes a report as [`Report::new`]. `state_of` returns the states of processes, by host and process id,
    /// of which no rendezvous has told.
    pub(crate) fn with_states(
        snapshots: &[Snapshot],
        own: &[ProcessStatus],
        min_wait: f64,
        state_of: &dyn Fn(&str, u32) -> ProcessState,
    ) -> Report {
        let graph = Graph::new(snapshots, own, state_of);
        Report {
            knot: Knot::find(&graph, min_wait),
            communicators: table::communicators(&graph),
            ranks: table::ranks(&graph),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.knot)?;
        table::write(self, f)
    }
}
