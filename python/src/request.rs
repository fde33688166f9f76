//! Handles of asynchronous calls and messages.
//!
//! A request keeps the objects of its call alive until the call is done. If the request is dropped before,
//! the communicator keeps them.

use crate::{
    calls::seconds,
    errors::to_exception,
    in_flight::InFlight,
    interrupt::{SIGNAL_POLL_INTERVAL, check_fork, is_forked, run_interruptible},
    state::{State, Wait, lock},
};
use pyo3::prelude::*;
use std::{
    sync::{Mutex, Weak},
    time::Instant,
};
use tbccl::{Delivery, Error};

/// An issued call or message, possibly still in progress.
#[pyclass(frozen, weakref, module = "tbccl._native")]
#[derive(Debug)]
pub(crate) struct Request {
    operation: InFlight,
    /// Object that must stay alive until the operation is done.
    keep_alive: Mutex<Option<Py<PyAny>>>,
    state: Weak<State>,
}

impl Request {
    pub(crate) fn new(operation: InFlight, keep_alive: Option<Py<PyAny>>, state: Weak<State>) -> Request {
        Request { operation, keep_alive: Mutex::new(keep_alive), state }
    }

    /// Begins a wait for the operation.
    fn begin_wait<'s>(&self, state: &'s State) -> PyResult<Wait<'s>> {
        if let InFlight::Calls(_) = self.operation {
            state.check_not_in_call()?;
        }
        Ok(state.begin_wait())
    }

    /// Makes the calls on this thread if no other thread is making them, and returns their result.
    ///
    /// # Errors
    /// The exception of a signal handler, which aborts the communicator.
    fn run_here(&self, py: Python<'_>, state: &State) -> PyResult<Option<Result<Option<Delivery>, Error>>> {
        let _wait = state.begin_call()?;
        run_interruptible(py, || self.operation.run_here())
            // This rank will skip the calls that follow; the others must not wait for it.
            .inspect_err(|_| py.detach(|| state.abort()))
    }

    /// Releases the object kept for a finished operation, and returns true or the operation's error.
    fn complete(&self, result: Result<Option<Delivery>, Error>) -> PyResult<bool> {
        drop(lock(&self.keep_alive).take());
        result.map(|_| true).map_err(|error| to_exception(&error))
    }

    /// Returns the delivery of a message that has succeeded.
    fn delivery(&self) -> Option<Delivery> {
        if is_forked() {
            return None;
        }
        self.operation.test().and_then(Result::ok).flatten()
    }
}

#[pymethods]
impl Request {
    /// Waits until the operation is done, for at most `timeout` seconds; None sets no limit here.
    ///
    /// Without a limit, makes a call on this thread if no other thread is making it.
    ///
    /// Returns false if time ran out. Raises the operation's error, the same one on every call. Raises a
    /// `UsageError` in a signal handler that has interrupted a call of the same communicator on this thread:
    /// queued calls run after that one.
    #[pyo3(signature = (timeout=None, /))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        check_fork()?;
        if let Some(result) = self.operation.test() {
            return self.complete(result);
        }
        let limit = timeout.map(|given| seconds("timeout", given)).transpose()?.flatten();
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let state = self.state.upgrade();
        if limit.is_none()
            && let InFlight::Calls(_) = self.operation
            && let Some(state) = &state
            && let Some(result) = self.run_here(py, state)?
        {
            return self.complete(result);
        }
        let _wait = state.as_ref().map(|state| self.begin_wait(state)).transpose()?;
        loop {
            let left = deadline
                .map_or(SIGNAL_POLL_INTERVAL, |deadline| deadline.saturating_duration_since(Instant::now()));
            let operation = &self.operation;
            if let Some(result) = py.detach(|| operation.wait(left.min(SIGNAL_POLL_INTERVAL))) {
                return self.complete(result);
            }
            if let Err(interrupted) = py.check_signals() {
                // This rank will skip the calls that follow; the others must not wait for it.
                if let Some(state) = &state {
                    py.detach(|| state.abort());
                }
                return Err(interrupted);
            }
            if left <= SIGNAL_POLL_INTERVAL && deadline.is_some() {
                return Ok(false);
            }
        }
    }

    /// Whether the operation is done. Raises the operation's error.
    fn test(&self) -> PyResult<bool> {
        check_fork()?;
        self.operation.test().map_or(Ok(false), |result| self.complete(result))
    }

    /// Rank that sent a received message; None for calls.
    #[getter]
    fn source(&self) -> Option<u32> {
        self.delivery().map(|delivery| delivery.from.0)
    }

    /// Tag of the message.
    #[getter]
    fn tag(&self) -> Option<i32> {
        self.delivery().map(|delivery| delivery.tag)
    }

    /// Length of the message in bytes.
    #[getter]
    fn nbytes(&self) -> Option<usize> {
        self.delivery().map(|delivery| delivery.bytes)
    }

    fn __repr__(&self) -> &'static str {
        if is_forked() {
            return "<tbccl request of another process>";
        }
        match self.operation.test() {
            None => "<tbccl request in progress>",
            Some(Ok(_)) => "<tbccl request, done>",
            Some(Err(_)) => "<tbccl request, failed>",
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let Some(keep_alive) = lock(&self.keep_alive).take() else { return };
        if is_forked() {
            // The call belongs to the parent process and uses its memory.
            return;
        }
        // A communicator that no longer exists has waited for the call.
        if self.operation.test().is_none()
            && let Some(state) = self.state.upgrade()
        {
            state.keep_until_done(self.operation.clone(), keep_alive);
        }
    }
}
