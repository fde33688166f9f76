//! Orderly disconnection when a signal ends the process.
//!
//! Some systems keep a process's registrations with a device, until they are restarted, if the process is
//! killed with work in progress. This module handles signals that end the process and for which the program
//! has no handler: it first ends queue pairs and registrations, and then the process, by the same signal.
//!
//! One thread of the process waits for signals, from the first network on. While there is no network, and
//! in a child after a fork, signals have their default action.
//!
//! # Safety
//! The disposition of a signal is only queried, into a buffer of the right size. The fork handler, which runs
//! in the child, only stores to an atomic.

use super::shared_engine::SharedEngine;
use std::{
    io::Read,
    mem::MaybeUninit,
    os::unix::net::UnixStream,
    ptr,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicI32, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

/// Signals that end a process.
const SIGNALS: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];
/// Maximum time that ending the connections may take.
const END_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Watch {
    /// Whether signals have their default action.
    uses_default: Arc<AtomicBool>,
    engines: Mutex<Vec<Weak<SharedEngine>>>,
}

static WATCH: OnceLock<Option<Watch>> = OnceLock::new();

/// Disconnects the engine in order if a signal ends the process, until [`forget`] is called.
pub(super) fn watch(engine: &Arc<SharedEngine>) {
    let Some(watch) = WATCH.get_or_init(|| install().ok()) else { return };
    let mut engines = watch.engines.lock().unwrap_or_else(PoisonError::into_inner);
    engines.push(Arc::downgrade(engine));
    watch.uses_default.store(false, SeqCst);
}

/// Removes an engine that ends.
pub(super) fn forget(engine: &Arc<SharedEngine>) {
    let Some(Some(watch)) = WATCH.get() else { return };
    let mut engines = watch.engines.lock().unwrap_or_else(PoisonError::into_inner);
    let removed = Arc::as_ptr(engine);
    engines.retain(|other| other.as_ptr() != removed);
    watch.uses_default.store(engines.is_empty(), SeqCst);
}

fn install() -> std::io::Result<Watch> {
    let uses_default = Arc::new(AtomicBool::new(true));
    let received = Arc::new(AtomicI32::new(0));
    let (reader, writer) = UnixStream::pair()?;
    for signal in SIGNALS.into_iter().filter(|signal| has_default_action(*signal)) {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&uses_default))?;
        let stored = Arc::clone(&received);
        // SAFETY: the handler only stores to an atomic, which is allowed in a signal handler.
        unsafe { signal_hook::low_level::register(signal, move || stored.store(signal, SeqCst)) }?;
        signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    // SAFETY: the fork handler only stores to an atomic.
    unsafe { libc::pthread_atfork(None, None, Some(restore_default_actions)) };
    thread::Builder::new().name("tbccl-signals".into()).spawn(move || handle_signals(reader, &received))?;
    Ok(Watch { uses_default, engines: Mutex::new(Vec::new()) })
}

/// Restores the default action of signals in a forked child, which does not have the signal thread.
extern "C" fn restore_default_actions() {
    if let Some(Some(watch)) = WATCH.get() {
        watch.uses_default.store(true, SeqCst);
    }
}

/// Returns whether a signal has its default action: it is neither handled nor ignored.
fn has_default_action(signal: i32) -> bool {
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call only queries, into a buffer of the right size, whose content is valid when zeroed.
    let old = unsafe {
        if libc::sigaction(signal, ptr::null(), old.as_mut_ptr()) != 0 {
            return false;
        }
        old.assume_init()
    };
    old.sa_sigaction == libc::SIG_DFL
}

fn handle_signals(mut reader: UnixStream, received: &AtomicI32) {
    let mut byte = [0];
    while reader.read_exact(&mut byte).is_ok() {
        let Some(Some(watch)) = WATCH.get() else { continue };
        let engines = watch.engines.lock().unwrap_or_else(PoisonError::into_inner).clone();
        end_all(&engines);
        let _ = signal_hook::low_level::emulate_default_handler(received.load(SeqCst));
    }
}

/// Ends all engines whose lock becomes free within [`END_TIMEOUT`].
///
/// The locks are never released: a thread in a call waits for its lock until the process ends.
fn end_all(engines: &[Weak<SharedEngine>]) {
    let deadline = Instant::now() + END_TIMEOUT;
    for engine in engines.iter().filter_map(Weak::upgrade) {
        loop {
            if let Some(mut engine) = engine.try_lock() {
                engine.end();
                std::mem::forget(engine);
                break;
            }
            if Instant::now() > deadline {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        // Leaks the `Arc` too. The forgotten guard borrows nothing from it, but the lock stays taken only as
        // long as the engine lives.
        std::mem::forget(engine);
    }
}
