//! Comparison of clocks: samples of the rendezvous' clock, from which traces of several hosts are aligned.
//!
//! The clock of a host is the monotonic one, which all of its processes share. The rendezvous reads its clock
//! between the two local times of a sample, so each sample bounds the offset of the clocks. This module
//! computes no offsets.

use rustix::time::{ClockId, clock_gettime};

/// One exchange of a request for the time, and of its answer. Nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockSample {
    /// Local time before the request was sent.
    pub sent: u64,
    /// Time of the rendezvous when it read the request.
    pub server: u64,
    /// Local time after the answer was read.
    pub received: u64,
}

/// Returns the nanoseconds on this host's monotonic clock.
#[must_use]
pub fn monotonic_nanos() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
