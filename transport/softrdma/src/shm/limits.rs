//! The sizes of the tables in a process's file.

/// Processes in a fabric at the same time; the number's bits are part of a queue pair number.
pub(crate) const SLOTS: u32 = 256;
/// Queue pairs of a process; the number's bits are part of a queue pair number.
pub(crate) const QPS: u32 = 1024;
/// Receive queues of a process, those of queue pairs and shared ones.
pub(crate) const RQS: u32 = 2048;
/// Completion queues of a process.
pub(crate) const CQS: u32 = 1024;
/// Memory regions of a process.
pub(crate) const MRS: u32 = 4096;
