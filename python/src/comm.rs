//! Communicators: their calls on memory by address, and queries.
//!
//! A call on a communicator that no other thread uses runs on the caller's thread, without the GIL. Options
//! of calls belong to the Python object: another object of the same communicator may have others.
//!
//! # Safety
//! Addresses are those of memory that the caller keeps valid, with the length that the call states, until the
//! call is done. The package `tbccl` does that for the objects it is given. Python's types cannot express it.

use crate::{
    calls::{CallNumbers, raw_call, raw_calls, seconds, with_timeout},
    errors::{invalid_argument, to_exception, usage_error},
    in_flight::InFlight,
    interrupt::{check_fork, is_forked, run_interruptible, run_on_thread},
    join::CommunicatorHandle,
    request::Request,
    state::{State, live, lock},
};
use pyo3::{exceptions::PyTypeError, prelude::*, types::PyDict};
use std::{
    borrow::Cow,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tbccl::{CallOptions, Counters, Numerics, P2p, P2pRequest, Rank, RawCall};

/// Closes all communicators of this process, when the interpreter exits.
#[pyfunction(name = "_close_all")]
pub(crate) fn close_all(py: Python<'_>) {
    if is_forked() {
        return;
    }
    for state in live() {
        let closed = Arc::clone(&state);
        // After another interrupt the user does not want to wait.
        if run_on_thread(py, move || closed.finish()).is_err() {
            py.detach(|| state.abort());
        }
    }
}

/// One rank of a communicator, created by functions of the package.
#[pyclass(frozen, subclass, weakref, module = "tbccl._native")]
#[derive(Debug)]
pub(crate) struct Communicator {
    pub(crate) state: Arc<State>,
    options: CallOptions,
}

impl Communicator {
    #[inline]
    fn options(&self, timeout: Option<f64>) -> PyResult<Cow<'_, CallOptions>> {
        Ok(match timeout {
            None => Cow::Borrowed(&self.options),
            some => Cow::Owned(with_timeout(&self.options, some)?),
        })
    }

    /// Executes a call and waits for it.
    #[inline]
    fn execute(&self, py: Python<'_>, call: &RawCall, timeout: Option<f64>) -> PyResult<()> {
        check_fork()?;
        let options = self.options(timeout)?;
        let shared = &self.state.shared;
        let _wait = self.state.begin_call()?;
        // SAFETY: the caller keeps the memory valid until this returns.
        run_interruptible(py, || unsafe { shared.call(call, &options) })?
            .map_err(|error| to_exception(&error))
    }

    /// Posts a send or a receive of a tagged message.
    fn post(
        &self,
        py: Python<'_>,
        keep: Option<Py<PyAny>>,
        post: impl FnOnce(&P2p) -> Result<P2pRequest, tbccl::Error> + Send,
    ) -> PyResult<Request> {
        check_fork()?;
        self.state.release_finished();
        let p2p = lock(&self.state.p2p).clone().ok_or_else(|| {
            usage_error("tagged messages need an open communicator that was created without mail=False")
        })?;
        let request = py.detach(|| post(&p2p)).map_err(|error| to_exception(&error))?;
        Ok(Request::new(InFlight::Message(Arc::new(request)), keep, Arc::downgrade(&self.state)))
    }

    /// Queues calls for later execution; several calls form a group.
    fn issue(&self, calls: Vec<RawCall>, timeout: Option<f64>, keep: Option<Py<PyAny>>) -> PyResult<Request> {
        check_fork()?;
        let options = self.options(timeout)?;
        self.state.release_finished();
        // SAFETY: the caller keeps the memory valid until the request is done.
        let pending = unsafe { self.state.shared.issue(calls, &options) };
        let pending = pending.map_err(|error| to_exception(&error))?;
        Ok(Request::new(InFlight::Calls(pending), keep, Arc::downgrade(&self.state)))
    }
}

#[pymethods]
impl Communicator {
    #[new]
    #[pyo3(signature = (handle, /))]
    fn new(handle: &Bound<'_, PyAny>) -> PyResult<Communicator> {
        let handle = handle.cast::<CommunicatorHandle>().map_err(|_| {
            PyTypeError::new_err(
                "communicators are created by tbccl.init() and Communicator.from_unique_id()",
            )
        })?;
        let CommunicatorHandle { state, options } = handle.get().clone();
        Ok(Communicator { state, options })
    }

