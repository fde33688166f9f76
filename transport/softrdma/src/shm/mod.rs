//! What processes of one fabric share: a folder with a file per process, and the queues inside of the files.
//!
//! Every process maps its own file and those of the peers it talks to. A file's lock is its owner's life: the
//! kernel lets go of it however the owner ends, so a lock that is free means a process that is gone, and
//! whoever notices takes over what it held and removes what it left.

mod complete;
mod directory;
mod heap;
mod layout;
mod life;
mod limits;
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
pub(crate) use life::epoch;
pub(crate) use limits::{CQS, MRS, QPS, RQS};
pub(crate) use lock::{Acquired, Owner, RobustGuard, RobustLock};
pub(crate) use process::{Process, View};
pub(crate) use records::{
    CqRecord, Flight, INLINE_BYTES, MrRecord, QpFixed, QpRecord, RecvSlot, RqRecord, SEND_SGES, SendSlot,
    Sge, TimerRecord,
};
pub(crate) use wake::{is_readable, take_one, wait_readable};
