//! The rendezvous of a job on one host, run by the launcher.
//!
//! One thread accepts; each connection has a thread of its own that greets, waits for the others, and then does what
//! the rank asks for until it ends. State is shared behind one mutex; a condition variable tells of changes.

mod boards;
mod listen;
mod rank;
mod state;

pub(super) use listen::connect;

use crate::error::{Error, Result};
use listen::{Folder, listen, same_user};
use state::{Gone, State};
use std::{
    os::unix::net::UnixListener,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// The rendezvous of one job. Closed when dropped; ranks that wait for others are then refused.
#[derive(Debug)]
pub struct Server {
    address: String,
    shared: Arc<Shared>,
    /// The folder of the socket's file, where it has one; removed when dropped.
    _folder: Option<Folder>,
}

#[derive(Debug)]
struct Shared {
    ranks: u32,
    state: Mutex<State>,
    changed: Condvar,
}

impl Server {
    /// Opens the rendezvous for a job of `ranks` ranks.
    ///
    /// # Errors
    /// When the system refuses a socket or a thread.
    pub fn start(ranks: u32) -> Result<Server> {
        let (listener, address, folder) =
            listen().map_err(|e| Error::system("opening the rendezvous socket", e))?;
        let state = Mutex::new(State::new(ranks));
        let shared = Arc::new(Shared { ranks, state, changed: Condvar::new() });
        let accepting = Arc::clone(&shared);
        thread::Builder::new()
            .name("tbccl-rendezvous".into())
            .spawn(move || accept(&listener, &accepting))
            .map_err(|e| Error::system("starting the rendezvous thread", e))?;
        Ok(Server { address, shared, _folder: folder })
    }

    /// What ranks need to find the rendezvous: the value of `TBCCL_BOOTSTRAP`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Tells all ranks that a rank's process has ended, and how, as the rest of a sentence: `was killed by SIGKILL`.
    pub fn report_exit(&self, rank: u32, pid: u32, how: &str) {
        let mut state = self.shared.lock();
        if state.seats.get(rank as usize).is_none_or(|seat| seat.gone != Gone::No) {
            return;
        }
        if state.started() {
            state.announce_death(rank, how);
        } else {
            let why = format!("rank {rank} (process {pid}) {how} before all ranks had joined");
            state.refused.get_or_insert(why);
        }
        self.shared.changed.notify_all();
    }
}

impl Server {
    /// Tells ranks that wait for this one to join that it has ended without, with status 0. Once it has joined, its own
    /// goodbye counts.
    pub fn report_success(&self, rank: u32, pid: u32) {
        let mut state = self.shared.lock();
        if state.seats.get(rank as usize).is_some_and(|seat| seat.member.is_none()) {
            let why = format!("rank {rank} (process {pid}) ended with status 0 without joining the job");
            state.refused.get_or_insert(why);
            self.shared.changed.notify_all();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        // Wakes the accepting thread, which then sees that it is to end.
        drop(connect(&self.address));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Turns a rank of ours away, and with it the job if it has not begun.
    fn refuse_unless_started(&self, why: String) -> String {
        let mut state = self.lock();
        if !state.complete() {
            state.refused.get_or_insert_with(|| why.clone());
        }
        self.changed.notify_all();
        why
    }

    /// Waits until `ready` says so, the job is refused, or the deadline has passed; then `overdue` says why nobody
    /// waits any longer.
    fn wait_for(
        &self,
        deadline: Instant,
        ready: impl Fn(&State) -> bool,
        overdue: impl Fn(&State) -> String,
    ) -> Result<MutexGuard<'_, State>, String> {
        let mut state = self.lock();
        loop {
            if let Some(why) = &state.refused {
                return Err(why.clone());
            }
            if ready(&state) {
                return Ok(state);
            }
            if state.closed {
                return Err("the launcher is ending the job".into());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // It is over for all: a rank that joins later would wait for this one in vain.
                let why = overdue(&state);
                state.refused = Some(why.clone());
                self.changed.notify_all();
                return Err(why);
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.lock().closed {
            return;
        }
        let Ok(stream) = stream else {
            // Out of descriptors, most likely: others may be closed meanwhile.
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        if !same_user(&stream) {
            continue;
        }
        let shared = Arc::clone(shared);
        // A connection that gets no thread is closed, which the rank reports.
        let _ = thread::Builder::new().name("tbccl-rank".into()).spawn(move || rank::serve(stream, &shared));
    }
}
