//! Processes that did not run for a while, and do again.
//!
//! A process that was stopped and goes on just before the others' time limit passes looks like one that waits
//! for a message. Its own measure of the pause tells that the others waited for it.

use super::{cause::Cause, graph::Graph, status::PauseStatus};

/// Returns the node with the longest pause that may be the reason for a cause, if there is one. A pause
/// counts that ended after the longest wait had begun, `waited` seconds ago.
pub(super) fn behind(graph: &Graph, cause: &Cause, waited: f64) -> Option<(usize, PauseStatus)> {
    // These causes name a process that certainly is one.
    if matches!(cause, Cause::Absent(_) | Cause::Failed(_) | Cause::Mismatch(_)) {
        return None;
    }
    let pauses = graph.nodes.iter().enumerate().filter_map(|(node, process)| Some((node, process.pause?)));
    let during = pauses.filter(|(_, pause)| pause.ended <= waited);
    during.max_by(|a, b| a.1.seconds.total_cmp(&b.1.seconds))
}
