//! Communicators: their calls on memory by address, and what there is to ask of them.
//!
//! A call on a communicator that nobody else uses is made on the caller's thread, without Python's lock. Options of calls
//! belong to a view: another object of the same communicator.
//!
//! # Safety
//! Addresses are those of memory that whoever calls keeps alive and as long as it says, until the call is done: the
//! package does that for the objects it is given. Python has no way to say so in types.

use crate::{
    calls::{Counts, Numbers, call, group, scaled, with_timeout},
    errors::{invalid, raised, usage},
    interrupt::{aside, check_fork, is_forked, waiting, wants_out},
    join::Made,
    request::{Issued, Request},
};
use pyo3::{exceptions::PyTypeError, prelude::*, types::PyDict};
use std::{
    borrow::Cow,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};
use tbccl::{CallOptions, Counters, Numerics, P2p, P2pRequest, Rank, RawCall, SharedCommunicator};

/// A communicator, as all objects of it have it.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) shared: SharedCommunicator,
    transport: &'static str,
    /// Tagged messages, which have links of their own; none if the program wants none, and after the end.
    p2p: Mutex<Option<P2p>>,
    /// What must stay alive until calls and messages are done whose requests were dropped.
    kept: Mutex<Vec<(Issued, Py<PyAny>)>>,
    is_closed: AtomicBool,
}

/// The communicators of this process.
static LIVE: Mutex<Vec<Weak<State>>> = Mutex::new(Vec::new());

/// Locks the mutex and ignores poisoning. For data that no panic leaves half changed.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    pub(crate) fn new(comm: tbccl::Communicator, p2p: Option<P2p>) -> Arc<State> {
        let transport = comm.transport();
        let shared = SharedCommunicator::new(comm);
        shared.ask_while_waiting(wants_out);
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
    fn finish(&self) {
        drop(self.shared.finalize());
        let p2p = locked(&self.p2p).take();
        drop(p2p);
    }

    /// Lets go of what was kept for calls that are done.
    fn sweep(&self) {
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

/// Closes all communicators of this process, when the interpreter ends.
#[pyfunction(name = "_close_all")]
pub(crate) fn close_all(py: Python<'_>) {
    if is_forked() {
        return;
    }
    let live: Vec<Arc<State>> = locked(&LIVE).iter().filter_map(Weak::upgrade).collect();
    for state in live {
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

    /// Makes a call on memory by address, and waits until it is done.
    #[pyo3(signature = (what, dtype, op, count, send_addr, recv_addr, root=0, timeout=None, scale=None, /))]
    #[allow(clippy::too_many_arguments)] // They are those of the call.
    fn raw_call(
        &self,
        py: Python<'_>,
        what: i32,
        dtype: i32,
        op: i32,
        count: usize,
        send_addr: usize,
        recv_addr: usize,
        root: i64,
        timeout: Option<f64>,
        scale: Option<f64>,
    ) -> PyResult<()> {
        let numbers = Numbers { what, dtype, op, root };
        let call = call(numbers, Counts::Even(count), send_addr, recv_addr)?;
        match scale {
            None => self.make(py, &call, timeout),
            Some(factor) => self.make(py, &scaled(&call, factor)?, timeout),
        }
    }

    /// Has the same call made later, after all that was issued before; returns at once. What is to be kept alive until it
    /// is done can be given.
    #[pyo3(signature = (what, dtype, op, count, send_addr, recv_addr, root=0, timeout=None, scale=None, keep=None, /))]
    #[allow(clippy::too_many_arguments)] // They are those of the call.
    fn raw_issue(
        &self,
        what: i32,
        dtype: i32,
        op: i32,
        count: usize,
        send_addr: usize,
        recv_addr: usize,
        root: i64,
        timeout: Option<f64>,
        scale: Option<f64>,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<Request> {
        let numbers = Numbers { what, dtype, op, root };
        let call = call(numbers, Counts::Even(count), send_addr, recv_addr)?;
        let call = match scale {
            None => call,
            Some(factor) => scaled(&call, factor)?,
        };
        self.issue(vec![call], timeout, keep)
    }

    /// Makes a call with a count for each block, and waits until it is done. Lists that the call does not need are None.
    #[pyo3(signature = (what, dtype, op, send_counts, recv_counts, send_addr, recv_addr, root=0, timeout=None, /))]
    #[allow(clippy::too_many_arguments)] // They are those of the call.
    fn raw_call_v(
        &self,
        py: Python<'_>,
        what: i32,
        dtype: i32,
        op: i32,
        send_counts: Option<Vec<usize>>,
        recv_counts: Option<Vec<usize>>,
        send_addr: usize,
        recv_addr: usize,
        root: i64,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let numbers = Numbers { what, dtype, op, root };
        let counts = Counts::Uneven { send: send_counts, recv: recv_counts };
        self.make(py, &call(numbers, counts, send_addr, recv_addr)?, timeout)
    }

    /// Has the same call made later; see `raw_issue`.
    #[pyo3(signature = (what, dtype, op, send_counts, recv_counts, send_addr, recv_addr, root=0, timeout=None, keep=None, /))]
    #[allow(clippy::too_many_arguments)] // They are those of the call.
    fn raw_issue_v(
        &self,
        what: i32,
        dtype: i32,
        op: i32,
        send_counts: Option<Vec<usize>>,
        recv_counts: Option<Vec<usize>>,
        send_addr: usize,
        recv_addr: usize,
        root: i64,
        timeout: Option<f64>,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<Request> {
        let numbers = Numbers { what, dtype, op, root };
        let counts = Counts::Uneven { send: send_counts, recv: recv_counts };
        self.issue(vec![call(numbers, counts, send_addr, recv_addr)?], timeout, keep)
    }

    /// Makes calls together: tuples of (what, dtype, op, count, send_addr, recv_addr, root), where the count of a call with
    /// a count for each block is a pair of lists or None, of what is sent and of what is received.
    #[pyo3(signature = (calls, timeout=None, /))]
    fn raw_group(&self, py: Python<'_>, calls: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        check_fork()?;
        let calls = group(calls)?;
        let options = self.options(timeout)?;
        let shared = &self.state.shared;
        // SAFETY: whoever calls vouches for the memory, until this returns.
        waiting(py, || unsafe { shared.call_group(&calls, &options) })?.map_err(|error| raised(&error))
    }

    /// Has calls made together later; see `raw_issue`.
    #[pyo3(signature = (calls, timeout=None, keep=None, /))]
    fn raw_issue_group(
        &self,
        calls: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<Request> {
        self.issue(group(calls)?, timeout, keep)
    }

    /// Sends bytes from an address to a rank, as a message of a context with a tag. Returns at once.
    #[pyo3(signature = (peer, context, tag, addr, nbytes, keep=None, /))]
    #[allow(clippy::too_many_arguments)] // They are those of the message.
    fn raw_isend(
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
    fn raw_irecv(
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
    told.set_item("repeated", counters.repeated)?;
    told.set_item("renewed", counters.renewed)?;
    told.set_item("refused", counters.refused)?;
    Ok(told)
}
