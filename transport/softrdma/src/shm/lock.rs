//! A robust lock in shared memory: the death of its holder does not block the others.
//!
//! The word names the process that holds the lock. A waiter asks whether that process lives, and takes the
//! lock over if not. The next holder must be able to finish or repeat what the dead one left half done. Each
//! use of the lock documents how.

use crate::sync::{AtomicU64, spin_loop, yield_now};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A process in a fabric: its slot, and the incarnation that tells it from earlier users of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) slot: u32,
    pub(crate) incarnation: u32,
}

impl Owner {
    fn word(self) -> u64 {
        u64::from(self.incarnation) << 32 | u64::from(self.slot + 1)
    }

    fn of(word: u64) -> Owner {
        Owner { slot: (word as u32).wrapping_sub(1), incarnation: (word >> 32) as u32 }
    }
}

/// The lock word: zero when free, else the [`Owner`].
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct RobustLock(AtomicU64);

/// The way in which a lock was acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// The lock was free.
    Free,
    /// The holder was dead. The new holder finishes or repeats its work.
    Stolen,
}

/// A held lock. Dropping it frees the lock.
#[derive(Debug)]
pub(crate) struct RobustGuard<'a> {
    lock: &'a RobustLock,
    pub(crate) acquired: Acquired,
}

impl RobustLock {
    const SPINS: u32 = if cfg!(loom) { 0 } else { 200 };
    const YIELDS: u32 = if cfg!(loom) { 1 } else { 50 };

    /// Waits for the lock. `is_dead` tells whether a holder is dead; it is called only after a long wait.
    #[inline]
    pub(crate) fn lock(&self, me: Owner, is_dead: impl FnMut(Owner) -> bool) -> RobustGuard<'_> {
        let acquired = match self.0.compare_exchange(0, me.word(), Acquire, Relaxed) {
            Ok(_) => Acquired::Free,
            Err(_) => self.wait(me, is_dead),
        };
        RobustGuard { lock: self, acquired }
    }

    #[cold]
    fn wait(&self, me: Owner, mut is_dead: impl FnMut(Owner) -> bool) -> Acquired {
        let mut turn = 0u32;
        loop {
            let holder = self.0.load(Relaxed);
            if holder == 0 {
                if self.0.compare_exchange(0, me.word(), Acquire, Relaxed).is_ok() {
                    return Acquired::Free;
                }
                continue;
            }
            turn = turn.wrapping_add(1);
            if turn < Self::SPINS {
                spin_loop();
                continue;
            }
            yield_now();
            if turn.is_multiple_of(Self::YIELDS)
                && holder != me.word()
                && is_dead(Owner::of(holder))
                && self.0.compare_exchange(holder, me.word(), Acquire, Relaxed).is_ok()
            {
                return Acquired::Stolen;
            }
        }
    }

    /// Returns the present holder.
    pub(crate) fn holder(&self) -> Option<Owner> {
        Some(self.0.load(Acquire)).filter(|&word| word != 0).map(Owner::of)
    }

    /// Frees the lock, even if held, for a record that its owner initializes anew.
    pub(crate) fn reset(&self) {
        self.0.store(0, Release);
    }
}

impl Drop for RobustGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lock.0.store(0, Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::thread;

    const ME: Owner = Owner { slot: 0, incarnation: 7 };
    const OTHER: Owner = Owner { slot: 3, incarnation: 9 };

    #[test]
    fn a_lock_of_the_dead_is_taken_over() {
        let lock = RobustLock::default();
        std::mem::forget(lock.lock(OTHER, |_| unreachable!("the lock is free")));
        let held = lock.lock(ME, |holder| holder == OTHER);
        assert_eq!(held.acquired, Acquired::Stolen);
        drop(held);
        assert_eq!(lock.lock(ME, |_| unreachable!("the lock is free")).acquired, Acquired::Free);
    }

    #[test]
    fn threads_of_one_process_exclude_each_other() {
        struct Count(std::cell::Cell<u64>);
        // Accessed only under the lock, as the sum shows.
        let lock = RobustLock::default();
        let sum = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let held = lock.lock(ME, |_| false);
                        let count = Count(std::cell::Cell::new(sum.load(Relaxed)));
                        count.0.set(count.0.get() + 1);
                        sum.store(count.0.get(), Relaxed);
                        drop(held);
                    }
                });
            }
        });
        assert_eq!(sum.load(Relaxed), 20_000);
    }
}
