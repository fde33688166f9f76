//! Carrying out one request.
//!
//! # Safety
//! The slot lies in the mapped ring of its queue, whose lock is held, and was written before the tail that covers it.

use super::{
    At, Nic,
    atomics::Change,
    copy::{Fault, List},
    fail::Aftermath,
    now,
    peer::Peer,
    receive::{Arrival, Taken},
    region::{Denied, Need},
};
use crate::{
    link_model::Fate,
    profile::{NoReceive, Profile},
    shm::{SEND_SGES, SendSlot, Sge},
    world::Wire,
};
use std::sync::atomic::Ordering::Relaxed;
use verbs_sys::{AccessFlags, EventType, Grh, QpType, SendFlags, WcFlags, WcOpcode, WcStatus, WrOpcode};

/// A request in its ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot(*mut SendSlot);

impl Slot {
    /// The request, without copying it.
    #[inline]
    pub(super) fn get(&self) -> &SendSlot {
        // SAFETY: see the module; nobody writes to a slot between its posting and its completion.
        unsafe { &*self.0 }
    }

    pub(super) fn is_signaled(&self) -> bool {
        SendFlags(self.get().flags).contains(SendFlags::SIGNALED)
    }

    pub(super) fn completion_opcode(&self) -> u8 {
        let opcode = match WrOpcode(self.get().opcode) {
            WrOpcode::RDMA_WRITE | WrOpcode::RDMA_WRITE_WITH_IMM => WcOpcode::RDMA_WRITE,
            WrOpcode::RDMA_READ => WcOpcode::RDMA_READ,
            WrOpcode::ATOMIC_CMP_AND_SWP => WcOpcode::COMP_SWAP,
            WrOpcode::ATOMIC_FETCH_AND_ADD => WcOpcode::FETCH_ADD,
            _ => WcOpcode::SEND,
        };
        opcode.0 as u8
    }

    /// Where the bytes of the request are, or go to.
    fn list<'a>(&self, at: At<'a>) -> List<'a> {
        let slot = self.get();
        let first = slot.pieces.as_ptr();
        if SendFlags(slot.flags).contains(SendFlags::INLINE) {
            return List::Plain { start: first.cast::<u8>().cast_mut(), len: slot.bytes as usize };
        }
        let writes = slot.opcode >= WrOpcode::RDMA_READ.0;
        let access = if writes { AccessFlags::LOCAL_WRITE } else { AccessFlags::NONE };
        let need = Need::of(at.view, &at.qp.fixed, access);
        List::Pieces { need, first, count: slot.sges.min(SEND_SGES as u32) }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) status: WcStatus,
    pub(super) bytes: u32,
    pub(super) due: u64,
}

impl Done {
    pub(super) fn with(status: WcStatus) -> Done {
        Done { status, bytes: 0, due: 0 }
    }

    fn well(bytes: u32, due: u64) -> Outcome {
        Outcome::Done(Done { status: WcStatus::SUCCESS, bytes, due })
    }

    fn badly(status: WcStatus) -> Outcome {
        Outcome::Done(Done::with(status))
    }
}

/// What came of carrying out a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    Done(Done),
    /// It stays at the head of its queue until somebody tries again.
    Waits,
}

/// Why a write did not happen.
#[derive(Clone, Copy, Debug)]
enum Unwritten {
    /// The memory that the bytes come from is not accessible.
    Unreadable,
    /// The peer does not allow it.
    Denied,
    /// The peer is gone.
    Gone,
}

/// When the two ends learn of a message, and whether it arrives.
#[derive(Clone, Copy, Debug)]
struct Trip {
    sender_due: u64,
    receiver_due: u64,
    fate: Fate,
}

impl Default for Trip {
    fn default() -> Trip {
        Trip { sender_due: 0, receiver_due: 0, fate: Fate::Whole }
    }
}

