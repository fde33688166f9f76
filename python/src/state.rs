//! State that all Python objects of a communicator share, and objects kept alive for calls in progress.
//!
//! A signal handler may run in the midst of a wait on the communicator, and use it:
//!
//! - A call that would wait for the interrupted call raises a `UsageError`.
//! - Closing the communicator aborts it. The interrupted wait then fails, and closes it at its end.

use crate::{
    errors::{to_exception, usage_error},
    in_flight::InFlight,
    interrupt::{check_fork, is_forked, is_interrupted, run_on_thread},
    waits::{WaitGuard, WaitKind, is_waiting},
};
use pyo3::prelude::*;
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tbccl::{Error, P2p, SharedCommunicator};

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
    /// Whether a signal handler has closed the communicator, which an interrupted wait has to finish.
    closes_after_wait: AtomicBool,
}

/// A wait on a communicator by the calling thread, from its beginning until it is dropped.
#[derive(Debug)]
pub(crate) struct Wait<'s> {
    state: &'s State,
    /// `None` once the wait is over.
    guard: Option<WaitGuard>,
}

impl Drop for Wait<'_> {
    #[inline]
    fn drop(&mut self) {
        drop(self.guard.take());
        if self.state.closes_after_wait.load(Relaxed) {
            self.state.finish_closing();
        }
    }
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
            closes_after_wait: AtomicBool::new(false),
        });
        let mut live = lock(&LIVE);
        live.retain(|other| other.strong_count() > 0);
        live.push(Arc::downgrade(&state));
        state
    }

    /// Number that identifies the communicator among the waits of a thread.
    fn number(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Begins a blocking call.
    ///
    /// # Errors
    /// As [`State::check_not_in_call`].
    #[inline]
    pub(crate) fn begin_call(&self) -> PyResult<Wait<'_>> {
        self.check_not_in_call()?;
        Ok(Wait { state: self, guard: Some(WaitGuard::new(self.number(), WaitKind::Call)) })
    }

    /// Begins another wait on the communicator.
    pub(crate) fn begin_wait(&self) -> Wait<'_> {
        Wait { state: self, guard: Some(WaitGuard::new(self.number(), WaitKind::Other)) }
    }

    /// Checks that the caller may wait for calls of this communicator.
    ///
    /// # Errors
    /// A `UsageError` in a signal handler that has interrupted a blocking call of this communicator.
    #[inline]
    pub(crate) fn check_not_in_call(&self) -> PyResult<()> {
        if is_waiting(self.number(), Some(WaitKind::Call)) { Err(interrupted_call()) } else { Ok(()) }
    }

    /// Runs work that uses the communicator on a thread of its own, and waits for it.
    ///
    /// Aborts the communicator if a signal handler raises an exception meanwhile: this rank will skip the
    /// calls that follow.
    ///
    /// # Errors
    /// The handler's exception; a `UsageError` in a forked child, or as [`State::check_not_in_call`].
    pub(crate) fn run_on_thread<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&SharedCommunicator) -> T + Send + 'static,
    ) -> PyResult<T> {
        check_fork()?;
        self.check_not_in_call()?;
        let _wait = self.begin_wait();
        let shared = self.shared.clone();
        run_on_thread(py, move || work(&shared)).inspect_err(|_| py.detach(|| self.abort()))
    }

    /// Runs work on the communicator after all queued calls: on this thread if there are none.
    ///
    /// # Errors
    /// As [`State::run_on_thread`], and those of the communicator.
    pub(crate) fn with<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl Fn(&mut tbccl::Communicator) -> Result<T, Error> + Send + Sync + 'static,
    ) -> PyResult<T> {
        check_fork()?;
        let done = match py.detach(|| self.shared.try_with(&work)).transpose() {
            Some(done) => done,
            None => self.run_on_thread(py, move |shared| shared.with(work))?,
        };
        done.and_then(|done| done).map_err(|error| to_exception(&error))
    }

    /// Whether the caller is a signal handler that has interrupted a wait on this communicator.
    pub(crate) fn is_interrupted_here(&self) -> bool {
        is_waiting(self.number(), None)
    }

    /// Closes the communicator in a signal handler that has interrupted a wait on it.
    ///
    /// The wait fails, since the communicator is aborted, and closes the communicator when it ends.
    pub(crate) fn close_after_wait(&self) {
        self.closes_after_wait.store(true, Relaxed);
        self.abort();
    }

    /// Closes the communicator at the end of an interrupted wait, unless this thread has another one on it.
    #[cold]
    fn finish_closing(&self) {
        if !self.is_interrupted_here() && self.closes_after_wait.swap(false, Relaxed) {
            self.finish_detached();
        }
    }

    /// As [`State::finish`], without the GIL, which other threads may need to finish queued calls.
    fn finish_detached(&self) {
        if Python::try_attach(|py| py.detach(|| self.finish())).is_none() {
            self.finish();
        }
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
        self.finish_within(Duration::MAX);
    }

    /// As [`State::finish`], with a limit for each wait for other ranks after the issued calls.
    pub(crate) fn finish_within(&self, limit: Duration) {
        drop(self.shared.finalize_within(limit));
        let p2p = lock(&self.p2p).take();
        if let Some(p2p) = &p2p {
            // After a panic of an operation nothing is delivered anyway.
            let _ = p2p.limit_close(limit);
        }
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
        self.finish_detached();
    }
}

#[cold]
fn interrupted_call() -> PyErr {
    usage_error(
        "a signal handler can't wait for a call of the communicator whose call it has interrupted: that \
         call goes on when the handler returns; close() or abort() the communicator, or let the handler \
         set a flag",
    )
}

/// Returns the communicators of this process.
pub(crate) fn live() -> Vec<Arc<State>> {
    lock(&LIVE).iter().filter_map(Weak::upgrade).collect()
}
