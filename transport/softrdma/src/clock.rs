//! Clocks: the exact one that completions and timers use, and a coarse one.

use rustix::time::{ClockId, clock_gettime};

/// Returns the time by which completions and timers are due, in nanoseconds of the monotonic clock.
pub(crate) fn now() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Returns the monotonic time in nanoseconds, some milliseconds late, at next to no cost.
pub(crate) fn coarse_now() -> u64 {
    nanoseconds(ClockId::MonotonicCoarse)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