/// A request on its way.
#[derive(Clone, Copy, Debug)]
struct Errand<'a> {
    at: At<'a>,
    peer: At<'a>,
    slot: Slot,
    kind: QpType,
    trip: Trip,
}

impl Nic {
    pub(super) fn send_slot(&self, at: At<'_>, number: u64) -> Option<Slot> {
        let index = number & at.qp.send.mask.load(Relaxed);
        let offset = index.checked_mul(size_of::<SendSlot>() as u64)?;
        at.view.area().at::<SendSlot>(at.qp.fixed.ring.load(Relaxed).checked_add(offset)?).map(Slot)
    }

    /// Under the lock of the send queue.
    #[inline]
    pub(super) fn carry_out(&self, at: At<'_>, slot: Slot, _head: u64, aftermath: &mut Aftermath) -> Outcome {
        let kind = QpType(at.qp.fixed.kind.load(Relaxed));
        let request = slot.get();
        if slot.list(at).check().is_err() {
            return Done::badly(WcStatus::LOC_PROT_ERR);
        }
        let profile = self.world.profile(at.qp.fixed.port.load(Relaxed));
        if request.bytes > profile.max_message_bytes {
            return Done::badly(WcStatus::LOC_LEN_ERR);
        }
        let found = if kind == QpType::UD { self.addressed(at, request) } else { self.connected(at) };
        let holds = kind == QpType::UC && profile.uc_without_receive == NoReceive::Hold;
        if self.is_stalled(at.qp.fixed.port.load(Relaxed)) {
            return self.wait(at);
        }
        let (peer, wire) = match found {
            Peer::Ready(peer, wire) if !self.is_stalled(peer.qp.fixed.port.load(Relaxed)) => (peer, wire),
            Peer::Ready(..) if kind == QpType::RC => return self.unanswered(at),
            Peer::Ready(..) if !holds => return Done::well(request.bytes, 0),
            Peer::Ready(..) => return self.wait(at),
            Peer::Silent if kind == QpType::RC => return self.unanswered(at),
            Peer::Gone if kind == QpType::RC => return Done::badly(WcStatus::RETRY_EXC_ERR),
            Peer::Silent | Peer::Gone if holds => return self.wait(at),
            Peer::Silent | Peer::Gone => return Done::well(request.bytes, 0),
        };
        let mut errand = Errand { at, peer, slot, kind, trip: Trip::default() };
        let opcode = WrOpcode(request.opcode);
        let uses_receive =
            matches!(opcode, WrOpcode::SEND | WrOpcode::SEND_WITH_IMM | WrOpcode::RDMA_WRITE_WITH_IMM);
        let taken = match uses_receive {
            false => None,
            true if kind == QpType::RC || holds => self.take_receive_or_wait(peer),
            true => self.take_receive(peer),
        };
        if uses_receive && taken.is_none() && (kind == QpType::RC || holds) {
            return self.not_ready(errand, holds);
        }
        match self.travel(at, kind, &wire, request.bytes) {
            Some(trip) => errand.trip = trip,
            None => return Done::badly(WcStatus::RETRY_EXC_ERR),
        }
        if errand.trip.fate == Fate::Lost || uses_receive && taken.is_none() {
            // Reliable connections have repeated what was lost, so this is an unreliable one.
            return Done::well(request.bytes, errand.trip.sender_due);
        }
        match (opcode, taken) {
            (WrOpcode::SEND | WrOpcode::SEND_WITH_IMM, Some(taken)) => {
                self.send(errand, &taken, profile, aftermath)
            }
            (WrOpcode::RDMA_WRITE_WITH_IMM, Some(taken)) => self.write_and_tell(errand, &taken, aftermath),
            (opcode, _) => self.one_sided(errand, opcode, aftermath),
        }
    }

