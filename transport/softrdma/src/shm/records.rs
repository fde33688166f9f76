//! The records of a process file. All words are atomics: other processes read and write them at any time.
//!
//! Cache lines that different processes write are kept apart. A line that moves between cores costs as much
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

/// The header of a process file.
#[derive(Debug)]
#[repr(C, align(4096))]
pub(crate) struct Header {
    /// [`super::layout::MAGIC`], written last.
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU64,
    /// Distinguishes this user of the slot from earlier ones.
    pub(crate) incarnation: AtomicU32,
    pub(crate) pid: AtomicU32,
    /// The node of the fabric that the process runs on.
    pub(crate) node: AtomicU32,
    /// Set by peers when a queue pair of this process is in the error state and may have to be flushed by its
    /// owner.
    pub(crate) attention: AtomicU32,
    /// Whether a queue pair of this process may have a waiting request.
    pub(crate) waiting: AtomicU32,
    /// Bytes of memory that this process shares, whether or not they have been written.
    pub(crate) shared_bytes: AtomicU64,
    /// Protection domains of this process on each port.
    pub(crate) domains: [AtomicU32; MAX_PORTS],
    /// Locked during an atomic operation on memory that is not shared.
    pub(crate) atomics: RobustLock,
    pub(crate) timers: TimerRecord,
    /// The regions of this process that each other process uses, by that process's slot.
    pub(crate) marks: [Marks; SLOTS as usize],
}

/// The timer queue of a process. Any process that makes something of this process wait adds to it. The
/// process or its timer thread runs the entries that are due.
///
/// Invariant: the bit of each waiting entry is set and `due` is not later than its time, or some process is
/// about to look at the entry.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct TimerRecord {
    /// The earliest time of an entry, in nanoseconds of the monotonic clock.
    pub(crate) due: AtomicU64,
    /// The time until which the timer thread sleeps; zero while it is awake, or when there is none.
    pub(crate) sleeps_until: AtomicU64,
    /// Nanoseconds that the timer thread may be late, because the program polls and runs the queue itself.
    pub(crate) slack: AtomicU64,
    /// The futex that the timer thread sleeps on. Changes when the thread is woken.
    pub(crate) wake_word: AtomicU32,
    /// Queue pairs, one bit each, whose request at the head waits for a time.
    pub(crate) qps: [AtomicU64; QPS as usize / 64],
    /// Completion queues, one bit each, with a notification at a later time.
    pub(crate) cqs: [AtomicU64; CQS as usize / 64],
}

/// Keys of regions that one process, by its slot, reads or writes at present.
///
/// The owner of a region ends the registration only when the key is gone from here. Marks of dead processes
/// do not count.
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
    /// Serial number of the registration, by which a queue pair distinguishes older regions from newer ones.
    pub(crate) serial: AtomicU32,
    /// The address by which work requests name the first byte.
    pub(crate) iova: AtomicU64,
    /// The address of the first byte.
    pub(crate) address: AtomicU64,
    pub(crate) len: AtomicU64,
    /// Offset of the region in the file of shared pages; `u64::MAX` for private pages.
    pub(crate) shared_at: AtomicU64,
    /// Port of the device that the region is registered with.
    pub(crate) port: AtomicU32,
    /// Nonzero if the region crosses a 4 GiB line on a device that keeps 32 bits of addresses; 2 once wrapped
    /// bytes were logged.
    pub(crate) wraps: AtomicU32,
}

/// A queue pair with its send queue.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct QpRecord {
    /// Values that the owner writes before the state makes them count.
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
    /// The fabric's number of the queue pair's own port.
    pub(crate) port: AtomicU32,
    pub(crate) qkey: AtomicU32,
    pub(crate) dest_qpn: AtomicU32,
    pub(crate) dest_incarnation: AtomicU32,
    /// The fabric's number of the peer's port.
    pub(crate) dest_port: AtomicU32,
    pub(crate) send_cq: AtomicU32,
    pub(crate) recv_cq: AtomicU32,
    pub(crate) rq: AtomicU32,
    /// Serial number of the owner's newest region when the queue pair became able to receive.
    pub(crate) newest_mr: AtomicU32,
    pub(crate) ring: AtomicU64,
}

/// The consumer's side of a send queue. The process that holds the lock executes the requests.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct SendQueue {
    pub(crate) lock: RobustLock,
    /// Requests executed so far.
    pub(crate) head: AtomicU64,
    /// The place of the completion of the request at `head` that was about to be written, plus one.
    pub(crate) intent: AtomicU64,
    /// Time at which the request at `head` was first found to wait, in nanoseconds; zero when it does not
    /// wait.
    pub(crate) waits_since: AtomicU64,
    /// The earliest time at which the next completion of this queue may be seen.
    pub(crate) last_due: AtomicU64,
    /// Slots of the ring minus one.
    pub(crate) mask: AtomicU64,
    /// Time of the last message, on devices that stop idle connections.
    pub(crate) last_used: AtomicU64,
}

