//! What Python holds of a call, or of a message, until it is done.
//!
//! A request keeps what it was given alive until it is done, also when it is dropped before: the communicator takes that
//! over then.

use crate::{
    calls::seconds,
    errors::raised,
    interrupt::{LOOK, check_fork, is_forked},
    issued::Issued,
    state::{State, locked},
};
use pyo3::prelude::*;
use std::{
    sync::{Mutex, Weak},
    time::Instant,
};
use tbccl::{Delivery, Error};

/// A call or a message that was issued, and may be in progress.
#[pyclass(frozen, weakref, module = "tbccl._native")]
#[derive(Debug)]
pub(crate) struct Request {
    issued: Issued,
    /// What must stay alive until it is done.
    kept: Mutex<Option<Py<PyAny>>>,
    state: Weak<State>,
}

impl Request {
    pub(crate) fn new(issued: Issued, kept: Option<Py<PyAny>>, state: Weak<State>) -> Request {
        Request { issued, kept: Mutex::new(kept), state }
    }

    /// It is done: lets go of what was kept for it.
    fn told(&self, result: Result<Option<Delivery>, Error>) -> PyResult<bool> {
        drop(locked(&self.kept).take());
        result.map(|_| true).map_err(|error| raised(&error))
    }

    /// What was delivered, of a message that is done and has not failed.
    fn delivered(&self) -> Option<Delivery> {
        if is_forked() {
            return None;
        }
        self.issued.test().and_then(Result::ok).flatten()
    }
}

#[pymethods]
impl Request {
    /// Waits until it is done, for so many seconds at most; None for no limit but a call's own. False: not done in time.
    /// Raises what has become of it, if it has failed; the same each time it is asked.
    #[pyo3(signature = (timeout=None, /))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        check_fork()?;
        if let Some(result) = self.issued.test() {
            return self.told(result);
        }
        let limit = timeout.map(seconds).transpose()?.flatten();
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let left = until.map_or(LOOK, |until| until.saturating_duration_since(Instant::now()));
            let issued = &self.issued;
            if let Some(result) = py.detach(|| issued.wait(left.min(LOOK))) {
                return self.told(result);
            }
            if let Err(interrupted) = py.check_signals() {
                // This rank will not do its part of what comes next, and the others shall not wait for it.
                if let Some(state) = self.state.upgrade() {
                    py.detach(|| state.abort());
                }
                return Err(interrupted);
            }
            if left <= LOOK && until.is_some() {
                return Ok(false);
            }
        }
    }

    /// Is it done? Raises what has become of it, if it has failed.
    fn test(&self) -> PyResult<bool> {
        check_fork()?;
        self.issued.test().map_or(Ok(false), |result| self.told(result))
    }

    /// Who sent the message, once it is done; None of calls.
    #[getter]
    fn source(&self) -> Option<u32> {
        self.delivered().map(|delivery| delivery.from.0)
    }

    /// Its tag.
    #[getter]
    fn tag(&self) -> Option<i32> {
        self.delivered().map(|delivery| delivery.tag)
    }

    /// Its length in bytes.
    #[getter]
    fn nbytes(&self) -> Option<usize> {
        self.delivered().map(|delivery| delivery.bytes)
    }

    fn __repr__(&self) -> &'static str {
        if is_forked() {
            return "<tbccl request of another process>";
        }
        match self.issued.test() {
            None => "<tbccl request in progress>",
            Some(Ok(_)) => "<tbccl request, done>",
            Some(Err(_)) => "<tbccl request, failed>",
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let Some(kept) = locked(&self.kept).take() else { return };
        if is_forked() {
            // The parent's call uses the parent's memory.
            return;
        }
        // Where there is no communicator any more, it has waited for the call.
        if self.issued.test().is_none()
            && let Some(state) = self.state.upgrade()
        {
            state.keep(self.issued.clone(), kept);
        }
    }
}
