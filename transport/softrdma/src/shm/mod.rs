//! Shared memory of the processes of a fabric: a folder with a file per process, and the queues in the files.
//!
//! Every process maps its own file and those of its peers. The owner of a file holds a lock on it that the
//! kernel releases however the owner ends. So a free lock means a dead process. The process that notices
//! takes over the locks of the dead one and removes its files.
//!
//! - `directory`: the folder; `process`: this process's membership and its views; `liveness`: the locks of
//!   living processes
//! - `layout`, `limits`, `records`, `receive_ring`: the content of a process file; `map`: mapped files
//! - `lock`: robust locks; `complete`: completion queues; `wait`: senders that wait for receives
//! - `wake`: descriptors that wake another process
//! - `heap`, `windows`: allocation in the files

mod complete;
mod directory;
mod heap;
mod layout;
mod limits;
mod liveness;
mod lock;
mod map;
mod process;
mod receive_ring;
mod records;
mod wait;
mod wake;
mod windows;

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use complete::{Completion, Intent, Pushed, QueueKind};
pub(crate) use directory::Directory;
pub(crate) use limits::{CQS, MRS, QPS, RQS};
pub(crate) use liveness::fork_epoch;
pub(crate) use lock::{Acquired, Owner, RobustGuard, RobustLock};
pub(crate) use process::{Process, Unreached, View, holds_lock};
pub(crate) use records::{
    CqRecord, Flight, INLINE_BYTES, MrRecord, QpFixed, QpRecord, RecvSlot, RqRecord, SEND_SGES, SendSlot,
    Sge, TimerRecord,
};
pub(crate) use wake::{is_readable, take_one, wait_readable};
