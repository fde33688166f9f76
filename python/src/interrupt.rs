//! What may come in the way of a wait: Python's signals, and forks.
//!
//! Python's handlers of signals run on its main thread, when that has Python's lock. So whoever waits takes the lock now and
//! then and asks whether a handler has raised something, as Ctrl-C does. Inside a call the library asks ([`is_interrupted`]);
//! what the handler raised is kept for the thread that made the call, and comes out of it in the place of the error.
//!
//! A child that was forked from a process with communicators has none of its threads, and its peers take it for its
//! parent: everything is refused there, and nothing is dropped that would wait for a thread.

use crate::errors::{defect, resource, usage};
use pyo3::prelude::*;
use std::{
    cell::{Cell, RefCell},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};
use tbccl::forks;

/// How often a wait looks for signals. A Ctrl-C is heard within so much.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

thread_local! {
    /// Is this thread in a call that Python waits for?
    static WAITS: Cell<bool> = const { Cell::new(false) };
    /// When it last looked for signals.
    static LOOKED: Cell<Option<Instant>> = const { Cell::new(None) };
    /// What a handler of a signal has raised meanwhile.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Has a signal's handler raised something on this thread, which waits for a call? The library asks this, several times
/// per second.
pub(crate) fn is_interrupted() -> bool {
    if !WAITS.get() {
        // The thread of the library that makes queued calls: who waits for them asks for itself.
        return false;
    }
    let now = Instant::now();
    if LOOKED.get().is_some_and(|last| now.duration_since(last) < LOOK) {
        return false;
    }
    LOOKED.set(Some(now));
    let Some(Err(raised)) = Python::try_attach(|py| py.check_signals()) else { return false };
    RAISED.set(Some(raised));
    true
}

/// Does a call without Python's lock. What a signal's handler raised meanwhile comes in the place of its result.
#[inline]
pub(crate) fn waiting<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> PyResult<T> {
    let done = py.detach(|| {
        WAITS.set(true);
        let done = call();
        WAITS.set(false);
        done
    });
    match RAISED.take() {
        None => Ok(done),
        Some(raised) => Err(raised),
    }
}

/// Does work that nobody can be asked out of on a thread of its own, and waits for it. When a signal's handler raises
/// something, that is returned at once: the work ends by itself, and what it has made is dropped.
pub(crate) fn aside<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (done, result) = mpsc::sync_channel(1);
    let run = move || {
        // Nobody waits for it any more if this fails.
        let _ = done.send(work());
    };
    thread::Builder::new()
        .name("tbccl-aside".into())
        .spawn(run)
        .map_err(|error| resource(&format!("starting a thread: {error}")))?;
    let result = std::sync::Mutex::new(result);
    loop {
        let heard = py.detach(|| {
            let result = result.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            result.recv_timeout(LOOK)
        });
        match heard {
            Ok(done) => return Ok(done),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => return Err(defect("a thread has panicked; see stderr")),
        }
    }
}

/// From now on a child that is forked from this process is told that it can't use the library. Python never unloads the
/// extension module.
pub(crate) use forks::notice as notice_forks;

/// Is this such a child?
pub(crate) use forks::is_child as is_forked;

/// Refuses to do anything in such a child.
#[inline]
pub(crate) fn check_fork() -> PyResult<()> {
    if is_forked() { Err(forked()) } else { Ok(()) }
}

#[cold]
fn forked() -> PyErr {
    usage(&format!(
        "{}: fork before the first communicator is made, or start processes afresh (multiprocessing: \
         set_start_method(\"spawn\"))",
        forks::FORKED
    ))
}
