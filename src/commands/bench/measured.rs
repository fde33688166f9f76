//! The results of one form of an operation at one size.

use super::{operation::Form, times::Times};

/// The results of one form of an operation at one size.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) form: Form,
    pub(super) times: Times,
    /// Processor time of each rank per operation, in microseconds.
    pub(super) cpu_us: Vec<f64>,
    /// Wrong elements over all ranks; `None` if nothing was checked.
    pub(super) wrong: Option<u64>,
    /// Bytes that one operation copied, over all ranks.
    pub(super) copied_bytes: u64,
    /// Bytes that one operation moved between ranks, over all ranks.
    pub(super) moved_bytes: u64,
    /// Largest error of packed messages, relative to the largest magnitude of the exact result.
    pub(super) error: Option<f64>,
    /// Half a round trip of 8 bytes between ranks 0 and 1, where they share memory: the longer one of those
    /// before and after the measurement.
    pub(super) hop_us: Option<f64>,
    /// Whether that is of a slower regime of the machine than the best one seen.
    pub(super) is_slow: bool,
    pub(super) algorithm: &'static str,
    pub(super) segments: u32,
}
