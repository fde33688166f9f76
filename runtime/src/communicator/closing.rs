//! Closing communicators: sent messages arrive first, and then the rendezvous in this process ends.
//!
//! When a process closes the communicator that has the rendezvous, other ranks may still be at work, and
//! would take its end for that of the job; so closing waits until they have gone. Sent messages may lie in
//! the system until their receiver takes them, and could be lost if the connection were closed before; so
//! closing waits for that as well.
//!
//! Where a process has several communicators, peers may wait for its next call on another one first. So only
//! the last communicator waits: for all rendezvous that are still attended, and for communicators that are
//! closed by threads of their own ([`close_in_background`]).

use super::{Communicator, watch::Peers};
use bootstrap::Server;
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use topology::Rank;
use transport::driver::Endpoint;

/// How long a rank that closes waits for anything where not all is well, or where it has other communicators.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Between looks at how others are while what was sent is on its way.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// State shared by the communicators of this process.
#[derive(Debug)]
struct ProcessState {
    /// How many there are, but for those behind.
    communicators: usize,
    /// Threads that close communicators.
    background: Vec<JoinHandle<()>>,
    /// Rendezvous whose local ranks have gone, and the deadline for the others.
    servers: Vec<(Server, Option<Instant>)>,
}

static PROCESS: Mutex<ProcessState> =
    Mutex::new(ProcessState { communicators: 0, background: Vec::new(), servers: Vec::new() });

fn open() -> MutexGuard<'static, ProcessState> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A communicator has been made.
pub(super) fn opened() {
    open().communicators += 1;
}

/// Waits until this rank's sent messages have arrived, and closes the endpoint: messages that have not
/// arrived by then may be lost. The last communicator waits up to `timeout`, since a receiver may take its
/// time; where a rank has failed or died, most likely nothing is received any more.
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
    let name = format!("tbccl-closing-{}", comm.rank());
    // If there is no thread to be had, it is closed by this one.
    let began = thread::Builder::new().name(name).spawn(|| drop(comm));
    let mut open = open();
    open.background.retain(|closing| !closing.is_finished());
    open.background.extend(began);
    open.communicators -= 1;
    let is_last = open.communicators == 0;
    drop(open);
    if is_last {
        wait_for_rest();
    }
}

/// A communicator is closed; its rendezvous, if it is in this process, and how long others may take to go.
pub(super) fn closed(server: Option<(Server, Duration)>, in_background: bool) {
    let mut open = open();
    open.servers.extend(server.map(|(server, timeout)| (server, Instant::now().checked_add(timeout))));
    if !in_background {
        open.communicators -= 1;
    }
    if !in_background && open.communicators == 0 {
        drop(open);
        return wait_for_rest();
    }
    let ended = open.servers.extract_if(.., |(server, _)| has_no_ranks(server)).collect();
    drop(open);
    wait_and_end(ended);
}

/// No communicator is open: waits for those behind, and for others to go.
fn wait_for_rest() {
    let background = std::mem::take(&mut open().background);
    for closing in background {
        // It has told of a panic itself.
        let _ = closing.join();
    }
    let servers = std::mem::take(&mut open().servers);
    wait_and_end(servers);
}

/// Waits until all have gone of some rendezvous, and ends them.
fn wait_and_end(servers: Vec<(Server, Option<Instant>)>) {
    for (server, until) in servers {
        let left = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
        server.wait_until(|status| status.gone == status.joined, left);
    }
}

/// Whether all ranks have gone.
fn has_no_ranks(server: &Server) -> bool {
    let status = server.wait_until(|_| true, Duration::ZERO);
    status.is_over || status.gone == status.joined
}
