//! Large reductions split over cores.
//!
//! # Safety
//! Parts of one reduction are disjoint, so each meets the contract that the whole meets.

use super::{ReduceFn, Reducer};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::{num::NonZeroUsize, sync::OnceLock};

/// Destination bytes below which a reduction stays on the caller's thread.
///
/// Measured with an f32 sum into its first operand on two Zen 5 server cores (`cargo bench -p benches --bench
/// reduce threads`), medians, one thread to two: 512 KiB 9.3 to 13.8 µs, 1 MiB 20.7 to 13.2 µs, 2 MiB 49 to
/// 29 µs, 4 MiB 95 to 77 µs, 16 MiB 1.04 to 0.58 ms, 64 MiB 4.8 to 3.8 ms. That is a factor of 1.2 or more
/// from 1 MiB on if the other core is idle. If it is busy, waking a worker costs 1 MiB half of its speed and
/// 2 MiB an eighth, hence the larger threshold.
pub const THRESHOLD_BYTES: usize = 2 << 20;

/// Parts start at multiples of this many elements, so that no two threads write to one cache line or page.
const GRAIN_ELEMENTS: usize = 4096;

/// How many threads a reduction may take, its caller's included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads(NonZeroUsize);

impl Threads {
    /// The caller's thread only; no pool is ever made.
    pub const ONE: Threads = Threads(NonZeroUsize::MIN);

    /// Up to `n` threads; 0 and 1 both mean the caller's only.
    #[must_use]
    pub fn up_to(n: usize) -> Threads {
        Threads(NonZeroUsize::new(n).unwrap_or(NonZeroUsize::MIN))
    }

    /// The number of threads.
    #[must_use]
    pub fn get(self) -> usize {
        self.0.get()
    }

    /// Whether a reduction with a destination of `bytes` bytes is split over them.
    #[must_use]
    #[inline]
    pub fn split(self, bytes: usize) -> bool {
        self != Threads::ONE && bytes >= THRESHOLD_BYTES
    }
}

impl Reducer {
    /// Reduces on up to `threads` threads if the destination has [`THRESHOLD_BYTES`] or more: as
    /// [`Reducer::reduce`], or with `last` ranks as [`Reducer::reduce_last`]. Returns when the whole
    /// destination is written.
    ///
    /// # Safety
    /// The contract of [`ReduceFn`].
    #[inline]
    pub unsafe fn reduce_parallel(
        &self,
        threads: Threads,
        dst: *mut u8,
        a: *const u8,
        b: *const u8,
        count: usize,
        last: Option<u32>,
    ) {
        let worth_it = threads.split(count * self.dtype().size());
        // SAFETY: the caller's contract is that of each.
        unsafe {
            match last {
                _ if worth_it => self.reduce_split(threads, dst, a, b, count, last),
                Some(ranks) => self.reduce_last(dst, a, b, count, ranks),
                None => self.reduce(dst, a, b, count),
            }
        }
    }

    /// Reduces as [`Reducer::reduce_parallel`], at any size, unless only one thread is allowed.
    ///
    /// # Safety
    /// The contract of [`ReduceFn`].
    #[cold]
    pub unsafe fn reduce_split(
        &self,
        threads: Threads,
        dst: *mut u8,
        a: *const u8,
        b: *const u8,
        count: usize,
        last: Option<u32>,
    ) {
        let (function, divisor) =
            last.map_or((self.0.kernel.combine, 1), |ranks| (self.0.kernel.last, ranks));
        let whole = Part { function, dst, a, b, count, divisor };
        let pool = if threads == Threads::ONE { None } else { pool(threads) };
        // SAFETY: the caller's contract is that of each.
        unsafe {
            match pool {
                Some(pool) => split(pool, threads, whole, self.dtype().size()),
                None => whole.reduce(),
            }
        }
    }
}

/// A range of a reduction.
#[derive(Clone, Copy)]
struct Part {
    function: ReduceFn,
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    count: usize,
    divisor: u32,
}

// SAFETY: the pointers are used only by `reduce`, whose caller vouches for them on any thread.
unsafe impl Send for Part {}

impl Part {
    /// # Safety
    /// The contract of [`ReduceFn`], for this part.
    unsafe fn reduce(self) {
        // SAFETY: the caller's contract is the function's.
        unsafe { (self.function)(self.dst, self.a, self.b, self.count, self.divisor) }
    }

    /// Splits off the first elements, at most `count`.
    ///
    /// # Safety
    /// The part is within its operands' allocations.
    unsafe fn split_at(self, count: usize, size: usize) -> (Part, Part) {
        let count = count.min(self.count);
        let bytes = count * size;
        // SAFETY: `count` elements from the start are still within, or one past the end of, the allocations.
        let (dst, a, b) = unsafe { (self.dst.add(bytes), self.a.add(bytes), self.b.add(bytes)) };
        (Part { count, ..self }, Part { dst, a, b, count: self.count - count, ..self })
    }
}

/// Hands equal parts to the pool, keeps one, and waits for the others.
///
/// # Safety
/// The contract of [`ReduceFn`], for the whole.
unsafe fn split(pool: &ThreadPool, threads: Threads, whole: Part, size: usize) {
    let parts = threads.get().min(pool.current_num_threads() + 1);
    let each = whole.count.div_ceil(parts).next_multiple_of(GRAIN_ELEMENTS);
    pool.in_place_scope(|scope| {
        // SAFETY: the caller's contract, here and below: the parts are disjoint and within the whole.
        let (mine, mut rest) = unsafe { whole.split_at(each, size) };
        while rest.count > 0 {
            // SAFETY: as above.
            let (part, others) = unsafe { rest.split_at(each, size) };
            // SAFETY: as above; the scope ends after the part is done.
            scope.spawn(move |_| unsafe { { part }.reduce() });
            rest = others;
        }
        // SAFETY: as above.
        unsafe { mine.reduce() };
    });
}

/// Returns the worker threads that help callers, one less than the first caller's policy allows. `None` if
/// they cannot be started; callers then work alone.
fn pool(threads: Threads) -> Option<&'static ThreadPool> {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let start = || {
        let workers = threads.get() - 1;
        let name = |i| format!("tbccl-reduce-{i}");
        ThreadPoolBuilder::new().num_threads(workers).thread_name(name).build().ok()
    };
    POOL.get_or_init(start).as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use collectives::{DType, ReduceOp};

    #[test]
    fn split_reductions_are_whole() {
        let reducer = Reducer::new(DType::U32, ReduceOp::Avg).unwrap();
        for count in [0, 5, THRESHOLD_BYTES / 4, THRESHOLD_BYTES / 4 + 1, 1_000_003] {
            let a: Vec<u32> = (0..count as u32).collect();
            for threads in [Threads::ONE, Threads::up_to(3), Threads::up_to(2), Threads::up_to(0)] {
                for last in [None, Some(2)] {
                    let mut dst = vec![1u32; count];
                    let at = dst.as_mut_ptr().cast::<u8>();
                    // SAFETY: both vectors hold `count` elements, and the destination is the second operand.
                    unsafe { reducer.reduce_parallel(threads, at, a.as_ptr().cast(), at, count, last) };
                    let divisor = last.unwrap_or(1);
                    assert!(dst.iter().zip(&a).all(|(d, a)| *d == (a + 1) / divisor));
                }
            }
        }
    }
}