    #[inline]
    fn one_sided(&self, errand: Errand<'_>, opcode: WrOpcode, aftermath: &mut Aftermath) -> Outcome {
        let request = errand.slot.get();
        match opcode {
            WrOpcode::RDMA_WRITE => self.write(errand, aftermath),
            WrOpcode::RDMA_READ => self.read(errand, aftermath),
            WrOpcode::ATOMIC_CMP_AND_SWP => {
                self.atomic(errand, Change::Swap(request.compare_add, request.swap), aftermath)
            }
            WrOpcode::ATOMIC_FETCH_AND_ADD => {
                self.atomic(errand, Change::Add(request.compare_add), aftermath)
            }
            _ => Done::badly(WcStatus::LOC_QP_OP_ERR),
        }
    }

    /// Sends a message over the cable. A reliable connection repeats what is lost; `None` when it gives up.
    #[inline]
    fn travel(&self, at: At<'_>, kind: QpType, wire: &Wire<'_>, bytes: u32) -> Option<Trip> {
        let Some(cable) = wire.cable.filter(|cable| !cable.count_if_ideal(bytes)) else {
            return Some(Trip::default());
        };
        let model = cable.model;
        let mut passage = model.pass(cable.lane, cable.direction, u64::from(bytes), now());
        let mut late = 0;
        if kind == QpType::RC {
            let mut tries = at.qp.signals.retry_count.load(Relaxed);
            while passage.fate != Fate::Whole {
                tries = tries.checked_sub(1)?;
                late += ack_timeout(at).unwrap_or(1_000_000);
                passage = model.pass(cable.lane, cable.direction, u64::from(bytes), now());
            }
        }
        let arrives = passage.arrives + late;
        let is_timed = model.is_timed() || late > 0;
        let sender_due = if kind == QpType::RC { arrives + model.latency_ns } else { passage.departs };
        Some(Trip {
            sender_due: if is_timed { self.in_order(at, sender_due) } else { 0 },
            receiver_due: if is_timed { arrives } else { 0 },
            fate: passage.fate,
        })
    }

    /// Completions of a queue pair come in the order of its requests.
    fn in_order(&self, at: At<'_>, due: u64) -> u64 {
        let due = due.max(at.qp.send.last_due.load(Relaxed));
        at.qp.send.last_due.store(due, Relaxed);
        due
    }

    /// Nothing to be done now; notes since when.
    fn wait(&self, at: At<'_>) -> Outcome {
        self.waiting_for(at);
        Outcome::Waits
    }

    /// Returns for how long the request at the head has been waiting.
    fn waiting_for(&self, at: At<'_>) -> u64 {
        let now = now();
        at.view.header().waiting.store(1, Relaxed);
        let since = at.qp.send.waits_since.load(Relaxed);
        if since == 0 {
            at.qp.send.waits_since.store(now, Relaxed);
            return 0;
        }
        now.saturating_sub(since)
    }

    /// Nobody acknowledges.
    #[cold]
    fn unanswered(&self, at: At<'_>) -> Outcome {
        let tries = u64::from(at.qp.signals.retry_count.load(Relaxed)) + 1;
        let waited = self.waiting_for(at);
        match ack_timeout(at) {
            Some(timeout) if waited > timeout * tries => Done::badly(WcStatus::RETRY_EXC_ERR),
            _ => Outcome::Waits,
        }
    }

    /// The peer has no receive posted.
    #[cold]
    fn not_ready(&self, errand: Errand<'_>, holds: bool) -> Outcome {
        let Errand { at, peer, .. } = errand;
        if holds {
            return self.wait(at);
        }
        let retries = at.qp.signals.rnr_retry.load(Relaxed);
        let waited = self.waiting_for(at);
        let pause = rnr_pause(peer.qp.signals.min_rnr_timer.load(Relaxed));
        if retries < 7 && waited > pause * (u64::from(retries) + 1) {
            return Done::badly(WcStatus::RNR_RETRY_EXC_ERR);
        }
        if peer.view.seems_dead() {
            return Done::badly(WcStatus::RETRY_EXC_ERR);
        }
        Outcome::Waits
    }

