//! Closing communicators: sent messages arrive first, and then the rendezvous in this process ends.
//!
//! When a process closes the communicator whose rendezvous it runs, other ranks may still be at work, and
//! would mistake the end of the rendezvous for the end of the job. So closing waits until these ranks have
//! left. Sent messages may still be in the system's buffers, and would be lost if the connection were closed.
//! So closing waits for them as well.
//!
//! Where a process has several communicators, peers may first wait for its next call on another one. So only
//! the last communicator waits: for all rendezvous that still have ranks, and for communicators that close in
//! the background ([`close_in_background`]).
//!
//! A program may limit the wait of a close. The rendezvous then goes on in the background until its ranks
//! have left or a later close has waited for them: ranks that are still in a call would fail without it.

use super::{Communicator, watch::Peers};
use bootstrap::Server;
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use topology::Rank;
use transport::driver::Endpoint;

/// Timeout of closing where a rank has failed, or the process has other communicators.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval between checks of the other ranks while messages are in flight.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// State shared by the communicators of this process.
#[derive(Debug)]
struct ProcessState {
    /// Number of communicators, without those that close in the background.
    communicators: usize,
    /// Threads that close communicators.
    background: Vec<JoinHandle<()>>,
    /// Rendezvous whose local ranks have left, and the deadline for the other ranks.
    servers: Vec<(Server, Option<Instant>)>,
}

static PROCESS: Mutex<ProcessState> =
    Mutex::new(ProcessState { communicators: 0, background: Vec::new(), servers: Vec::new() });

fn open() -> MutexGuard<'static, ProcessState> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a new communicator.
pub(super) fn opened() {
    open().communicators += 1;
}

/// Waits until this rank's sent messages have arrived, and closes the endpoint; messages that have not
/// arrived by then may be lost.
///
/// The last communicator waits up to `timeout`, since a receiver may take its time. Where a rank has failed
/// or died, most likely no more messages are received, and the wait is short.
pub(super) fn drain(endpoint: &mut dyn Endpoint, peers: &mut Peers, timeout: Duration, in_background: bool) {
    let began = Instant::now();
    while !endpoint.flush(LOOK_EVERY, &|rank| peers.is_gone(Rank(rank))) {
        peers.keep_in_touch();
        let waits_in_full = peers.are_all_well() && (in_background || open().communicators == 1);
        if began.elapsed() >= if waits_in_full { timeout } else { CLOSE_TIMEOUT.min(timeout) } {
            break;
        }
    }
    endpoint.close(CLOSE_TIMEOUT);
}

/// Closes, on a thread of its own, a communicator whose sent messages may not have been received yet. Other
/// communicators of this process remain usable.
pub(super) fn close_in_background(mut comm: Communicator) {
    let endpoint = comm.endpoint.as_mut().filter(|_| comm.failed.is_none());
    if endpoint.is_none_or(|endpoint| endpoint.flush(Duration::ZERO, &|_| false)) {
        return;
    }
    comm.in_background = true;
    let limit = comm.departure_limit;
    let name = format!("tbccl-closing-{}", comm.rank());
    // Without a thread, this thread closes it.
    let began = thread::Builder::new().name(name).spawn(|| drop(comm));
    let mut open = open();
    open.background.retain(|closing| !closing.is_finished());
    open.background.extend(began);
    open.communicators -= 1;
    let is_last = open.communicators == 0;
    drop(open);
    if is_last {
        wait_for_rest(limit);
    }
}

/// Counts a closed communicator, and waits up to `limit` if it was the last one. `server` is its rendezvous,
/// if it runs in this process, and the time that other ranks have to leave.
pub(super) fn closed(server: Option<(Server, Duration)>, limit: Duration, in_background: bool) {
    let mut open = open();
    open.servers.extend(server.map(|(server, timeout)| (server, Instant::now().checked_add(timeout))));
    if !in_background {
        open.communicators -= 1;
    }
    if !in_background && open.communicators == 0 {
        drop(open);
        return wait_for_rest(limit);
    }
    let is_past = |until: Option<Instant>| until.is_some_and(|until| Instant::now() >= until);
    let is_over = |(server, until): &mut _| has_left(server, Duration::ZERO) || is_past(*until);
    let ended: Vec<_> = open.servers.extract_if(.., is_over).collect();
    drop(open);
    // Ends them without the lock.
    drop(ended);
}

/// Waits for communicators that close in the background, and for other ranks to leave. Called when no
/// communicator is open. What has not ended within `limit` goes on.
fn wait_for_rest(limit: Duration) {
    let until = Instant::now().checked_add(limit);
    let background = std::mem::take(&mut open().background);
    for closing in background {
        while until.is_some_and(|until| !closing.is_finished() && Instant::now() < until) {
            thread::sleep(Duration::from_millis(1));
        }
        if until.is_none() || closing.is_finished() {
            // A panic of the thread has been reported by the thread.
            let _ = closing.join();
        } else {
            open().background.push(closing);
        }
    }
    let servers = std::mem::take(&mut open().servers);
    for (server, deadline) in servers {
        let end = [until, deadline].into_iter().flatten().min();
        let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        if !has_left(&server, left) && deadline.is_none_or(|deadline| Instant::now() < deadline) {
            open().servers.push((server, deadline));
        }
    }
}

/// Whether all ranks of a rendezvous leave within a time.
fn has_left(server: &Server, within: Duration) -> bool {
    let status = server.wait_until(|status| status.gone == status.joined, within);
    status.is_over || status.gone == status.joined
}
