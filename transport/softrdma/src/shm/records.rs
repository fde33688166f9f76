//! The records of a process file. All words are atomics: other processes read and write them at any time.
//!
//! CqeRing that different processes write are kept apart, because a line that moves between cores costs as much
//! as everything else that a small message needs.
//!
//! # Safety
//! Records consist of atomics only, so every bit pattern is valid and every access is atomic.

use super::{
    limits::{CQS, QPS, SLOTS},
    lock::RobustLock,
    map::Atomics,
};
use crate::{
    fabric::MAX_PORTS,
    sync::{AtomicU32, AtomicU64},
};

/// Begins a process file.
#[derive(Debug)]
#[repr(C, align(4096))]
pub(crate) struct Header {
    /// [`super::layout::MAGIC`], written last.
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU64,
    /// Tells this user of the slot from earlier ones.
    pub(crate) incarnation: AtomicU32,
    pub(crate) pid: AtomicU32,
    /// The node of the fabric that the process runs on.
    pub(crate) node: AtomicU32,
    /// Raised by others when a queue of this process needs its owner: something to flush, or an event.
    pub(crate) attention: AtomicU32,
    /// Some queue pair of this process has a request that waits.
    pub(crate) waiting: AtomicU32,
    /// Bytes of its memory that it shares, whether or not they have been written.
    pub(crate) shared_bytes: AtomicU64,
    /// Protection domains on each port.
    pub(crate) domains: [AtomicU32; MAX_PORTS],
    /// RobustGuard during an atomic operation on memory that is not shared.
    pub(crate) atomics: RobustLock,
    pub(crate) timers: TimerRecord,
    /// What each other process uses of this one at the moment.
    pub(crate) marks: [Marks; SLOTS as usize],
}

/// What falls due in a process: whoever makes something wait that is this process's notes it here, and the
/// process, or its ticker, looks at what is noted when it is time.
///
/// Invariant: what waits has its bit here, and `due` is not later than its time, or somebody is about to look.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct TimerRecord {
    /// The earliest time at which something falls due, in nanoseconds of the monotonic clock.
    pub(crate) due: AtomicU64,
    /// The ticker sleeps until then; zero while it is awake, or when there is none.
    pub(crate) sleeps_until: AtomicU64,
    /// How late the ticker may be, because the program polls, and does what is due itself.
    pub(crate) slack: AtomicU64,
    /// Changes when the ticker is woken; what it sleeps on.
    pub(crate) wake_word: AtomicU32,
    /// Queue pairs, by a bit each, whose request at the head waits for a time.
    pub(crate) qps: [AtomicU64; QPS as usize / 64],
    /// Completion queues, by a bit each, whose channel is to be told something at a time.
    pub(crate) cqs: [AtomicU64; CQS as usize / 64],
}

/// Keys of regions that one process, by its slot, reads or writes right now. The owner of a region waits
/// until the key is gone from here before the region is; marks of dead processes do not count.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Marks(pub(crate) [AtomicU64; 8]);

/// A memory region.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct MrRecord {
    /// Index and generation; zero while the record is unused.
    pub(crate) key: AtomicU32,
    pub(crate) pd: AtomicU32,
    pub(crate) access: AtomicU32,
    /// Counts registrations of this process, so that a queue pair can tell older regions from newer ones.
    pub(crate) serial: AtomicU32,
    /// The address by which work requests name the first byte.
    pub(crate) iova: AtomicU64,
    /// The address of the first byte.
    pub(crate) address: AtomicU64,
    pub(crate) len: AtomicU64,
    /// Where the region's first byte is in the file of shared pages; `u64::MAX` when its pages are private.
    pub(crate) shared_at: AtomicU64,
    /// The port of the device that it is registered with.
    pub(crate) port: AtomicU32,
    /// Not 0 when the region crosses a line at which its device loses the upper half of addresses; 2 once it was
    /// said that bytes went astray.
    pub(crate) wraps: AtomicU32,
}

/// A queue pair with its send queue.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct QpRecord {
    /// What it is: written by its owner before the state says that it matters.
    pub(crate) fixed: QpFixed,
    pub(crate) send: SendQueue,
    pub(crate) producer: SqProducer,
    pub(crate) flight: Flight,
    pub(crate) signals: Signals,
}