    /// This rank's number.
    #[getter]
    fn rank(&self) -> u32 {
        self.state.shared.rank().0
    }

    /// Number of ranks.
    #[getter]
    fn size(&self) -> u32 {
        self.state.shared.size()
    }

    /// Name of the transport, as the option TRANSPORT spells it.
    #[getter]
    fn transport(&self) -> &'static str {
        self.state.transport
    }

    /// Executes a call on memory by address.
    ///
    /// `count` is a number, or for a vector form a pair of lists or None. If `wait` is true, waits until the
    /// call is done. Otherwise returns a request at once: the call runs after all calls issued before, and
    /// `keep` stays alive until it is done.
    #[pyo3(signature = (
        call, dtype, op, count, send, recv, root=0, timeout=None, scale=None, wait=true, keep=None, /
    ))]
    #[allow(clippy::too_many_arguments)] // One per argument of the Python method.
    fn submit(
        &self,
        py: Python<'_>,
        call: i32,
        dtype: i32,
        op: i32,
        count: &Bound<'_, PyAny>,
        send: usize,
        recv: usize,
        root: i64,
        timeout: Option<f64>,
        scale: Option<f64>,
        wait: bool,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<Option<Request>> {
        let call = raw_call(CallNumbers { call, dtype, op, root }, count, send, recv, scale)?;
        if wait {
            return self.execute(py, &call, timeout).map(|()| None);
        }
        self.issue(vec![call], timeout, keep).map(Some)
    }

    /// Executes calls as a group: each a tuple of the first seven arguments of `submit`.
    ///
    /// The other arguments apply to all calls of the group.
    #[pyo3(signature = (calls, timeout=None, wait=true, keep=None, /))]
    fn submit_group(
        &self,
        py: Python<'_>,
        calls: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        wait: bool,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<Option<Request>> {
        check_fork()?;
        let calls = raw_calls(calls)?;
        if !wait {
            return self.issue(calls, timeout, keep).map(Some);
        }
        let options = self.options(timeout)?;
        let shared = &self.state.shared;
        let _wait = self.state.begin_call()?;
        // SAFETY: the caller keeps the memory valid until this returns.
        run_interruptible(py, || unsafe { shared.call_group(&calls, &options) })?
            .map_err(|error| to_exception(&error))?;
        Ok(None)
    }

    /// Posts a send of `nbytes` bytes at `addr` to a rank, with a context and a tag. Returns at once.
    #[pyo3(signature = (peer, context, tag, addr, nbytes, keep=None, /))]
    #[allow(clippy::too_many_arguments)] // One per argument of the Python method.
    fn post_send(
        &self,
        py: Python<'_>,
        peer: u32,
        context: u32,
        tag: i32,
        addr: usize,
        nbytes: usize,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<Request> {
        self.post(py, keep, |p2p| {
            // SAFETY: the caller keeps the memory valid until the request is done.
            unsafe { p2p.send(Rank(peer), context, tag, addr as *const u8, nbytes) }
        })
    }

    /// Posts a receive of at most `nbytes` bytes to `addr`, from a rank or any (-1), with a tag or any (-1).
    ///
    /// Returns at once; the request gives the sender, the tag and the length of the message.
    #[pyo3(signature = (peer, context, tag, addr, nbytes, keep=None, /))]
    #[allow(clippy::too_many_arguments)] // One per argument of the Python method.
    fn post_recv(
        &self,
        py: Python<'_>,
        peer: i64,
        context: u32,
        tag: i32,
        addr: usize,
        nbytes: usize,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<Request> {
        let from = match peer {
            -1 => None,
            _ => Some(u32::try_from(peer).map_err(|_| invalid_argument(format!("{peer} is not a rank")))?),
        };
        let tag = (tag != -1).then_some(tag);
        self.post(py, keep, |p2p| {
            // SAFETY: the caller keeps the memory valid until the request is done.
            unsafe { p2p.recv(from.map(Rank), context, tag, addr as *mut u8, nbytes) }
        })
    }

    /// Returns the same communicator with other options for calls made through the new object.
    #[pyo3(signature = (timeout=None, algorithm=None, segments=None, numerics=None))]
    fn _with_options(
        &self,
        timeout: Option<f64>,
        algorithm: Option<String>,
        segments: Option<u32>,
        numerics: Option<&str>,
    ) -> PyResult<CommunicatorHandle> {
        let mut options = with_timeout(&self.options, timeout)?;
        options.algorithm = algorithm.or(options.algorithm);
        options.segments = segments.unwrap_or(options.segments);
        if let Some(name) = numerics {
            options.numerics = Some(parse_numerics(name)?);
        }
        options.check().map_err(|error| to_exception(&error))?;
        Ok(CommunicatorHandle { state: Arc::clone(&self.state), options })
    }

    /// Aborts the communicator from any thread, promptly.
    ///
    /// Calls in progress and all later ones raise AbortedError here, and an error on the other ranks.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        check_fork()?;
        py.detach(|| self.state.abort());
        Ok(())
    }

    /// Waits for issued calls, then closes this rank's part of the communicator.
    ///
    /// Every further call raises an error; closing again does nothing. In a signal handler that has
    /// interrupted a wait on this communicator, aborts it instead; it is closed when the wait has ended.
    ///
    /// Then it waits for sent messages to arrive, and in rank 0's process without a launcher for the other
    /// ranks to close theirs. Each wait takes up to `within` seconds, or the communicator's limit if that is
    /// less.
    #[pyo3(signature = (*, within = None))]
    fn close(&self, py: Python<'_>, within: Option<f64>) -> PyResult<()> {
        check_fork()?;
        let limit = within.map(|given| seconds("within", given)).transpose()?.flatten();
        let limit = limit.unwrap_or(Duration::MAX);
        if self.state.is_closed.swap(true, Relaxed) {
            return Ok(());
        }
        if self.state.is_interrupted_here() {
            py.detach(|| self.state.close_after_wait());
            return Ok(());
        }
        let state = Arc::clone(&self.state);
        let closed = run_on_thread(py, move || state.finish_within(limit));
        closed.inspect_err(|_| py.detach(|| self.state.abort()))
    }

    /// Whether the caller is a signal handler that has interrupted a wait on this communicator.
    #[getter]
    fn _is_interrupted(&self) -> bool {
        self.state.is_interrupted_here()
    }

    /// Whether the communicator was closed on this rank.
    #[getter]
    fn is_closed(&self) -> bool {
        self.state.is_closed.load(Relaxed)
    }

    /// Returns the error that made the communicator fail, if any: an exception that is not raised.
    fn async_error(&self, py: Python<'_>) -> PyResult<Option<PyErr>> {
        check_fork()?;
        let shared = &self.state.shared;
        Ok(py.detach(|| shared.async_error()).map(|error| to_exception(&error)))
    }

    /// Returns statistics: calls begun and finished, and counters of links, in total and per peer.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        check_fork()?;
        let shared = &self.state.shared;
        let stats = py.detach(|| shared.stats());
        let entries = PyDict::new(py);
        entries.set_item("begun", stats.begun)?;
        entries.set_item("finished", stats.finished)?;
        entries.set_item("links", counters_dict(py, stats.links)?)?;
        let peers = PyDict::new(py);
        for (rank, counters) in stats.peers {
            peers.set_item(rank.0, counters_dict(py, counters)?)?;
        }
        entries.set_item("peers", peers)?;
        Ok(entries)
    }

    /// Returns the flight recorder as lines of JSON: this rank, then its latest calls, the oldest first.
    fn dump(&self, py: Python<'_>) -> PyResult<String> {
        check_fork()?;
        let shared = &self.state.shared;
        let written = py.detach(|| {
            let mut lines = Vec::new();
            shared.dump(&mut lines).map(|()| lines)
        })?;
        Ok(String::from_utf8_lossy(&written).into_owned())
    }
}

fn parse_numerics(numerics: &str) -> PyResult<Numerics> {
    numerics.parse().map_err(|unknown| to_exception(&tbccl::Error::UnknownName(unknown)))
}

fn counters_dict<'py>(py: Python<'py>, counters: Counters) -> PyResult<Bound<'py, PyDict>> {
    let entries = PyDict::new(py);
    entries.set_item("sent_messages", counters.sent_messages)?;
    entries.set_item("received_messages", counters.received_messages)?;
    entries.set_item("moved_bytes", counters.moved_bytes)?;
    entries.set_item("copied_bytes", counters.copied_bytes)?;
    entries.set_item("repeated", counters.retransmissions)?;
    entries.set_item("renewed", counters.reconnections)?;
    entries.set_item("refused", counters.refused)?;
    Ok(entries)
}
