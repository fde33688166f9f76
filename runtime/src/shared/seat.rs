//! The lock of a communicator that threads share. It costs the one thread that uses it no atomic step.
//!
//! An atomic step waits until all that the thread has written before has arrived, and takes about as long as all else that a
//! call from C costs. So a [`Seat`] has a favourite, the first thread that takes it, which says that it is inside, looks whether it
//! is still the favourite, and leaves by a plain store. Another thread that wants the seat ends that for good: it says that
//! there is no favourite any more, has all threads of the process pass a fence, and looks whether the favourite is inside.
//! From then on all take it by an atomic step. Where a system has no such fence for others (all but Linux), nobody becomes a
//! favourite.
//!
//! A seat is never given back to the system: a table that finds one by a handle that may have been freed takes it first and
//! asks afterwards whether it was the right one. While it is taken, what it guards stays.
//!
//! Whoever leaves looks whether somebody waits, without a fence between the store and the look; so the two may miss each
//! other, and who waits looks again every millisecond.
//!
//! Invariants: between taking and leaving nobody else has the seat; leaving publishes all that was written meanwhile. A
//! seat is lent to one [`Guarded`] at a time. A stranger that took it in error holds it for a moment only.
//!
//! What it does not do: it is not fair, and does not order who waits; a queue does (`queue`).
//!
//! Source of the favourite: Kawachiya, Koseki, Onodera, *Lock Reservation: Java Locks Can Mostly Do Without Atomic
//! Operations*, OOPSLA 2002; of the fence for others: membarrier(2).

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

/// What one thread at a time may take. There as long as the process.
pub struct Seat {
    /// The thread that takes it without an atomic step, or one of the two below. Written by who has `taken`.
    favourite: AtomicUsize,
    /// Has the favourite taken it, or is about to see that it is none any more?
    inside: AtomicBool,
    /// Has somebody taken it by an atomic step?
    taken: AtomicBool,
    /// How many threads sleep, or are about to.
    waiting: AtomicU32,
    sleeping: Mutex<()>,
    left: Condvar,
}

/// There is no favourite: the next thread will be it.
const VACANT: usize = 0;

/// There is no favourite, and there will be none.
const SHARED: usize = 1;

/// How long a thread sleeps that nobody wakes.
const NAP: Duration = Duration::from_millis(1);

/// How often a thread looks before it sleeps.
const LOOKS: u32 = 64;

/// A number that no other living thread has: where something is that each has for itself.
#[inline]
fn this_thread() -> usize {
    thread_local! {
        static OWN: u64 = const { 0 };
    }
    OWN.with(|own| ptr::from_ref(own).addr())
}

impl Seat {
    fn new() -> Seat {
        Seat {
            favourite: AtomicUsize::new(if fence::others_can() { VACANT } else { SHARED }),
            inside: AtomicBool::new(false),
            taken: AtomicBool::new(false),
            waiting: AtomicU32::new(0),
            sleeping: Mutex::new(()),
            left: Condvar::new(),
        }
    }

    /// Takes the seat if nobody has it.
    #[inline]
    pub fn try_take(&'static self) -> Option<Taken> {
        let us = this_thread();
        // Acquired, since another thread may have left what we took, or had our number before us.
        if self.favourite.load(Relaxed) == us && !self.inside.load(Acquire) {
            self.inside.store(true, Relaxed);
            // The processor may still look before the store has arrived: then who ends this has us pass a fence, and
            // finds us inside if that came after our look.
            compiler_fence(SeqCst);
            if self.favourite.load(Relaxed) == us {
                return Some(Taken { seat: self, as_favourite: true });
            }
            self.inside.store(false, Release);
        }
        self.try_take_by_atomic_step(us)
    }

    fn try_take_by_atomic_step(&'static self, us: usize) -> Option<Taken> {
        self.taken.compare_exchange(false, true, Acquire, Relaxed).ok()?;
        let as_favourite = match self.favourite.load(Relaxed) {
            VACANT => {
                self.inside.store(true, Relaxed);
                self.favourite.store(us, Relaxed);
                true
            }
            favourite => {
                if favourite != SHARED && favourite != us {
                    self.end_favour();
                }
                // The favourite, former or not, may be inside.
                if !self.inside.load(Acquire) {
                    return Some(Taken { seat: self, as_favourite: false });
                }
                false
            }
        };
        // Without waking anybody: who waits may be who asks, and looks again in any case.
        self.taken.store(false, Release);
        // Made only where there is one, since dropping it leaves the seat.
        as_favourite.then(|| Taken { seat: self, as_favourite })
    }

    /// From now on the favourite takes it as all do, when it has left.
    #[cold]
    fn end_favour(&self) {
        self.favourite.store(SHARED, SeqCst);
        fence::others();
    }

    /// Takes the seat, when it is left.
    pub fn take(&'static self) -> Taken {
        self.try_take().unwrap_or_else(|| self.wait())
    }

    #[cold]
    fn wait(&'static self) -> Taken {
        for _ in 0..LOOKS {
            hint::spin_loop();
            if let Some(taken) = self.try_take() {
                return taken;
            }
        }
        self.waiting.fetch_add(1, SeqCst);
        let mut sleep = self.sleeping.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = loop {
            match self.try_take() {
                Some(taken) => break taken,
                None => {
                    let woken = self.left.wait_timeout(sleep, NAP);
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
        drop(self.sleeping.lock().unwrap_or_else(PoisonError::into_inner));
        self.left.notify_one();
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_taken = self.taken.load(Relaxed) || self.inside.load(Relaxed);
        f.debug_struct("Seat").field("taken", &is_taken).finish_non_exhaustive()
    }
}

/// A seat that was taken; dropping this leaves it.
#[derive(Debug)]
#[must_use = "dropping it leaves the seat"]
pub struct Taken {
    seat: &'static Seat,
    as_favourite: bool,
}

impl Drop for Taken {
    #[inline]
    fn drop(&mut self) {
        let word = if self.as_favourite { &self.seat.inside } else { &self.seat.taken };
        word.store(false, Release);
        if self.seat.waiting.load(Relaxed) > 0 {
            self.seat.wake();
        }
    }
}