    #[inline]
    fn send(
        &self,
        errand: Errand<'_>,
        taken: &Taken<'_>,
        profile: &Profile,
        aftermath: &mut Aftermath,
    ) -> Outcome {
        let Errand { peer, slot, kind, trip, .. } = errand;
        let request = slot.get();
        let header = if kind == QpType::UD { size_of::<Grh>() as u32 } else { 0 };
        let has_imm = request.opcode == WrOpcode::SEND_WITH_IMM.0;
        let mut arrival = Arrival {
            opcode: WcOpcode::RECV.0 as u8,
            flags: if has_imm { WcFlags::WITH_IMM.0 as u8 } else { 0 },
            bytes: request.bytes + header,
            imm: if has_imm { request.imm } else { 0 },
            source_qpn: errand.at.qpn(),
            due: trip.receiver_due,
            is_solicited: SendFlags(request.flags).contains(SendFlags::SOLICITED),
            ..Arrival::default()
        };
        if kind == QpType::UD && request.source_gid != 0 {
            arrival.flags |= WcFlags::GRH.0 as u8;
        }
        let room = taken.list.total();
        let is_mismatch =
            profile.frame_bytes.is_some() && profile.units(u64::from(request.bytes)) != profile.units(room);
        if u64::from(arrival.bytes) > room || is_mismatch {
            if kind == QpType::UD {
                return Done::well(request.bytes, trip.sender_due);
            }
            return self.refuse(errand, taken, WcStatus::LOC_LEN_ERR, WcStatus::REM_INV_REQ_ERR, aftermath);
        }
        if taken.list.check().is_err() {
            return self.refuse(errand, taken, WcStatus::LOC_PROT_ERR, WcStatus::REM_OP_ERR, aftermath);
        }
        match self.deliver(errand, taken, header as usize) {
            Ok(()) => {}
            Err(Fault::Source) => return Done::badly(WcStatus::LOC_PROT_ERR),
            Err(Fault::Destination) => {
                return self.refuse(errand, taken, WcStatus::LOC_PROT_ERR, WcStatus::REM_OP_ERR, aftermath);
            }
            Err(Fault::Gone) => return self.vanished(errand),
        }
        if !self.arrive(peer, taken, &arrival) {
            aftermath.peer = Some((peer.view.owner, peer.index(), EventType::QP_FATAL));
            return self.remote_error(errand, WcStatus::REM_OP_ERR);
        }
        Done::well(request.bytes, trip.sender_due)
    }

    /// Moves the bytes of a send into a receive, behind the header of a datagram.
    #[inline]
    fn deliver(&self, errand: Errand<'_>, taken: &Taken<'_>, header: usize) -> Result<(), Fault> {
        let mut to = taken.list.cursor();
        if header > 0 {
            let mut grh =
                self.world.grh(self.control(), errand.at.qp.fixed.port.load(Relaxed), errand.slot.get());
            let from = List::Plain { start: (&raw mut grh).cast(), len: header };
            self.transfer(&mut from.cursor(), &mut to, header)?;
        }
        let bytes = errand.slot.get().bytes as usize;
        self.transfer(&mut errand.slot.list(errand.at).cursor(), &mut to, bytes)?;
        match errand.trip.fate {
            Fate::Corrupted(bit) if bytes > 0 => self.flip(taken.list, header, bit % (bytes as u64 * 8)),
            _ => Ok(()),
        }
    }

    /// Fails a receive, and with it the connection.
    #[cold]
    fn refuse(
        &self,
        errand: Errand<'_>,
        taken: &Taken<'_>,
        theirs: WcStatus,
        ours: WcStatus,
        aftermath: &mut Aftermath,
    ) -> Outcome {
        let arrival =
            Arrival { status: theirs.0 as u8, opcode: WcOpcode::RECV.0 as u8, ..Arrival::default() };
        self.arrive(errand.peer, taken, &arrival);
        aftermath.peer = Some((errand.peer.view.owner, errand.peer.index(), EventType::QP_FATAL));
        self.remote_error(errand, ours)
    }

