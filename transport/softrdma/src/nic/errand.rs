//! What a request does once there is somebody to do it with.

use super::{
    Nic,
    atomics::Change,
    carry::{Done, Errand, Outcome},
    copy::{Fault, List},
    fail::Aftermath,
    receive::{Arrival, Taken},
    region::{Denied, Need},
};
use crate::{link_model::Delivery, profile::Profile, shm::Sge, world::Wire};
use std::sync::atomic::Ordering::Relaxed;
use verbs_sys::{AccessFlags, EventType, Grh, QpType, SendFlags, WcFlags, WcOpcode, WcStatus, WrOpcode};

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

impl Nic {
    #[inline]
    pub(super) fn one_sided(
        &self,
        errand: Errand<'_>,
        opcode: WrOpcode,
        aftermath: &mut Aftermath,
    ) -> Outcome {
        let request = errand.slot.get();
        match opcode {
            WrOpcode::RDMA_WRITE => self.write(errand, aftermath),
            WrOpcode::ATOMIC_CMP_AND_SWP => {
                self.atomic(errand, Change::Swap(request.compare_add, request.swap), aftermath)
            }
            WrOpcode::ATOMIC_FETCH_AND_ADD => {
                self.atomic(errand, Change::Add(request.compare_add), aftermath)
            }
            _ => Done::badly(WcStatus::LOC_QP_OP_ERR),
        }
    }

    #[inline]
    pub(super) fn send(
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
        let is_mismatch = profile.frame_bytes.is_some()
            && profile.depth_units(u64::from(request.bytes)) != profile.depth_units(room);
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
        match errand.trip.delivery {
            Delivery::Corrupted(bit) if bytes > 0 => self.flip(taken.list, header, bit % (bytes as u64 * 8)),
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
        let list = self
            .remote_list(errand, AccessFlags::REMOTE_WRITE, &piece)
            .map_err(|Denied| Unwritten::Denied)?;
        let mut from = errand.slot.list(errand.at).cursor();
        let moved = self.transfer(&mut from, &mut list.cursor(), bytes as usize).and_then(|()| match errand
            .trip
            .delivery
        {
            Delivery::Corrupted(bit) => self.flip(list, 0, bit % (u64::from(bytes) * 8)),
            _ => Ok(()),
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
    pub(super) fn write_and_tell(
        &self,
        errand: Errand<'_>,
        taken: &Taken<'_>,
        aftermath: &mut Aftermath,
    ) -> Outcome {
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

    /// What is at the other end when the request arrives goes back over the cable.
    pub(super) fn read(&self, errand: Errand<'_>, wire: &Wire<'_>, aftermath: &mut Aftermath) -> Outcome {
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
        match self.answer(errand.at, wire, bytes, errand.trip.receiver_due) {
            Some(due) => Done::well(bytes, due),
            None => Done::badly(WcStatus::RETRY_EXC_ERR),
        }
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
            if errand.peer.view.is_wiped() {
                return Err(Fault::Gone);
            }
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
