//! The results of one form of an operation at one size.

use super::{measure::Times, operation::Form};

/// The results of one form of an operation at one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) form: Form,
    pub(super) times: Times,
    /// Wrong elements over all ranks.
    pub(super) wrong: u64,
    /// Bytes that one operation copied, over all ranks.
    pub(super) copied_bytes: u64,
    /// Bytes that one operation moved between ranks, over all ranks.
    pub(super) moved_bytes: u64,
    /// Largest error of packed messages, relative to the largest magnitude of the exact result.
    pub(super) error: Option<f64>,
    pub(super) algorithm: &'static str,
    pub(super) segments: u32,
}
