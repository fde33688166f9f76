//! Interruption of waits by Python's signals, and detection of forks.
//!
//! Python runs signal handlers on its main thread, when that thread holds the GIL. A wait therefore takes the
//! GIL from time to time and checks whether a handler raised an exception, as for Ctrl-C. Inside a call the
//! library does so through [`is_interrupted`]; the exception is stored for the calling thread, which raises
//! it in place of the call's error. A handler may itself make calls that wait: waits nest. Calls on other
//! threads never take the GIL, which another thread may hold while it waits for them.
//!
//! A child forked from a process with communicators has none of its threads, and its peers take it for its
//! parent. In such a child every function fails, and nothing whose destructor waits for a thread is dropped.

use crate::{
    errors::{internal_error, resource_error, usage_error},
    waits,
};
use pyo3::prelude::*;
use std::{
    cell::{Cell, RefCell},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};
use tbccl::forks;

/// Interval at which a wait checks for signals; the longest delay of a Ctrl-C.
pub(crate) const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(50);

thread_local! {
    /// Time of this thread's last check for signals.
    static LAST_SIGNAL_CHECK: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Whether this is Python's main thread, once known.
    static IS_MAIN: Cell<Option<bool>> = const { Cell::new(None) };
    /// Exception that a signal handler raised during the call.
    static PENDING_EXCEPTION: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Whether a signal handler raised an exception on this thread, which waits for a call.
///
/// The library calls this several times per second.
pub(crate) fn is_interrupted() -> bool {
    if !waits::is_in_call() || IS_MAIN.get() == Some(false) {
        // The progress thread runs queued calls: a thread that waits for them checks by itself. Handlers run
        // on the main thread only.
        return false;
    }
    let now = Instant::now();
    if LAST_SIGNAL_CHECK.get().is_some_and(|last| now.duration_since(last) < SIGNAL_POLL_INTERVAL) {
        return false;
    }
    LAST_SIGNAL_CHECK.set(Some(now));
    let Some(Err(exception)) = Python::try_attach(|py| py.check_signals()) else { return false };
    PENDING_EXCEPTION.set(Some(exception));
    true
}

/// Runs a call without the GIL, as the innermost listed wait of this thread. An exception of a signal handler
/// takes the place of its result.
#[inline]
pub(crate) fn run_interruptible<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> PyResult<T> {
    if IS_MAIN.get().is_none() {
        find_main_thread(py);
    }
    let done = py.detach(call);
    match PENDING_EXCEPTION.take() {
        None => Ok(done),
        Some(exception) => Err(exception),
    }
}

/// Finds out whether this is Python's main thread. If Python can't tell, it may be.
#[cold]
fn find_main_thread(py: Python<'_>) {
    let is_main = || -> PyResult<bool> {
        let threading = py.import("threading")?;
        let ident = threading.call_method0("get_ident")?;
        threading.call_method0("main_thread")?.getattr("ident")?.eq(ident)
    };
    IS_MAIN.set(Some(is_main().unwrap_or(true)));
}

/// Runs uninterruptible work on a thread of its own, and waits for it.
///
/// If a signal handler raises an exception, returns the exception at once. The work then finishes by itself,
/// and its result is dropped.
pub(crate) fn run_on_thread<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (done, result) = mpsc::sync_channel(1);
    let run = move || {
        // Fails only if the caller was interrupted and no longer waits.
        let _ = done.send(work());
    };
    thread::Builder::new()
        .name("tbccl-python".into())
        .spawn(run)
        .map_err(|error| resource_error(&format!("can't start a thread: {error}")))?;
    let result = std::sync::Mutex::new(result);
    loop {
        let received = py.detach(|| {
            let result = result.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            result.recv_timeout(SIGNAL_POLL_INTERVAL)
        });
        match received {
            Ok(done) => return Ok(done),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(internal_error("a thread has panicked; see stderr"));
            }
        }
    }
}

/// Starts fork detection: from now on a forked child cannot use the library.
///
/// The handler may stay registered, since Python never unloads the extension module.
pub(crate) use forks::register_handler as register_fork_handler;

/// Whether this process is such a child.
pub(crate) use forks::is_child as is_forked;

/// Fails with a UsageError in a forked child.
#[inline]
pub(crate) fn check_fork() -> PyResult<()> {
    if is_forked() { Err(forked()) } else { Ok(()) }
}

#[cold]
fn forked() -> PyErr {
    usage_error(&format!(
        "{}: fork before the first communicator is made, or start processes afresh (multiprocessing: \
         set_start_method(\"spawn\"))",
        forks::FORKED
    ))
}
