//! Atomics of shared memory: the processor's own, or, with `--cfg loom`, those of a model checker.
//!
//! The model checker, Loom, tries every interleaving of threads and every value that a load may see. Loom
//! treats a sequentially consistent access as one that only acquires and releases, but honors sequentially
//! consistent fences. So here such a store is followed by a fence, and a read-modify-write has a fence on
//! either side. Compilers generate the same for x86-64.

#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, fence},
    thread::yield_now,
};

#[cfg(loom)]
pub(crate) use loom::{hint::spin_loop, sync::atomic::fence, thread::yield_now};
#[cfg(loom)]
pub(crate) use model::{AtomicU32, AtomicU64};

#[cfg(loom)]
mod model {
    use super::fence;
    use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Release, SeqCst};

    macro_rules! atomic {
        ($name:ident, $number:ty) => {
            /// A Loom atomic with sequentially consistent accesses.
            #[derive(Debug, Default)]
            pub(crate) struct $name(loom::sync::atomic::$name);

            #[allow(dead_code, reason = "each kind of number is used for a part of it")]
            impl $name {
                pub(crate) fn new(value: $number) -> Self {
                    $name(loom::sync::atomic::$name::new(value))
                }

                pub(crate) fn load(&self, order: Ordering) -> $number {
                    self.0.load(if order == SeqCst { Acquire } else { order })
                }

                pub(crate) fn store(&self, value: $number, order: Ordering) {
                    if order != SeqCst {
                        return self.0.store(value, order);
                    }
                    self.0.store(value, Release);
                    fence(SeqCst);
                }

                pub(crate) fn swap(&self, value: $number, order: Ordering) -> $number {
                    self.change(order, |word, order| word.swap(value, order))
                }

                pub(crate) fn fetch_add(&self, value: $number, order: Ordering) -> $number {
                    self.change(order, |word, order| word.fetch_add(value, order))
                }

                pub(crate) fn fetch_sub(&self, value: $number, order: Ordering) -> $number {
                    self.change(order, |word, order| word.fetch_sub(value, order))
                }

                pub(crate) fn fetch_or(&self, value: $number, order: Ordering) -> $number {
                    self.change(order, |word, order| word.fetch_or(value, order))
                }

                pub(crate) fn fetch_and(&self, value: $number, order: Ordering) -> $number {
                    self.change(order, |word, order| word.fetch_and(value, order))
                }

                pub(crate) fn fetch_max(&self, value: $number, order: Ordering) -> $number {
                    self.change(order, |word, order| word.fetch_max(value, order))
                }

                pub(crate) fn fetch_min(&self, value: $number, order: Ordering) -> $number {
                    self.change(order, |word, order| word.fetch_min(value, order))
                }

                /// Returns the address of the number. No model uses it: it is for sleeping until the number
                /// changes.
                pub(crate) fn as_ptr(&self) -> *mut $number {
                    (&raw const self.0).cast_mut().cast()
                }

                pub(crate) fn compare_exchange(
                    &self,
                    from: $number,
                    to: $number,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$number, $number> {
                    let failure = if failure == SeqCst { Acquire } else { failure };
                    self.change(success, |word, order| word.compare_exchange(from, to, order, failure))
                }

                fn change<T>(
                    &self,
                    order: Ordering,
                    change: impl FnOnce(&loom::sync::atomic::$name, Ordering) -> T,
                ) -> T {
                    if order != SeqCst {
                        return change(&self.0, order);
                    }
                    fence(SeqCst);
                    let result = change(&self.0, AcqRel);
                    fence(SeqCst);
                    result
                }
            }
        };
    }

    atomic!(AtomicU32, u32);
    atomic!(AtomicU64, u64);
}
