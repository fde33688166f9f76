//! A value behind a biased lock, which is lent to it.
//!
//! # Safety
//! A guarded value is used by the thread that holds the lock lent to it, and by one at a time: it is borrowed
//! from the guard ([`Guard`]), or as long as the guard is borrowed exclusively ([`Guarded::borrow`]).

use super::{Seat, Taken, VACANT, this_thread};
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
static UNUSED: Mutex<Vec<&'static Seat>> = Mutex::new(Vec::new());

/// A seat that is lent; dropping this gives it back to be lent again.
#[derive(Debug)]
struct Lent(&'static Seat);

impl Lent {
    /// Returns a lock that this thread owns or can own, unless there are many unused ones of others. A lock
    /// has one owner in all its time, so that an error of one owner is never taken for another one's.
    fn new() -> Lent {
        const MANY: usize = 64;
        let mut unused = UNUSED.lock().unwrap_or_else(PoisonError::into_inner);
        let us = this_thread();
        let suits = |seat: &&'static Seat| [us, VACANT].contains(&seat.favourite.load(Relaxed));
        let at = unused.iter().position(suits).or((unused.len() >= MANY).then_some(0));
        Lent(match at {
            Some(at) => unused.swap_remove(at),
            None => Box::leak(Box::new(Seat::new())),
        })
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        UNUSED.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
    }
}

/// A value for the thread that holds its lock.
pub(crate) struct Guarded<T> {
    seat: Lent,
    /// Whether a thread has panicked while it held the lock. Written while it is taken.
    broken: AtomicBool,
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
    _taken: Taken,
}

/// A value that a thread uses while it holds the value's lock. To be ended by [`Borrowed::end`]: dropping it
/// says that the thread has panicked.
pub(crate) struct Borrowed<'g, T> {
    pub(crate) value: &'g mut T,
    on_panic: Breaking<'g>,
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
        Guarded { seat: Lent::new(), broken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// The seat, which outlives the value.
    pub(crate) fn seat(&self) -> &'static Seat {
        self.seat.0
    }

    /// Borrows the value for a thread that holds its lock; `None` for one that holds another lock.
    #[inline(always)] // The value is used for a call that takes some dozens of nanoseconds.
    pub(crate) fn borrow<'g>(&'g self, taken: &'g mut Taken) -> Option<Borrowed<'g, T>> {
        if !ptr::eq(taken.seat, self.seat.0) {
            return None;
        }
        // SAFETY: the caller holds the lock that is lent to the value, and lends it as long as the value is
        // borrowed.
        let value = unsafe { &mut *self.value.get() };
        Some(Borrowed { value, on_panic: Breaking(&self.broken) })
    }

    /// The value, if nobody has it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.seat.0.try_take().map(|taken| self.guard(taken))
    }

    /// The value, when nobody has it.
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.guard(self.seat.0.take())
    }

    /// The value, by its own seat.
    #[inline]
    fn guard(&self, taken: Taken) -> Guard<'_, T> {
        Guard { guarded: self, panicked: thread::panicking(), _taken: taken }
    }

    /// Whether a thread has panicked while it held the lock.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Relaxed)
    }
}

/// Dropped when a panic passes.
struct Breaking<'g>(&'g AtomicBool);

impl Drop for Breaking<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if thread::panicking() && !self.panicked {
            self.guarded.broken.store(true, Relaxed);
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this has the taken seat that is lent to the value.
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
        let broken = self.is_broken();
        f.debug_struct("Guarded").field("seat", self.seat.0).field("broken", &broken).finish_non_exhaustive()
    }
}
