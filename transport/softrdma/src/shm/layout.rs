//! The layout of a process file, equal for all processes of a version. The header states the version.
//!
//! ```text
//! | header, marks | queue pairs | receive queues | completion queues | regions | rings ... |
//! ```

use super::{
    limits::{CQS, MRS, QPS, RQS},
    records::{CqRecord, Header, MrRecord, QpRecord, RqRecord},
};

/// First word of every process file that is ready for use.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"softrdma");
/// Version of the layouts in this folder.
pub(super) const VERSION: u64 = 3;

pub(super) const QPS_START: u64 = size_of::<Header>() as u64;
pub(super) const RQS_START: u64 = QPS_START + QPS as u64 * size_of::<QpRecord>() as u64;
pub(super) const CQS_START: u64 = RQS_START + RQS as u64 * size_of::<RqRecord>() as u64;
pub(super) const MRS_START: u64 = CQS_START + CQS as u64 * size_of::<CqRecord>() as u64;
/// Offset of the rings, on a page boundary.
pub(super) const HEAP_START: u64 =
    (MRS_START + MRS as u64 * size_of::<MrRecord>() as u64).next_multiple_of(4096);
/// Length of a process file. Pages take up memory once they are reserved.
pub(super) const FILE_BYTES: u64 = 1 << 30;
/// Length of a file of shared pages. Pages take up memory once they are written.
pub(super) const PAGES_BYTES: u64 = 64 << 30;