/// The timer and the transit of the request at the head of a send queue. The lock of the queue protects it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Flight {
    /// Time of the next look at the request; zero for none.
    pub(crate) due: AtomicU64,
    /// Number of the request in flight, plus one, written after the members below; zero for none.
    pub(crate) number: AtomicU64,
    /// Arrival time of the request.
    pub(crate) arrives: AtomicU64,
    /// Time at which the sender learns of the outcome.
    pub(crate) sender_due: AtomicU64,
    /// 0: arrives intact; 1: is lost; otherwise the number of the bit that is flipped.
    pub(crate) delivery: AtomicU64,
    /// The earliest departure of the next request: earlier ones have waited until then.
    pub(crate) not_before: AtomicU64,
}

#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct SqProducer {
    /// Requests posted so far.
    pub(crate) tail: AtomicU64,
}

/// Words by which peers signal this queue pair, and its timeouts.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(64))]
pub(crate) struct Signals {
    /// Whether the peer has a request that waits for a receive or a state of this queue pair.
    pub(crate) peer_waits: AtomicU32,
    /// Asynchronous events that were not fetched yet, one bit for each event number.
    pub(crate) events: AtomicU32,
    /// Whether the queue pair has failed and its queues are still to be flushed.
    pub(crate) flush: AtomicU32,
    pub(crate) timeout: AtomicU32,
    pub(crate) retry_count: AtomicU32,
    pub(crate) rnr_retry: AtomicU32,
    pub(crate) min_rnr_timer: AtomicU32,
    /// The channel on which asynchronous events of this queue pair are reported.
    pub(crate) async_channel: AtomicU32,
    /// Whether the owner wants an event when the send queue is drained.
    pub(crate) drain: AtomicU32,
}

/// A receive queue, of one queue pair or shared.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C)]
pub(crate) struct RqRecord {
    pub(crate) consumer: RqConsumer,
    pub(crate) producer: RqProducer,
}

/// The side of the senders, who take receives.
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(64))]
pub(crate) struct RqConsumer {
    pub(crate) lock: RobustLock,
    /// Receives used up so far.
    pub(crate) head: AtomicU64,
    /// The place of the completion of the receive at `head` that was about to be written, plus one.
    pub(crate) intent: AtomicU64,
    /// The completion queue that `intent` refers to.
    pub(crate) intent_cq: AtomicU64,
    /// Last seen value of `tail`.
    pub(crate) seen_tail: AtomicU64,
    /// The earliest time at which the next completion of this queue may be seen.
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
    /// An event is raised once when fewer receives than this are posted; zero for none.
    pub(crate) limit: AtomicU32,
    pub(crate) events: AtomicU32,
    pub(crate) is_shared: AtomicU32,
    /// For a shared queue: whether the peer of a queue pair waits for a receive.
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
    /// Last seen value of `head`.
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
    // The members that every push reads are in the first cache line.
    pub(crate) ring: AtomicU64,
    /// Slots of the ring minus one.
    pub(crate) mask: AtomicU64,
    /// Maximum number of completions in the queue.
    pub(crate) capacity: AtomicU64,
    /// The completions that are notified: none (0), the next one (1), the next solicited one (2).
    pub(crate) armed: AtomicU32,
    /// The channel that is notified; zero for none.
    pub(crate) channel: AtomicU32,
    /// Whether completions record their time.
    pub(crate) wants_times: AtomicU32,
    /// 1 once a completion found no room; 2 once that was reported.
    pub(crate) overrun: AtomicU32,
    /// Notifications that `ibv_get_cq_event` has not fetched yet.
    pub(crate) pending: AtomicU32,
    pub(crate) events: AtomicU32,
    /// Times at which the owner is notified of completions that are due later: of the first one, and of the
    /// first solicited or failed one. `u64::MAX` for none.
    pub(crate) notify_at: [AtomicU64; 2],
    /// Number of the next completion when the queue was armed.
    pub(crate) armed_from: AtomicU64,
    pub(crate) async_channel: AtomicU32,
}

/// Scatter elements of a send request.
pub(crate) const SEND_SGES: usize = 16;
/// Bytes of payload that a send request can carry inline.
pub(crate) const INLINE_BYTES: usize = 256;

/// A scatter/gather element: a piece of local memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Sge {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) lkey: u32,
}

/// A send request in its ring.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct SendSlot {
    pub(crate) wr_id: u64,
    /// Time of the posting; zero where no cable takes time.
    pub(crate) posted_at: u64,
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    /// Immediate data in network order.
    pub(crate) imm: u32,
    pub(crate) rkey: u32,
    pub(crate) bytes: u32,
    pub(crate) sges: u32,
    /// Destination queue pair of a datagram.
    pub(crate) dest_qpn: u32,
    pub(crate) dest_qkey: u32,
    pub(crate) dest_port: u32,
    /// For datagrams: index of the source address plus one if there is a global route, else 0.
    pub(crate) source_gid: u32,
    /// For datagrams: index of the destination address.
    pub(crate) dest_gid: u32,
    pub(crate) pieces: [Sge; SEND_SGES],
}

/// The head of a receive in its ring. Its scatter elements follow.
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