#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct QpFixed {
    /// Zero while the record is unused.
    pub(crate) qpn: AtomicU32,
    pub(crate) state: AtomicU32,
    pub(crate) kind: AtomicU32,
    pub(crate) pd: AtomicU32,
    pub(crate) access: AtomicU32,
    /// The fabric's number of the port that it sends and receives on.
    pub(crate) port: AtomicU32,
    pub(crate) qkey: AtomicU32,
    pub(crate) dest_qpn: AtomicU32,
    pub(crate) dest_incarnation: AtomicU32,
    /// The fabric's number of the port that it is connected to.
    pub(crate) dest_port: AtomicU32,
    pub(crate) send_cq: AtomicU32,
    pub(crate) recv_cq: AtomicU32,
    pub(crate) rq: AtomicU32,
    /// The owner's newest region when the queue pair became able to receive.
    pub(crate) newest_mr: AtomicU32,
    pub(crate) ring: AtomicU64,
}

/// The consumer's side of a send queue: whoever holds the lock carries out its requests.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct SendQueue {
    pub(crate) lock: RobustLock,
    /// Requests carried out so far.
    pub(crate) head: AtomicU64,
    /// Where the completion of the request at `head` was about to be written, plus one.
    pub(crate) intent: AtomicU64,
    /// When the request at `head` was first found to wait, in nanoseconds; zero when it does not.
    pub(crate) waits_since: AtomicU64,
    /// No completion of this queue may be seen before this.
    pub(crate) last_due: AtomicU64,
    /// Slots of the ring minus one.
    pub(crate) mask: AtomicU64,
    /// When the last message passed, on devices where that matters.
    pub(crate) last_used: AtomicU64,
}

/// What the request at the head of a send queue waits for, when that is a time. Under the lock of the queue.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Flight {
    /// When the request is to be looked at again; zero for at no certain time.
    pub(crate) due: AtomicU64,
    /// The request that is on the cable, plus one; written after what follows. Zero when none is.
    pub(crate) number: AtomicU64,
    /// When it arrives.
    pub(crate) arrives: AtomicU64,
    /// When its sender learns of it.
    pub(crate) sender_due: AtomicU64,
    /// 0: it arrives whole, 1: it is lost, else: this bit of it is wrong.
    pub(crate) delivery: AtomicU64,
    /// No request leaves before this: earlier ones have waited until then.
    pub(crate) not_before: AtomicU64,
}

#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct SqProducer {
    /// Requests posted so far.
    pub(crate) tail: AtomicU64,
}

/// What peers tell this queue pair, and its timers.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(64))]
pub(crate) struct Signals {
    /// The peer has a request that waits for a receive or a state of ours.
    pub(crate) peer_waits: AtomicU32,
    /// Asynchronous events not yet fetched, one bit for each number.
    pub(crate) events: AtomicU32,
    /// It became an error by somebody else's hand, and its queues are still to be flushed.
    pub(crate) flush: AtomicU32,
    pub(crate) timeout: AtomicU32,
    pub(crate) retry_count: AtomicU32,
    pub(crate) rnr_retry: AtomicU32,
    pub(crate) min_rnr_timer: AtomicU32,
    /// The channel that asynchronous events of this queue pair are notified on.
    pub(crate) async_channel: AtomicU32,
    /// Its owner wants to know when its send queue is drained.
    pub(crate) drain: AtomicU32,
}

/// A receive queue, of one queue pair or shared by many.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C)]
pub(crate) struct RqRecord {
    pub(crate) consumer: RqConsumer,
    pub(crate) producer: RqProducer,
}

/// The side of those who fill receives.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(64))]
pub(crate) struct RqConsumer {
    pub(crate) lock: RobustLock,
    /// Receives used up so far.
    pub(crate) head: AtomicU64,
    /// Where the completion of the receive at `head` was about to be written, plus one.
    pub(crate) intent: AtomicU64,
    /// The completion queue that `intent` is about.
    pub(crate) intent_cq: AtomicU64,
    /// `tail` as last seen.
    pub(crate) seen_tail: AtomicU64,
    /// No completion of this queue may be seen before this.
    pub(crate) last_due: AtomicU64,
}

