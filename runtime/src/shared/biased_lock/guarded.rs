//! A value behind a biased lock, which comes from a pool.
//!
//! # Safety
//! A guarded value is used by the thread that holds its lock, one at a time. References to it borrow the
//! guard ([`Guard`]), or borrow the lock's guard exclusively ([`Guarded::borrow`]).

use super::{BiasedGuard, BiasedLock, NO_OWNER, this_thread};
use std::{
    cell::UnsafeCell,
    fmt, mem,
    ops::{Deref, DerefMut},
    ptr,
    sync::{PoisonError, atomic::Ordering::Relaxed},
    thread,
};
use transport::sync::{self, AtomicBool, Mutex};

/// Locks that no value uses.
static FREE: Mutex<Vec<&'static BiasedLock>> = Mutex::new(Vec::new());

/// A lock of the pool; dropping this returns it to the pool.
#[derive(Debug)]
struct PooledLock(&'static BiasedLock);

impl PooledLock {
    /// Returns a lock that this thread owns or can own, unless the pool has many locks of other owners.
    ///
    /// A lock has one owner in its lifetime, so that an error of one owner is never attributed to another.
    fn new() -> PooledLock {
        const MAX_FREE: usize = 64;
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let us = this_thread();
        let suits =
            |biased_lock: &&'static BiasedLock| [us, NO_OWNER].contains(&biased_lock.owner.load(Relaxed));
        let at = free.iter().position(suits).or((free.len() >= MAX_FREE).then_some(0));
        PooledLock(match at {
            Some(at) => free.swap_remove(at),
            None => Box::leak(Box::new(BiasedLock::new())),
        })
    }
}

impl Drop for PooledLock {
    fn drop(&mut self) {
        // A run of a model does not depend on those before.
        if !cfg!(loom) {
            FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
        }
    }
}

/// A value for the thread that holds its lock.
pub(crate) struct Guarded<T> {
    biased_lock: PooledLock,
    /// Whether a thread has panicked while it held the lock. Written while the lock is held.
    poisoned: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time accesses the value, any of them, so it need not be `Sync`; all other fields
// are atomic.
unsafe impl<T: Send> Sync for Guarded<T> {}

/// A value whose lock is held until this is dropped.
pub(crate) struct Guard<'g, T> {
    guarded: &'g Guarded<T>,
    /// Whether the thread was panicking before.
    panicked: bool,
    /// Released after everything else.
    _taken: BiasedGuard,
}

/// A value borrowed by a thread that holds the value's lock. It must be ended by [`Borrowed::end`]: dropping
/// it reports a panic.
pub(crate) struct Borrowed<'g, T> {
    pub(crate) value: &'g mut T,
    on_panic: PoisonOnDrop<'g>,
}

impl<T> Borrowed<'_, T> {
    /// Ends the use of the value without a panic.
    #[inline(always)] // As `Guarded::borrow`.
    pub(crate) fn end(self) {
        mem::forget(self.on_panic);
    }
}

impl<T> Guarded<T> {
    pub(crate) fn new(value: T) -> Guarded<T> {
        Guarded {
            biased_lock: PooledLock::new(),
            poisoned: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Guards a value by a lock that is not of the pool.
    #[cfg(all(test, loom))]
    pub(super) fn with_lock(biased_lock: &'static BiasedLock, value: T) -> Guarded<T> {
        Guarded {
            biased_lock: PooledLock(biased_lock),
            poisoned: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Returns the lock, which outlives the value.
    pub(crate) fn biased_lock(&self) -> &'static BiasedLock {
        self.biased_lock.0
    }

    /// Borrows the value for a thread that holds its lock; `None` for one that holds another lock.
    #[inline(always)] // The value is used for a call that takes some dozens of nanoseconds.
    pub(crate) fn borrow<'g>(&'g self, taken: &'g mut BiasedGuard) -> Option<Borrowed<'g, T>> {
        if !ptr::eq(taken.biased_lock, self.biased_lock.0) {
            return None;
        }
        sync::mark_write(self.value.get().cast(), size_of::<T>());
        // SAFETY: the caller holds the value's lock, and lends its guard for as long as the value is
        // borrowed.
        let value = unsafe { &mut *self.value.get() };
        Some(Borrowed { value, on_panic: PoisonOnDrop(&self.poisoned) })
    }

    /// Returns the value, if no thread holds its lock.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.biased_lock.0.try_take().map(|taken| self.guard(taken))
    }

    /// Returns the value, once no thread holds its lock.
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.guard(self.biased_lock.0.take())
    }

    /// Returns the guard of this value's own lock.
    #[inline]
    fn guard(&self, taken: BiasedGuard) -> Guard<'_, T> {
        Guard { guarded: self, panicked: thread::panicking(), _taken: taken }
    }

    /// Whether a thread has panicked while it held the lock.
    #[inline]
    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Relaxed)
    }
}

/// Marks the value as poisoned when dropped, i.e. when a panic unwinds.
struct PoisonOnDrop<'g>(&'g AtomicBool);

impl Drop for PoisonOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if thread::panicking() && !self.panicked {
            self.guarded.poisoned.store(true, Relaxed);
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        sync::mark_read(self.guarded.value.get().cast(), size_of::<T>());
        // SAFETY: the guard holds the value's lock.
        unsafe { &*self.guarded.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        sync::mark_write(self.guarded.value.get().cast(), size_of::<T>());
        // SAFETY: as for `deref`; the guard is borrowed exclusively.
        unsafe { &mut *self.guarded.value.get() }
    }
}

impl<T> fmt::Debug for Guarded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let poisoned = self.is_poisoned();
        f.debug_struct("Guarded")
            .field("biased_lock", self.biased_lock.0)
            .field("poisoned", &poisoned)
            .finish_non_exhaustive()
    }
}
