//! A biased lock: the lock of a shared communicator, which costs the one thread that uses it no atomic
//! operation.
//!
//! An atomic operation waits until all earlier stores of the thread have arrived, and takes about as long as
//! all else that a call from C costs. So a [`BiasedLock`] has an owner, the first thread that takes it, which
//! announces that it is inside, checks that it is still the owner, and leaves by a plain store. Another
//! thread that wants the lock revokes the ownership for good: it removes the owner, makes all threads of the
//! process pass a fence, and checks whether the former owner is inside. From then on all threads take the
//! lock by an atomic operation. On systems without such a fence (all but Linux) no thread becomes the owner.
//!
//! A lock is never freed: a table that finds one by a handle that may have been freed takes it first and
//! checks afterwards whether it was the right one. While it is taken, the guarded value stays.
//!
//! A thread that leaves checks for waiting threads without a fence between the store and the check; so the
//! two may miss each other, and waiting threads check again every millisecond.
//!
//! Invariants: between taking and leaving no other thread has the lock; leaving publishes all writes in
//! between. A lock is lent to one [`Guarded`] at a time. A thread that took it in error holds it for a moment
//! only.
//!
//! The lock is not fair, and does not order waiting threads; a queue does (`queue`).
//!
//! Source of the bias: Kawachiya, Koseki, Onodera, *Lock Reservation: Java Locks Can Mostly Do Without Atomic
//! Operations*, OOPSLA 2002; of the fence for other threads: membarrier(2).

mod fence;
mod guarded;
#[cfg(test)]
mod tests;

pub(super) use guarded::{Guard, Guarded};

use std::{
    fmt, hint, ptr,
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{
            AtomicBool, AtomicU32, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release, SeqCst},
            compiler_fence,
        },
    },
    time::Duration,
};

/// A lock that lives as long as the process.
pub struct BiasedLock {
    /// The thread that takes it without an atomic step, or one of the two below. Written by who has `taken`.
    owner: AtomicUsize,
    /// Whether the owner has taken it, or is about to find out that it is no longer the owner.
    inside: AtomicBool,
    /// Whether a thread has taken it by an atomic operation.
    taken: AtomicBool,
    /// How many threads sleep, or are about to.
    waiting: AtomicU32,
    mutex: Mutex<()>,
    released: Condvar,
}

/// There is no owner: the next thread becomes it.
const NO_OWNER: usize = 0;

/// There is no owner, and there will be none.
const REVOKED: usize = 1;

/// How long a thread sleeps that nobody wakes.
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// How often a thread looks before it sleeps.
const SPINS: u32 = 64;

/// Returns a number that no other living thread has: the address of a thread-local variable.
#[inline]
fn this_thread() -> usize {
    thread_local! {
        static OWN: u64 = const { 0 };
    }
    OWN.with(|own| ptr::from_ref(own).addr())
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

    /// Takes the biased_lock if nobody has it.
    #[inline]
    pub fn try_take(&'static self) -> Option<BiasedGuard> {
        let us = this_thread();
        // Acquired, since another thread may have released what we took, or had our number before us.
        if self.owner.load(Relaxed) == us && !self.inside.load(Acquire) {
            self.inside.store(true, Relaxed);
            // The processor may still perform the check before the store has arrived: the revoking thread
            // then makes this one pass a fence, and finds it inside if the fence came after the check.
            compiler_fence(SeqCst);
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
                // The owner, former or not, may be inside.
                if !self.inside.load(Acquire) {
                    return Some(BiasedGuard { biased_lock: self, as_owner: false });
                }
                false
            }
        };
        // No thread is woken: waiting threads check again in any case.
        self.taken.store(false, Release);
        // Made only where there is one, since dropping it leaves the biased_lock.
        as_owner.then(|| BiasedGuard { biased_lock: self, as_owner })
    }

    /// From now on the owner takes it as all do, when it has released.
    #[cold]
    fn revoke_ownership(&self) {
        self.owner.store(REVOKED, SeqCst);
        fence::fence_all_threads();
    }

    /// Takes the biased_lock, when it is released.
    pub fn take(&'static self) -> BiasedGuard {
        self.try_take().unwrap_or_else(|| self.wait())
    }

    #[cold]
    fn wait(&'static self) -> BiasedGuard {
        for _ in 0..SPINS {
            hint::spin_loop();
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
        // Under the lock, so that who has looked in vain is asleep, and not about to be.
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

/// A biased_lock that was taken; dropping this leaves it.
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
