//! Sizes of the tables in shared memory.

/// Maximum processes in a fabric. Its bits are part of a queue pair number.
pub(crate) const SLOTS: u32 = 256;
/// Maximum queue pairs of a process. Its bits are part of a queue pair number.
pub(crate) const QPS: u32 = 1024;
/// Maximum receive queues of a process, shared ones included.
pub(crate) const RQS: u32 = 2048;
/// Maximum completion queues of a process.
pub(crate) const CQS: u32 = 1024;
/// Maximum memory regions of a process.
pub(crate) const MRS: u32 = 4096;