/// The side of the owner, who posts receives.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(64))]
pub(crate) struct RqProducer {
    /// Receives posted so far.
    pub(crate) tail: AtomicU64,
    pub(crate) ring: AtomicU64,
    pub(crate) mask: AtomicU64,
    /// Bytes of a slot.
    pub(crate) stride: AtomicU64,
    pub(crate) pd: AtomicU32,
    /// Fewer receives than this raise an event, once; zero when nobody asked.
    pub(crate) limit: AtomicU32,
    pub(crate) events: AtomicU32,
    pub(crate) is_shared: AtomicU32,
    /// For a shared queue: some queue pair's peer waits for a receive.
    pub(crate) peers_wait: AtomicU32,
    pub(crate) async_channel: AtomicU32,
}

/// A completion queue.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C)]
pub(crate) struct CqRecord {
    pub(crate) producers: CqProducers,
    pub(crate) consumer: CqConsumer,
    pub(crate) fixed: CqFixed,
}

#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(64))]
pub(crate) struct CqProducers {
    pub(crate) lock: RobustLock,
    /// Completions written so far.
    pub(crate) tail: AtomicU64,
    /// `head` as last seen.
    pub(crate) seen_head: AtomicU64,
}

#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(64))]
pub(crate) struct CqConsumer {
    /// Completions polled so far.
    pub(crate) head: AtomicU64,
}

#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(64))]
pub(crate) struct CqFixed {
    // What every push reads is in the first line.
    pub(crate) ring: AtomicU64,
    /// Slots of the ring minus one.
    pub(crate) mask: AtomicU64,
    /// Completions it holds at most.
    pub(crate) capacity: AtomicU64,
    /// Whose arrival is notified: nothing (0), the next one (1), the next solicited one (2).
    pub(crate) armed: AtomicU32,
    /// The channel announcements go to; zero for none.
    pub(crate) channel: AtomicU32,
    /// Its completions are to have a time.
    pub(crate) wants_times: AtomicU32,
    /// A completion found no room.
    pub(crate) overrun: AtomicU32,
    /// Announced and not yet fetched by `ibv_get_cq_event`.
    pub(crate) pending: AtomicU32,
    pub(crate) events: AtomicU32,
    /// When the first completion that is on its way may be seen, and the first that is solicited or failed: what
    /// is armed then is notified then. `u64::MAX` for none.
    pub(crate) notify_at: [AtomicU64; 2],
    /// The completion that was the next when it was armed.
    pub(crate) armed_from: AtomicU64,
    pub(crate) async_channel: AtomicU32,
}

/// Scatter elements of a send request.
pub(crate) const SEND_SGES: usize = 16;
/// Bytes of payload that a send request can carry itself.
pub(crate) const INLINE_BYTES: usize = 256;

/// One piece of local memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) lkey: u32,
}

/// A send request as it lies in its ring.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct SendSlot {
    pub(crate) wr_id: u64,
    /// When it was posted; zero where no cable takes time.
    pub(crate) posted_at: u64,
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    /// As the caller gave it: in network order.
    pub(crate) imm: u32,
    pub(crate) rkey: u32,
    pub(crate) bytes: u32,
    pub(crate) sges: u32,
    /// For datagrams: whom it goes to.
    pub(crate) dest_qpn: u32,
    pub(crate) dest_qkey: u32,
    pub(crate) dest_port: u32,
    /// For datagrams: index of our own address plus one when there is a global route, else 0.
    pub(crate) source_gid: u32,
    /// For datagrams: index of the address that it was sent to.
    pub(crate) dest_gid: u32,
    pub(crate) pieces: [Sge; SEND_SGES],
}

/// The head of a receive as it lies in its ring; its pieces follow.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RecvSlot {
    pub(crate) wr_id: u64,
    pub(crate) sges: u64,
}

// SAFETY: each of these records consists of `AtomicU32`, `AtomicU64` and arrays and structs of them.
unsafe impl Atomics for Header {}
// SAFETY: as above.
unsafe impl Atomics for MrRecord {}
// SAFETY: as above.
unsafe impl Atomics for QpRecord {}
// SAFETY: as above.
unsafe impl Atomics for RqRecord {}
// SAFETY: as above.
unsafe impl Atomics for CqRecord {}
