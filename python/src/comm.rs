//! Communicators: their calls on memory by address, and what there is to ask of them.
//!
//! A call on a communicator that nobody else uses is made on the caller's thread, without Python's lock. Options of calls
//! belong to a view: another object of the same communicator.
//!
//! # Safety
//! Addresses are those of memory that whoever calls keeps alive and as long as it says, until the call is done: the
//! package does that for the objects it is given. Python has no way to say so in types.

use crate::{
    calls::{Numbers, call, group, with_timeout},
    errors::{invalid, raised, usage},
    interrupt::{aside, check_fork, is_forked, waiting},
    issued::Issued,
    join::Made,
    request::Request,
    state::{State, live, locked},
};
use pyo3::{exceptions::PyTypeError, prelude::*, types::PyDict};
use std::{
    borrow::Cow,
    sync::{Arc, atomic::Ordering::Relaxed},
};
use tbccl::{CallOptions, Counters, Numerics, P2p, P2pRequest, Rank, RawCall};

/// Closes all communicators of this process, when the interpreter ends.
#[pyfunction(name = "_close_all")]
pub(crate) fn close_all(py: Python<'_>) {
    if is_forked() {
        return;
    }
    for state in live() {
        let closed = Arc::clone(&state);
        // Who is interrupted once more does not want to wait.
        if aside(py, move || closed.finish()).is_err() {
            py.detach(|| state.abort());
        }
    }
}

/// One rank of a communicator. Made by the package's functions.
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

    /// Makes a call.
    #[inline]
    fn make(&self, py: Python<'_>, call: &RawCall, timeout: Option<f64>) -> PyResult<()> {
        check_fork()?;
        let options = self.options(timeout)?;
        let shared = &self.state.shared;
        // SAFETY: whoever calls vouches for the memory, until this returns.
        waiting(py, || unsafe { shared.call(call, &options) })?.map_err(|error| raised(&error))
    }

    /// Has a message sent or received.
    fn post(
        &self,
        py: Python<'_>,
        keep: Option<Py<PyAny>>,
        post: impl FnOnce(&P2p) -> Result<P2pRequest, tbccl::Error> + Send,
    ) -> PyResult<Request> {
        check_fork()?;
        self.state.sweep();
        let p2p = locked(&self.state.p2p).clone().ok_or_else(|| {
            usage("this communicator was closed, or made with mail=False, and has no messages with tags")
        })?;
        let request = py.detach(|| post(&p2p)).map_err(|error| raised(&error))?;
        Ok(Request::new(Issued::P2pRequest(Arc::new(request)), keep, Arc::downgrade(&self.state)))
    }

    /// Has calls made later, together if they are several.
    fn issue(&self, calls: Vec<RawCall>, timeout: Option<f64>, keep: Option<Py<PyAny>>) -> PyResult<Request> {
        check_fork()?;
        let options = self.options(timeout)?;
        self.state.sweep();
        // SAFETY: whoever calls vouches for the memory, until the request is done.
        let pending = unsafe { self.state.shared.issue(calls, &options) };
        let pending = pending.map_err(|error| raised(&error))?;
        Ok(Request::new(Issued::Calls(pending), keep, Arc::downgrade(&self.state)))
    }
}

#[pymethods]
impl Communicator {
    #[new]
    #[pyo3(signature = (made, /))]
    fn new(made: &Bound<'_, PyAny>) -> PyResult<Communicator> {
        let made = made.cast::<Made>().map_err(|_| {
            PyTypeError::new_err("communicators are made by tbccl.init() and Communicator.from_unique_id()")
        })?;
        let Made { state, options } = made.get().clone();
        Ok(Communicator { state, options })
    }

    /// This rank.
    #[getter]
    fn rank(&self) -> u32 {
        self.state.shared.rank().0
    }

    /// The number of ranks.
    #[getter]
    fn size(&self) -> u32 {
        self.state.shared.size()
    }

