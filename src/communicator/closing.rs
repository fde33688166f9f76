//! The last of a rendezvous: when a communicator is closed whose process has it, others may still be at work, and would
//! take its end for that of the job.
//!
//! So closing waits until all have gone. But where a process has more than one communicator, others may wait for it to
//! close the next one before they close this one; so only the last one waits, for all that are still attended.

use crate::bootstrap::Server;
use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// What the communicators of this process leave to each other.
#[derive(Debug)]
struct Open {
    /// How many there are.
    communicators: usize,
    /// Rendezvous whose ranks here have gone, and until when others may take to go.
    left: Vec<(Server, Option<Instant>)>,
}

static OPEN: Mutex<Open> = Mutex::new(Open { communicators: 0, left: Vec::new() });

/// A communicator has been made.
pub(super) fn opened() {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).communicators += 1;
}

/// A communicator is closed; its rendezvous, if it is in this process, and how long others may take to go.
pub(super) fn closed(server: Option<(Server, Duration)>) {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    open.communicators -= 1;
    open.left.extend(server.map(|(server, patience)| (server, Instant::now().checked_add(patience))));
    let ending = if open.communicators == 0 {
        std::mem::take(&mut open.left)
    } else {
        open.left.extract_if(.., |(server, _)| is_empty(server)).collect()
    };
    drop(open);
    for (server, until) in ending {
        let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
        server.wait_until(|attendance| attendance.gone == attendance.joined, left);
    }
}

/// Have all gone?
fn is_empty(server: &Server) -> bool {
    let attendance = server.wait_until(|_| true, Duration::ZERO);
    attendance.is_over || attendance.gone == attendance.joined
}
