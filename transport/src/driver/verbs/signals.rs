//! Ending connections in order when a signal ends the process.
//!
//! Some systems keep what a process had registered with a device when it is killed with work under way, until they are
//! restarted. So when a signal that ends the process comes, and the program has no handler of its own for it, queue
//! pairs and registrations are ended first, and then the process, by that signal.
//!
//! One thread of the process waits for signals, from the first endpoint on. While there is no endpoint, and in a child
//! after a fork, signals do what they do by default.
//!
//! # Safety
//! The disposition of a signal is asked for with room for the answer. What runs in a forked child only stores to an
//! atomic.

use super::engine::Engine;
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
const ENDING: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];
/// How long connections may take to end.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Watch {
    /// Signals do what they do by default.
    default: Arc<AtomicBool>,
    engines: Mutex<Vec<Weak<Mutex<Engine>>>>,
}

static WATCH: OnceLock<Option<Watch>> = OnceLock::new();

/// Ends this engine in order should a signal end the process, until [`forget`] is called.
pub(super) fn watch(engine: &Arc<Mutex<Engine>>) {
    let Some(watch) = WATCH.get_or_init(|| install().ok()) else { return };
    let mut engines = watch.engines.lock().unwrap_or_else(PoisonError::into_inner);
    engines.push(Arc::downgrade(engine));
    watch.default.store(false, SeqCst);
}

/// The engine has ended.
pub(super) fn forget(engine: &Arc<Mutex<Engine>>) {
    let Some(Some(watch)) = WATCH.get() else { return };
    let mut engines = watch.engines.lock().unwrap_or_else(PoisonError::into_inner);
    let gone = Arc::as_ptr(engine);
    engines.retain(|other| other.as_ptr() != gone);
    watch.default.store(engines.is_empty(), SeqCst);
}

fn install() -> std::io::Result<Watch> {
    let default = Arc::new(AtomicBool::new(true));
    let which = Arc::new(AtomicI32::new(0));
    let (reader, writer) = UnixStream::pair()?;
    for signal in ENDING.into_iter().filter(|signal| is_default(*signal)) {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&default))?;
        let noted = Arc::clone(&which);
        // SAFETY: stores to an atomic, which is allowed in a signal handler.
        unsafe { signal_hook::low_level::register(signal, move || noted.store(signal, SeqCst)) }?;
        signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    // SAFETY: the function only stores to an atomic.
    unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) };
    thread::Builder::new().name("tbccl-signals".into()).spawn(move || wait(reader, &which))?;
    Ok(Watch { default, engines: Mutex::new(Vec::new()) })
}

/// The thread is the parent's.
extern "C" fn in_the_child() {
    if let Some(Some(watch)) = WATCH.get() {
        watch.default.store(true, SeqCst);
    }
}

/// Has nobody a handler for this signal, and is it not ignored?
fn is_default(signal: i32) -> bool {
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only, with room for the answer, which is valid when it was zeroed.
    let old = unsafe {
        if libc::sigaction(signal, ptr::null(), old.as_mut_ptr()) != 0 {
            return false;
        }
        old.assume_init()
    };
    old.sa_sigaction == libc::SIG_DFL
}

fn wait(mut reader: UnixStream, which: &AtomicI32) {
    let mut byte = [0];
    while reader.read_exact(&mut byte).is_ok() {
        let Some(Some(watch)) = WATCH.get() else { continue };
        let engines = watch.engines.lock().unwrap_or_else(PoisonError::into_inner).clone();
        end_all(&engines);
        let _ = signal_hook::low_level::emulate_default_handler(which.load(SeqCst));
    }
}

/// Ends all engines. Whoever is in a call meanwhile waits for the lock, which is not given back: the process ends.
fn end_all(engines: &[Weak<Mutex<Engine>>]) {
    let until = Instant::now() + PATIENCE;
    for engine in engines.iter().filter_map(Weak::upgrade) {
        loop {
            if let Ok(mut engine) = engine.try_lock() {
                engine.end();
                std::mem::forget(engine);
                break;
            }
            if Instant::now() > until {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        // The guard that was forgotten borrows nothing from it, but the lock stays taken as long as it lives.
        std::mem::forget(engine);
    }
}