    /// What moves the bytes, as the option TRANSPORT names it.
    #[getter]
    fn transport(&self) -> &'static str {
        self.state.transport
    }

    /// Makes a call on memory by address. `count` is a number, or for a vector form a pair of lists or None.
    ///
    /// Waits until the call is done, or returns a request at once if `wait` is false: the call is then made after all that
    /// was issued before, and `keep` stays alive until it is done.
    #[pyo3(signature = (call, dtype, op, count, send, recv, root=0, timeout=None, scale=None, wait=true, keep=None, /))]
    #[allow(clippy::too_many_arguments)] // They are those of the call.
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
        let call = self::call(Numbers { call, dtype, op, root }, count, send, recv, scale)?;
        if wait {
            return self.make(py, &call, timeout).map(|()| None);
        }
        self.issue(vec![call], timeout, keep).map(Some)
    }

    /// Makes calls together: tuples of the first seven arguments of `submit`, whose other arguments are those of all.
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
        let calls = group(calls)?;
        if !wait {
            return self.issue(calls, timeout, keep).map(Some);
        }
        let options = self.options(timeout)?;
        let shared = &self.state.shared;
        // SAFETY: the caller vouches for the memory, until this returns.
        waiting(py, || unsafe { shared.call_group(&calls, &options) })?.map_err(|error| raised(&error))?;
        Ok(None)
    }

    /// Sends bytes from an address to a rank, as a message of a context with a tag. Returns at once.
    #[pyo3(signature = (peer, context, tag, addr, nbytes, keep=None, /))]
    #[allow(clippy::too_many_arguments)] // They are those of the message.
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
            // SAFETY: whoever calls vouches for the memory, until the request is done.
            unsafe { p2p.send(Rank(peer), context, tag, addr as *const u8, nbytes) }
        })
    }

    /// Receives a message of a context to an address, from a rank or from any (-1), with a tag or with any (-1): so many bytes
    /// at most. Returns at once; the request tells what has come.
    #[pyo3(signature = (peer, context, tag, addr, nbytes, keep=None, /))]
    #[allow(clippy::too_many_arguments)] // They are those of the message.
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
            _ => Some(u32::try_from(peer).map_err(|_| invalid(format!("{peer} is not a rank")))?),
        };
        let tag = (tag != -1).then_some(tag);
        self.post(py, keep, |p2p| {
            // SAFETY: whoever calls vouches for the memory, until the request is done.
            unsafe { p2p.recv(from.map(Rank), context, tag, addr as *mut u8, nbytes) }
        })
    }

    /// The same communicator with options for the calls that are made with this object.
    #[pyo3(signature = (timeout=None, algorithm=None, segments=None, numerics=None))]
    fn _with_options(
        &self,
        timeout: Option<f64>,
        algorithm: Option<String>,
        segments: Option<u32>,
        numerics: Option<&str>,
    ) -> PyResult<Made> {
        let mut options = with_timeout(&self.options, timeout)?;
        options.algorithm = algorithm.or(options.algorithm);
        options.segments = segments.unwrap_or(options.segments);
        if let Some(name) = numerics {
            options.numerics = Some(parsed(name)?);
        }
        options.check().map_err(|error| raised(&error))?;
        Ok(Made { state: Arc::clone(&self.state), options })
    }

    /// Ends the communicator for good, from any thread and promptly: calls in progress and all later ones raise
    /// AbortedError here, and an error on the other ranks.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        check_fork()?;
        py.detach(|| self.state.abort());
        Ok(())
    }

    /// Waits for what was issued, then closes this rank's part of the communicator. Every further call raises an error;
    /// closing again does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        check_fork()?;
        if self.state.is_closed.swap(true, Relaxed) {
            return Ok(());
        }
        let state = Arc::clone(&self.state);
        let closed = aside(py, move || state.finish());
        closed.inspect_err(|_| py.detach(|| self.state.abort()))
    }

    /// Was it closed on this rank?
    #[getter]
    fn is_closed(&self) -> bool {
        self.state.is_closed.load(Relaxed)
    }

    /// What has made the communicator fail, if it has: an exception, not raised.
    fn async_error(&self, py: Python<'_>) -> PyResult<Option<PyErr>> {
        check_fork()?;
        let shared = &self.state.shared;
        Ok(py.detach(|| shared.async_error()).map(|error| raised(&error)))
    }

    /// What has been done so far.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        check_fork()?;
        let shared = &self.state.shared;
        let stats = py.detach(|| shared.stats());
        let told = PyDict::new(py);
        told.set_item("begun", stats.begun)?;
        told.set_item("finished", stats.finished)?;
        told.set_item("links", counted(py, stats.links)?)?;
        let peers = PyDict::new(py);
        for (rank, counters) in stats.peers {
            peers.set_item(rank.0, counted(py, counters)?)?;
        }
        told.set_item("peers", peers)?;
        Ok(told)
    }

    /// The flight recorder as lines of JSON: one about this rank, and one for each of its latest calls, the oldest first.
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

fn parsed(numerics: &str) -> PyResult<Numerics> {
    numerics.parse().map_err(|unknown| raised(&tbccl::Error::UnknownName(unknown)))
}

fn counted<'py>(py: Python<'py>, counters: Counters) -> PyResult<Bound<'py, PyDict>> {
    let told = PyDict::new(py);
    told.set_item("sent_messages", counters.sent_messages)?;
    told.set_item("received_messages", counters.received_messages)?;
    told.set_item("moved_bytes", counters.moved_bytes)?;
    told.set_item("copied_bytes", counters.copied_bytes)?;
    told.set_item("repeated", counters.retransmissions)?;
    told.set_item("renewed", counters.reconnections)?;
    told.set_item("refused", counters.refused)?;
    Ok(told)
}
