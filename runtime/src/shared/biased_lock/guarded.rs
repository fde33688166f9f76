//! A value behind a biased lock, which is lent to it.
//!
//! # Safety
//! A guarded value is used by the thread that holds the lock lent to it, and by one at a time: it is borrowed
//! from the guard ([`Guard`]), or as long as the guard is borrowed exclusively ([`Guarded::borrow`]).

use super::{BiasedGuard, BiasedLock, NO_OWNER, this_thread};
use std::{
    cell::UnsafeCell,
    fmt, mem,
    ops::{Deref, DerefMut},
    ptr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

/// Seats that are lent to nobody.
static FREE: Mutex<Vec<&'static BiasedLock>> = Mutex::new(Vec::new());

/// A biased_lock that is lent; dropping this gives it back to be lent again.
#[derive(Debug)]
struct PooledLock(&'static BiasedLock);

impl PooledLock {
    /// Returns a lock that this thread owns or can own, unless there are many free ones of others. A lock
    /// has one owner in all its time, so that an error of one owner is never taken for another one's.
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
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
    }
}

/// A value for the thread that holds its lock.
pub(crate) struct Guarded<T> {
    biased_lock: PooledLock,
    /// Whether a thread has panicked while it held the lock. Written while it is taken.
    poisoned: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time reaches the value, any of them, so it need not be `Sync`; the rest is atomic.
unsafe impl<T: Send> Sync for Guarded<T> {}

/// A value whose lock is held, and released with this.
pub(crate) struct Guard<'g, T> {
    guarded: &'g Guarded<T>,
    /// Did the thread panic before?
    panicked: bool,
    /// Left when all else is done.
    _taken: BiasedGuard,
}

/// A value that a thread uses while it holds the value's lock. To be ended by [`Borrowed::end`]: dropping it
/// says that the thread has panicked.
pub(crate) struct Borrowed<'g, T> {
    pub(crate) value: &'g mut T,
    on_panic: PoisonOnDrop<'g>,
}

impl<T> Borrowed<'_, T> {
    /// Ends the use of the value. There is nothing to look at when no panic has passed.
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

    /// The biased_lock, which outlives the value.
    pub(crate) fn biased_lock(&self) -> &'static BiasedLock {
        self.biased_lock.0
    }

    /// Borrows the value for a thread that holds its lock; `None` for one that holds another lock.
    #[inline(always)] // The value is used for a call that takes some dozens of nanoseconds.
    pub(crate) fn borrow<'g>(&'g self, taken: &'g mut BiasedGuard) -> Option<Borrowed<'g, T>> {
        if !ptr::eq(taken.biased_lock, self.biased_lock.0) {
            return None;
        }
        // SAFETY: the caller holds the lock that is lent to the value, and lends it as long as the value is
        // borrowed.
        let value = unsafe { &mut *self.value.get() };
        Some(Borrowed { value, on_panic: PoisonOnDrop(&self.poisoned) })
    }

    /// The value, if nobody has it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.biased_lock.0.try_take().map(|taken| self.guard(taken))
    }

    /// The value, when nobody has it.
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.guard(self.biased_lock.0.take())
    }

    /// The value, by its own biased_lock.
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

/// Dropped when a panic passes.
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
        // SAFETY: this has the taken biased_lock that is lent to the value.
        unsafe { &*self.guarded.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for `deref`; and this is borrowed exclusively.
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
