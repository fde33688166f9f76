//! State that all Python objects of a communicator share, and objects kept alive for calls in progress.

use crate::{
    in_flight::InFlight,
    interrupt::{is_forked, is_interrupted},
};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, atomic::AtomicBool};
use tbccl::{P2p, SharedCommunicator};

/// The communicator behind one or more Python objects.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) shared: SharedCommunicator,
    pub(crate) transport: &'static str,
    /// Tagged messages, on links of their own; None with `mail=False` and once closed.
    pub(crate) p2p: Mutex<Option<P2p>>,
    /// Objects that must outlive calls and messages whose requests were dropped.
    keep_alive: Mutex<Vec<(InFlight, Py<PyAny>)>>,
    pub(crate) is_closed: AtomicBool,
}

/// The communicators of this process.
static LIVE: Mutex<Vec<Weak<State>>> = Mutex::new(Vec::new());

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    pub(crate) fn new(comm: tbccl::Communicator, p2p: Option<P2p>) -> Arc<State> {
        let transport = comm.transport();
        let shared = SharedCommunicator::new(comm);
        shared.set_interrupt_check(is_interrupted);
        let state = Arc::new(State {
            shared,
            transport,
            p2p: Mutex::new(p2p),
            keep_alive: Mutex::default(),
            is_closed: AtomicBool::new(false),
        });
        let mut live = lock(&LIVE);
        live.retain(|other| other.strong_count() > 0);
        live.push(Arc::downgrade(&state));
        state
    }

    /// Keeps an object alive until a call is done, and releases the objects of finished calls.
    pub(crate) fn keep_until_done(&self, operation: InFlight, keep_alive: Py<PyAny>) {
        self.release_finished();
        lock(&self.keep_alive).push((operation, keep_alive));
    }

    /// Aborts the communicator and its tagged messages.
    pub(crate) fn abort(&self) {
        self.shared.abort();
        if let Some(p2p) = &*lock(&self.p2p) {
            p2p.abort();
        }
    }

    /// Waits for issued calls, then closes the communicator and its tagged messages.
    ///
    /// A failure is not reported here: the calls that failed have reported it.
    pub(crate) fn finish(&self) {
        drop(self.shared.finalize());
        let p2p = lock(&self.p2p).take();
        drop(p2p);
    }

    /// Releases the objects of finished calls.
    pub(crate) fn release_finished(&self) {
        let mut keep_alive = lock(&self.keep_alive);
        if keep_alive.is_empty() {
            return;
        }
        let (done, rest) = keep_alive.drain(..).partition(|(operation, _)| operation.test().is_some());
        *keep_alive = rest;
        drop(keep_alive);
        // Dropped outside the lock, since a destructor may run any code.
        drop::<Vec<_>>(done);
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if is_forked() {
            // Dropping would wait for threads that exist in the parent only.
            std::mem::forget((self.shared.clone(), lock(&self.p2p).take()));
            std::mem::forget(std::mem::take(&mut *lock(&self.keep_alive)));
            return;
        }
        // Waits for queued calls, without the GIL, which other threads may need to finish them.
        if Python::try_attach(|py| py.detach(|| self.finish())).is_none() {
            self.finish();
        }
    }
}

/// Returns the communicators of this process.
pub(crate) fn live() -> Vec<Arc<State>> {
    lock(&LIVE).iter().filter_map(Weak::upgrade).collect()
}
