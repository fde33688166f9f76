//! The lock of an engine, which all communicators of a process use.

use super::engine::Engine;
use std::{
    sync::{
        Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    thread,
};

/// An engine, and the threads that use it: several communicators of a process may be in calls.
#[derive(Debug)]
pub(super) struct SharedEngine {
    engine: Mutex<Engine>,
    /// Threads that wait for the lock.
    waiting: AtomicU32,
}

impl SharedEngine {
    pub(super) fn new(engine: Engine) -> SharedEngine {
        SharedEngine { engine: Mutex::new(engine), waiting: AtomicU32::new(0) }
    }

    /// Locks the engine. A panic of another thread in a call leaves it usable.
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, Engine> {
        self.try_lock().unwrap_or_else(|| self.lock_contended())
    }

    #[cold]
    fn lock_contended(&self) -> MutexGuard<'_, Engine> {
        self.waiting.fetch_add(1, Relaxed);
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Relaxed);
        engine
    }

    /// Locks the engine, unless another thread has.
    #[inline]
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, Engine>> {
        match self.engine.try_lock() {
            Ok(engine) => Some(engine),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Lets waiting threads have the lock, if there are any. A thread that polls in vain calls this, since it
    /// would lock again at once.
    #[inline]
    pub(super) fn yield_to_waiting(&self) {
        if self.waiting.load(Relaxed) > 0 {
            thread::yield_now();
        }
    }
}
