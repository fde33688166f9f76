//! Communicators as all Python objects of them share them, and the objects that calls in progress keep alive.

use crate::{
    interrupt::{is_forked, is_interrupted},
    issued::Issued,
};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, atomic::AtomicBool};
use tbccl::{P2p, SharedCommunicator};

/// A communicator, as all objects of it have it.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) shared: SharedCommunicator,
    pub(crate) transport: &'static str,
    /// Tagged messages, which have links of their own; none if the program wants none, and after the end.
    pub(crate) p2p: Mutex<Option<P2p>>,
    /// What must stay alive until calls and messages are done whose requests were dropped.
    kept: Mutex<Vec<(Issued, Py<PyAny>)>>,
    pub(crate) is_closed: AtomicBool,
}

/// The communicators of this process.
static LIVE: Mutex<Vec<Weak<State>>> = Mutex::new(Vec::new());

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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
            kept: Mutex::default(),
            is_closed: AtomicBool::new(false),
        });
        let mut live = locked(&LIVE);
        live.retain(|other| other.strong_count() > 0);
        live.push(Arc::downgrade(&state));
        state
    }

    /// Keeps an object alive until a call is done, and lets go of those whose calls are.
    pub(crate) fn keep(&self, issued: Issued, kept: Py<PyAny>) {
        self.sweep();
        locked(&self.kept).push((issued, kept));
    }

    /// Ends it for good, and its p2p.
    pub(crate) fn abort(&self) {
        self.shared.abort();
        if let Some(p2p) = &*locked(&self.p2p) {
            p2p.abort();
        }
    }

    /// Waits for what was issued, and closes it and its p2p. That it had failed has been told before.
    pub(crate) fn finish(&self) {
        drop(self.shared.finalize());
        let p2p = locked(&self.p2p).take();
        drop(p2p);
    }

    /// Lets go of what was kept for calls that are done.
    pub(crate) fn sweep(&self) {
        let mut kept = locked(&self.kept);
        if kept.is_empty() {
            return;
        }
        let (done, rest) = kept.drain(..).partition(|(issued, _)| issued.test().is_some());
        *kept = rest;
        drop(kept);
        // Outside the lock: what is dropped may be anything.
        drop::<Vec<_>>(done);
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if is_forked() {
            // The threads that dropping it would wait for are in the parent.
            std::mem::forget((self.shared.clone(), locked(&self.p2p).take()));
            std::mem::forget(std::mem::take(&mut *locked(&self.kept)));
            return;
        }
        // Waits for what is queued. Whatever that waits for may need Python's lock.
        if Python::try_attach(|py| py.detach(|| self.finish())).is_none() {
            self.finish();
        }
    }
}

/// Returns the communicators of this process.
pub(crate) fn live() -> Vec<Arc<State>> {
    locked(&LIVE).iter().filter_map(Weak::upgrade).collect()
}