    /// What a sender learns of an error at the other end: on unreliable services nothing.
    fn remote_error(&self, errand: Errand<'_>, status: WcStatus) -> Outcome {
        if errand.kind == QpType::RC {
            return Done::badly(status);
        }
        Done::well(errand.slot.get().bytes, errand.trip.sender_due)
    }

    #[cold]
    fn vanished(&self, errand: Errand<'_>) -> Outcome {
        self.remote_error(errand, WcStatus::RETRY_EXC_ERR)
    }

    /// The peer's memory that a request names, when its key allows what is to be done.
    #[inline]
    fn remote_list<'a>(
        &self,
        errand: Errand<'a>,
        access: AccessFlags,
        piece: &'a Sge,
    ) -> Result<List<'a>, Denied> {
        let fixed = &errand.peer.qp.fixed;
        if !AccessFlags(fixed.access.load(Relaxed)).contains(access) {
            return Err(Denied);
        }
        let list = List::Pieces { need: Need::of(errand.peer.view, fixed, access), first: piece, count: 1 };
        list.check().map(|()| list)
    }

    #[cold]
    fn denied(&self, errand: Errand<'_>, status: WcStatus, aftermath: &mut Aftermath) -> Outcome {
        if errand.kind == QpType::RC {
            aftermath.peer = Some((errand.peer.view.owner, errand.peer.index(), EventType::QP_ACCESS_ERR));
        }
        self.remote_error(errand, status)
    }

    /// Moves the bytes of a write into the peer's memory.
    #[inline]
    fn put(&self, errand: Errand<'_>) -> Result<(), Unwritten> {
        let request = errand.slot.get();
        let bytes = request.bytes;
        if bytes == 0 {
            return Ok(());
        }
        let piece = Sge { addr: request.remote_addr, len: bytes, lkey: request.rkey };
        let list = self.remote_list(errand, AccessFlags::REMOTE_WRITE, &piece).map_err(|Denied| Unwritten::Denied)?;
        let mut from = errand.slot.list(errand.at).cursor();
        let moved = self.transfer(&mut from, &mut list.cursor(), bytes as usize).and_then(|()| {
            match errand.trip.fate {
                Fate::Corrupted(bit) => self.flip(list, 0, bit % (u64::from(bytes) * 8)),
                _ => Ok(()),
            }
        });
        moved.map_err(|fault| match fault {
            Fault::Source => Unwritten::Unreadable,
            Fault::Destination => Unwritten::Denied,
            Fault::Gone => Unwritten::Gone,
        })
    }

    /// What the sender learns of a write that did not happen.
    #[cold]
    fn unwritten(&self, errand: Errand<'_>, why: Unwritten, aftermath: &mut Aftermath) -> Outcome {
        match why {
            Unwritten::Unreadable => Done::badly(WcStatus::LOC_PROT_ERR),
            Unwritten::Denied => self.denied(errand, WcStatus::REM_ACCESS_ERR, aftermath),
            Unwritten::Gone => self.vanished(errand),
        }
    }

    #[inline]
    fn write(&self, errand: Errand<'_>, aftermath: &mut Aftermath) -> Outcome {
        match self.put(errand) {
            Ok(()) => Done::well(errand.slot.get().bytes, errand.trip.sender_due),
            Err(why) => self.unwritten(errand, why, aftermath),
        }
    }

    /// A write that uses up a receive. The receive is there before the first byte is written, and stays there when
    /// the write is refused, of which an unreliable sender does not learn.
    fn write_and_tell(&self, errand: Errand<'_>, taken: &Taken<'_>, aftermath: &mut Aftermath) -> Outcome {
        let Errand { peer, slot, trip, .. } = errand;
        if let Err(why) = self.put(errand) {
            return self.unwritten(errand, why, aftermath);
        }
        let arrival = Arrival {
            opcode: WcOpcode::RECV_RDMA_WITH_IMM.0 as u8,
            flags: WcFlags::WITH_IMM.0 as u8,
            bytes: slot.get().bytes,
            imm: slot.get().imm,
            source_qpn: errand.at.qpn(),
            due: trip.receiver_due,
            is_solicited: SendFlags(slot.get().flags).contains(SendFlags::SOLICITED),
            ..Arrival::default()
        };
        if !self.arrive(peer, taken, &arrival) {
            aftermath.peer = Some((peer.view.owner, peer.index(), EventType::QP_FATAL));
            return self.remote_error(errand, WcStatus::REM_OP_ERR);
        }
        Done::well(slot.get().bytes, trip.sender_due)
    }

    fn read(&self, errand: Errand<'_>, aftermath: &mut Aftermath) -> Outcome {
        let request = errand.slot.get();
        let bytes = request.bytes;
        if bytes > 0 {
            let piece = Sge { addr: request.remote_addr, len: bytes, lkey: request.rkey };
            let Ok(list) = self.remote_list(errand, AccessFlags::REMOTE_READ, &piece) else {
                return self.denied(errand, WcStatus::REM_ACCESS_ERR, aftermath);
            };
            let mut to = errand.slot.list(errand.at).cursor();
            match self.transfer(&mut list.cursor(), &mut to, bytes as usize) {
                Ok(()) => {}
                Err(Fault::Source) => return self.denied(errand, WcStatus::REM_ACCESS_ERR, aftermath),
                Err(Fault::Destination) => return Done::badly(WcStatus::LOC_PROT_ERR),
                Err(Fault::Gone) => return self.vanished(errand),
            }
        }
        Done::well(bytes, errand.trip.sender_due)
    }

    fn atomic(&self, errand: Errand<'_>, change: Change, aftermath: &mut Aftermath) -> Outcome {
        let request = errand.slot.get();
        if !request.remote_addr.is_multiple_of(8) || request.bytes < 8 {
            return self.denied(errand, WcStatus::REM_INV_REQ_ERR, aftermath);
        }
        let piece = Sge { addr: request.remote_addr, len: 8, lkey: request.rkey };
        if self.remote_list(errand, AccessFlags::REMOTE_ATOMIC, &piece).is_err() {
            return self.denied(errand, WcStatus::REM_ACCESS_ERR, aftermath);
        }
        let need = Need::of(errand.peer.view, &errand.peer.qp.fixed, AccessFlags::REMOTE_ATOMIC);
        let Ok((place, _mark)) = self.locate(&need, piece.lkey, piece.addr, 8) else {
            return self.denied(errand, WcStatus::REM_ACCESS_ERR, aftermath);
        };
        let changed = self.change(errand.peer, place, change).and_then(|mut before| {
            let from = List::Plain { start: (&raw mut before).cast(), len: 8 };
            let mut to = errand.slot.list(errand.at).cursor();
            self.transfer(&mut from.cursor(), &mut to, 8).map_err(|_| Fault::Source)
        });
        match changed {
            Ok(()) => Done::well(8, errand.trip.sender_due),
            Err(Fault::Source) => Done::badly(WcStatus::LOC_PROT_ERR),
            Err(Fault::Destination) => self.denied(errand, WcStatus::REM_ACCESS_ERR, aftermath),
            Err(Fault::Gone) => self.vanished(errand),
        }
    }
}

/// How long a sender waits for an acknowledgement; `None` for ever.
fn ack_timeout(at: At<'_>) -> Option<u64> {
    match at.qp.signals.timeout.load(Relaxed) & 31 {
        0 => None,
        exponent => Some(4096 << exponent),
    }
}

/// How long a sender waits before it tries again, in nanoseconds, by the code of the receiver's timer. The codes are
/// those of the InfiniBand specification, in units of 10 microseconds.
fn rnr_pause(code: u32) -> u64 {
    const UNITS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    UNITS[code as usize & 31] * 10_000
}
