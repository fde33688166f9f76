//! A biased lock: the lock of a shared communicator, which costs its owner thread no atomic operation.
//!
//! An atomic read-modify-write waits until all earlier stores of the thread are visible, and takes about as
//! long as the rest of a call from C. So a [`BiasedLock`] has an owner, the first thread that takes it. The
//! owner announces that it is inside, checks that it is still the owner, and leaves by a plain store. Another
//! thread that wants the lock revokes the ownership for good: it removes the owner, makes all threads of the
//! process pass a fence, and checks whether the former owner is inside. From then on all threads take the
//! lock by an atomic operation. On systems without such a fence (all but Linux) no thread becomes the owner.
//!
//! A lock is never freed: a table that finds one by a handle that may have been freed takes it first and
//! checks afterwards whether it was the right one. While it is taken, the guarded value stays.
//!
//! A thread that leaves checks for waiting threads without a fence between the store and the check. So the
//! two may miss each other, and waiting threads check again every millisecond.
//!
//! Invariants: between taking and leaving no other thread has the lock; leaving publishes all writes in
//! between. A lock belongs to one [`Guarded`] at a time. A thread that took it in error holds it for a moment
//! only.
//!
//! The lock is not fair, and does not order waiting threads; a queue does (`queue`).
//!
//! Source of the bias: Kawachiya, Koseki, Onodera, *Lock Reservation: Java Locks Can Mostly Do Without Atomic
//! Operations*, OOPSLA 2002; of the fence for other threads: membarrier(2).

mod fence;
mod guarded;
#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;

pub(super) use guarded::{Guard, Guarded};

use std::{
    fmt,
    sync::{
        PoisonError,
        atomic::Ordering::{Acquire, Relaxed, Release, SeqCst},
    },
    time::Duration,
};
use transport::sync::{AtomicBool, AtomicU32, AtomicUsize, Condvar, Mutex, light_fence, spin_loop};

/// A biased lock that lives as long as the process.
pub struct BiasedLock {
    /// The thread that takes the lock without an atomic operation, or one of the two constants below. Written
    /// by the thread that holds `taken`.
    owner: AtomicUsize,
    /// Whether the owner holds the lock, or is about to find out that it is no longer the owner.
    inside: AtomicBool,
    /// Whether a thread has taken the lock by an atomic operation.
    taken: AtomicBool,
    /// Number of threads that sleep, or are about to.
    waiting: AtomicU32,
    mutex: Mutex<()>,
    released: Condvar,
}

/// Value of `owner` without an owner: the next thread becomes the owner.
const NO_OWNER: usize = 0;

/// Value of `owner` after a revocation: no thread becomes the owner any more.
const REVOKED: usize = 1;

/// Longest sleep before a waiting thread checks again.
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// Attempts before a waiting thread sleeps.
const SPINS: u32 = if cfg!(loom) { 0 } else { 64 };

/// Returns a number that no other live thread has: the address of a thread-local variable.
#[cfg(not(loom))]
#[inline]
fn this_thread() -> usize {
    thread_local! {
        static OWN: u64 = const { 0 };
    }
    OWN.with(|own| std::ptr::from_ref(own).addr())
}

/// Returns a number that no other thread of the model has: Loom's threads share thread-local variables.
#[cfg(loom)]
fn this_thread() -> usize {
    1 + transport::sync::model::thread_number()
}

impl BiasedLock {
    fn new() -> BiasedLock {
        BiasedLock {
            owner: AtomicUsize::new(if fence::is_available() { NO_OWNER } else { REVOKED }),
            inside: AtomicBool::new(false),
            taken: AtomicBool::new(false),
            waiting: AtomicU32::new(0),
            mutex: Mutex::new(()),
            released: Condvar::new(),
        }
    }

    /// Returns a lock of its own, for models.
    #[cfg(loom)]
    #[must_use]
    pub fn leaked() -> &'static BiasedLock {
        Box::leak(Box::new(BiasedLock::new()))
    }

    /// Takes the lock if no thread holds it.
    #[inline]
    pub fn try_take(&'static self) -> Option<BiasedGuard> {
        let us = this_thread();
        // Acquire, since another thread may have held the lock before, or had this thread's number.
        if self.owner.load(Relaxed) == us && !self.inside.load(Acquire) {
            self.inside.store(true, Relaxed);
            // The processor may perform the check before the store is visible: the revoking thread then makes
            // this one pass a fence, and finds it inside if the fence came after the check.
            light_fence();
            if self.owner.load(Relaxed) == us {
                return Some(BiasedGuard { biased_lock: self, as_owner: true });
            }
            self.inside.store(false, Release);
        }
        self.try_take_atomically(us)
    }

    fn try_take_atomically(&'static self, us: usize) -> Option<BiasedGuard> {
        self.taken.compare_exchange(false, true, Acquire, Relaxed).ok()?;
        let as_owner = match self.owner.load(Relaxed) {
            NO_OWNER => {
                self.inside.store(true, Relaxed);
                self.owner.store(us, Relaxed);
                true
            }
            owner => {
                if owner != REVOKED && owner != us {
                    self.revoke_ownership();
                }
                // The owner, current or former, may be inside.
                if !self.inside.load(Acquire) {
                    return Some(BiasedGuard { biased_lock: self, as_owner: false });
                }
                false
            }
        };
        // No thread is woken: waiting threads check again in any case.
        self.taken.store(false, Release);
        // The guard is created only if the lock was taken, since dropping a guard releases the lock.
        as_owner.then(|| BiasedGuard { biased_lock: self, as_owner })
    }

    /// Revokes the ownership: the former owner takes the lock by an atomic operation from now on.
    #[cold]
    fn revoke_ownership(&self) {
        self.owner.store(REVOKED, SeqCst);
        fence::fence_all_threads();
    }

    /// Takes the lock, and waits until it is released if necessary.
    pub fn take(&'static self) -> BiasedGuard {
        self.try_take().unwrap_or_else(|| self.wait())
    }

    #[cold]
    fn wait(&'static self) -> BiasedGuard {
        for _ in 0..SPINS {
            spin_loop();
            if let Some(taken) = self.try_take() {
                return taken;
            }
        }
        self.waiting.fetch_add(1, SeqCst);
        let mut sleep = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = loop {
            match self.try_take() {
                Some(taken) => break taken,
                None => {
                    let woken = self.released.wait_timeout(sleep, MAX_SLEEP);
                    sleep = woken.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        };
        self.waiting.fetch_sub(1, Relaxed);
        taken
    }

    #[cold]
    fn wake(&self) {
        // Under the mutex, so that a thread that has failed to take the lock is asleep, not about to be.
        drop(self.mutex.lock().unwrap_or_else(PoisonError::into_inner));
        self.released.notify_one();
    }
}

impl fmt::Debug for BiasedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_taken = self.taken.load(Relaxed) || self.inside.load(Relaxed);
        f.debug_struct("BiasedLock").field("taken", &is_taken).finish_non_exhaustive()
    }
}

/// A held lock; dropping it releases the lock.
#[derive(Debug)]
#[must_use = "dropping it leaves the biased_lock"]
pub struct BiasedGuard {
    biased_lock: &'static BiasedLock,
    as_owner: bool,
}

impl Drop for BiasedGuard {
    #[inline]
    fn drop(&mut self) {
        let word = if self.as_owner { &self.biased_lock.inside } else { &self.biased_lock.taken };
        word.store(false, Release);
        if self.biased_lock.waiting.load(Relaxed) > 0 {
            self.biased_lock.wake();
        }
    }
}
