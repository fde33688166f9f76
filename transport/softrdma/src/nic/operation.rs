//! The operations of requests: sends, writes, reads and atomics, between a queue pair and its peer.

use super::{
    atomics::AtomicOp,
    copy::TransferError,
    failure::Failures,
    link::{self, Transit},
    member::Member,
    qp::QpRef,
    receives::{Arrival, Receives, TakenReceive},
    region::{Access, Denied, Regions},
    request::{Outcome, Request},
    sge_list::SgeList,
    transfer::Transfer,
};
use crate::{fabric_view::Wire, link_model::Delivery, shm::Sge};
use std::sync::atomic::Ordering::Relaxed;
use verbs_sys::{AccessFlags, EventType, Grh, QpType, SendFlags, WcFlags, WcOpcode, WcStatus, WrOpcode};

/// The reason why a write failed.
#[derive(Clone, Copy, Debug)]
enum WriteError {
    /// The source memory is not accessible.
    Source,
    /// The peer does not permit the write.
    Denied,
    /// The peer is dead.
    PeerGone,
}

/// A request that has passed its cable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation<'a> {
    member: &'a Member,
    qp: QpRef<'a>,
    peer: QpRef<'a>,
    request: Request,
    kind: QpType,
    transit: Transit,
}

impl<'a> Operation<'a> {
    #[inline]
    pub(super) fn new(
        member: &'a Member,
        qp: QpRef<'a>,
        peer: QpRef<'a>,
        request: Request,
        kind: QpType,
        transit: Transit,
    ) -> Operation<'a> {
        Operation { member, qp, peer, request, kind, transit }
    }

    /// Executes the operation. `taken` is the receive that it uses up, if its opcode uses one.
    #[inline]
    pub(super) fn run(
        self,
        opcode: WrOpcode,
        taken: Option<&TakenReceive<'a>>,
        wire: &Wire<'_>,
        failures: &mut Failures,
    ) -> Outcome {
        match (opcode, taken) {
            (WrOpcode::SEND | WrOpcode::SEND_WITH_IMM, Some(taken)) => self.send(taken, failures),
            (WrOpcode::RDMA_WRITE_WITH_IMM, Some(taken)) => self.write_with_imm(taken, failures),
            (WrOpcode::RDMA_READ, _) => self.read(wire, failures),
            (WrOpcode::RDMA_WRITE, _) => self.write(failures),
            (WrOpcode::ATOMIC_CMP_AND_SWP, _) => {
                let request = self.request.get();
                let op = AtomicOp::CompareSwap { compare: request.compare_add, swap: request.swap };
                self.atomic(op, failures)
            }
            (WrOpcode::ATOMIC_FETCH_AND_ADD, _) => {
                self.atomic(AtomicOp::FetchAdd(self.request.get().compare_add), failures)
            }
            _ => Outcome::failure(WcStatus::LOC_QP_OP_ERR),
        }
    }

    #[inline]
    fn receives(self) -> Receives<'a> {
        Receives::new(self.member)
    }

    #[inline]
    fn transfer(self) -> Transfer<'a> {
        Transfer::new(self.member.process())
    }

    #[inline]
    fn send(self, taken: &TakenReceive<'a>, failures: &mut Failures) -> Outcome {
        let Operation { peer, kind, transit, .. } = self;
        let request = self.request.get();
        let header = if kind == QpType::UD { size_of::<Grh>() as u32 } else { 0 };
        let has_imm = request.opcode == WrOpcode::SEND_WITH_IMM.0;
        let mut arrival = Arrival {
            opcode: WcOpcode::RECV.0 as u8,
            flags: if has_imm { WcFlags::WITH_IMM.0 as u8 } else { 0 },
            bytes: request.bytes + header,
            imm: if has_imm { request.imm } else { 0 },
            source_qpn: self.qp.qpn(),
            due: transit.receiver_due,
            is_solicited: SendFlags(request.flags).contains(SendFlags::SOLICITED),
            ..Arrival::default()
        };
        if kind == QpType::UD && request.source_gid != 0 {
            arrival.flags |= WcFlags::GRH.0 as u8;
        }
        let room = taken.list.total();
        let profile = self.member.fabric().profile(self.qp.record.fixed.port.load(Relaxed));
        let is_mismatch = profile.frame_bytes.is_some()
            && profile.depth_units(u64::from(request.bytes)) != profile.depth_units(room);
        if u64::from(arrival.bytes) > room || is_mismatch {
            if kind == QpType::UD {
                return Outcome::success(request.bytes, transit.sender_due);
            }
            return self.fail_receive(taken, WcStatus::LOC_LEN_ERR, WcStatus::REM_INV_REQ_ERR, failures);
        }
        if taken.list.check().is_err() {
            return self.fail_receive(taken, WcStatus::LOC_PROT_ERR, WcStatus::REM_OP_ERR, failures);
        }
        match self.deliver(taken, header as usize) {
            Ok(()) => {}
            Err(TransferError::Source) => return Outcome::failure(WcStatus::LOC_PROT_ERR),
            Err(TransferError::Destination) => {
                return self.fail_receive(taken, WcStatus::LOC_PROT_ERR, WcStatus::REM_OP_ERR, failures);
            }
            Err(TransferError::PeerGone) => return self.peer_gone(),
        }
        if !self.receives().complete(peer, taken, &arrival) {
            failures.fail_peer(peer, EventType::QP_FATAL);
            return self.remote_error(WcStatus::REM_OP_ERR);
        }
        Outcome::success(request.bytes, transit.sender_due)
    }

    /// Moves the bytes of a send into a receive, behind the header of a datagram.
    #[inline]
    fn deliver(self, taken: &TakenReceive<'a>, header: usize) -> Result<(), TransferError> {
        let (transfer, request) = (self.transfer(), self.request.get());
        let mut to = taken.list.cursor();
        if header > 0 {
            let port = self.qp.record.fixed.port.load(Relaxed);
            let mut grh = self.member.fabric().grh(self.member.control(), port, request);
            let from = SgeList::Local { start: (&raw mut grh).cast(), len: header };
            transfer.run(&mut from.cursor(), &mut to, header)?;
        }
        let bytes = request.bytes as usize;
        transfer.run(&mut self.request.list(self.qp).cursor(), &mut to, bytes)?;
        match self.transit.delivery {
            Delivery::Corrupted(bit) if bytes > 0 => {
                transfer.flip_bit(taken.list, header, bit % (bytes as u64 * 8))
            }
            _ => Ok(()),
        }
    }

    /// Fails a receive, and with it the connection. The two ends see different statuses.
    #[cold]
    fn fail_receive(
        self,
        taken: &TakenReceive<'_>,
        receiver_status: WcStatus,
        sender_status: WcStatus,
        failures: &mut Failures,
    ) -> Outcome {
        let arrival =
            Arrival { status: receiver_status.0 as u8, opcode: WcOpcode::RECV.0 as u8, ..Arrival::default() };
        self.receives().complete(self.peer, taken, &arrival);
        failures.fail_peer(self.peer, EventType::QP_FATAL);
        self.remote_error(sender_status)
    }

    /// Returns the sender's outcome of an error at the other end. Unreliable senders do not learn of such
    /// errors.
    fn remote_error(self, status: WcStatus) -> Outcome {
        if self.kind == QpType::RC {
            return Outcome::failure(status);
        }
        Outcome::success(self.request.get().bytes, self.transit.sender_due)
    }

    #[cold]
    fn peer_gone(self) -> Outcome {
        self.remote_error(WcStatus::RETRY_EXC_ERR)
    }

    /// Returns the peer's memory that a request names, if the peer permits the access.
    #[inline]
    fn remote_list<'b>(self, flags: AccessFlags, element: &'b Sge) -> Result<SgeList<'b>, Denied>
    where
        'a: 'b,
    {
        let fixed = &self.peer.record.fixed;
        if !AccessFlags(fixed.access.load(Relaxed)).contains(flags) {
            return Err(Denied);
        }
        let access = Access::of_qp(self.peer.view, fixed, flags);
        let list = SgeList::Registered { access, first: element, count: 1 };
        list.check().map(|()| list)
    }

    #[cold]
    fn denied(self, status: WcStatus, failures: &mut Failures) -> Outcome {
        if self.kind == QpType::RC {
            failures.fail_peer(self.peer, EventType::QP_ACCESS_ERR);
        }
        self.remote_error(status)
    }

    /// Moves the bytes of a write into the peer's memory.
    #[inline]
    fn put(self) -> Result<(), WriteError> {
        let request = self.request.get();
        let bytes = request.bytes;
        if bytes == 0 {
            return Ok(());
        }
        let element = Sge { addr: request.remote_addr, len: bytes, lkey: request.rkey };
        let list =
            self.remote_list(AccessFlags::REMOTE_WRITE, &element).map_err(|Denied| WriteError::Denied)?;
        let transfer = self.transfer();
        let mut from = self.request.list(self.qp).cursor();
        let moved = transfer.run(&mut from, &mut list.cursor(), bytes as usize).and_then(|()| {
            match self.transit.delivery {
                Delivery::Corrupted(bit) => transfer.flip_bit(list, 0, bit % (u64::from(bytes) * 8)),
                _ => Ok(()),
            }
        });
        moved.map_err(|error| match error {
            TransferError::Source => WriteError::Source,
            TransferError::Destination => WriteError::Denied,
            TransferError::PeerGone => WriteError::PeerGone,
        })
    }

    /// Returns the sender's outcome of a failed write.
    #[cold]
    fn write_failed(self, error: WriteError, failures: &mut Failures) -> Outcome {
        match error {
            WriteError::Source => Outcome::failure(WcStatus::LOC_PROT_ERR),
            WriteError::Denied => self.denied(WcStatus::REM_ACCESS_ERR, failures),
            WriteError::PeerGone => self.peer_gone(),
        }
    }

    #[inline]
    fn write(self, failures: &mut Failures) -> Outcome {
        match self.put() {
            Ok(()) => Outcome::success(self.request.get().bytes, self.transit.sender_due),
            Err(error) => self.write_failed(error, failures),
        }
    }

    /// A write that uses up a receive.
    ///
    /// The receive is taken before the first byte is written. It stays posted when the write is refused, of
    /// which an unreliable sender does not learn.
    fn write_with_imm(self, taken: &TakenReceive<'_>, failures: &mut Failures) -> Outcome {
        let Operation { peer, transit, .. } = self;
        let request = self.request.get();
        if let Err(error) = self.put() {
            return self.write_failed(error, failures);
        }
        let arrival = Arrival {
            opcode: WcOpcode::RECV_RDMA_WITH_IMM.0 as u8,
            flags: WcFlags::WITH_IMM.0 as u8,
            bytes: request.bytes,
            imm: request.imm,
            source_qpn: self.qp.qpn(),
            due: transit.receiver_due,
            is_solicited: SendFlags(request.flags).contains(SendFlags::SOLICITED),
            ..Arrival::default()
        };
        if !self.receives().complete(peer, taken, &arrival) {
            failures.fail_peer(peer, EventType::QP_FATAL);
            return self.remote_error(WcStatus::REM_OP_ERR);
        }
        Outcome::success(request.bytes, transit.sender_due)
    }

    /// Reads the peer's memory when the request arrives, and sends the bytes back over the cable.
    fn read(self, wire: &Wire<'_>, failures: &mut Failures) -> Outcome {
        let request = self.request.get();
        let bytes = request.bytes;
        if bytes > 0 {
            let element = Sge { addr: request.remote_addr, len: bytes, lkey: request.rkey };
            let Ok(list) = self.remote_list(AccessFlags::REMOTE_READ, &element) else {
                return self.denied(WcStatus::REM_ACCESS_ERR, failures);
            };
            let mut to = self.request.list(self.qp).cursor();
            match self.transfer().run(&mut list.cursor(), &mut to, bytes as usize) {
                Ok(()) => {}
                Err(TransferError::Source) => return self.denied(WcStatus::REM_ACCESS_ERR, failures),
                Err(TransferError::Destination) => return Outcome::failure(WcStatus::LOC_PROT_ERR),
                Err(TransferError::PeerGone) => return self.peer_gone(),
            }
        }
        match link::respond(self.qp, wire, bytes, self.transit.receiver_due) {
            Some(due) => Outcome::success(bytes, due),
            None => Outcome::failure(WcStatus::RETRY_EXC_ERR),
        }
    }

    fn atomic(self, op: AtomicOp, failures: &mut Failures) -> Outcome {
        let request = self.request.get();
        if !request.remote_addr.is_multiple_of(8) || request.bytes < 8 {
            return self.denied(WcStatus::REM_INV_REQ_ERR, failures);
        }
        let element = Sge { addr: request.remote_addr, len: 8, lkey: request.rkey };
        if self.remote_list(AccessFlags::REMOTE_ATOMIC, &element).is_err() {
            return self.denied(WcStatus::REM_ACCESS_ERR, failures);
        }
        let access = Access::of_qp(self.peer.view, &self.peer.record.fixed, AccessFlags::REMOTE_ATOMIC);
        let regions = Regions::new(self.member.process());
        let Ok((location, _guard)) = regions.locate(&access, element.lkey, element.addr, 8) else {
            return self.denied(WcStatus::REM_ACCESS_ERR, failures);
        };
        let executed = op.execute(self.member, self.peer, location).and_then(|mut before| {
            if self.peer.view.is_released() {
                return Err(TransferError::PeerGone);
            }
            let from = SgeList::Local { start: (&raw mut before).cast(), len: 8 };
            let mut to = self.request.list(self.qp).cursor();
            self.transfer().run(&mut from.cursor(), &mut to, 8).map_err(|_| TransferError::Source)
        });
        match executed {
            Ok(()) => Outcome::success(8, self.transit.sender_due),
            Err(TransferError::Source) => Outcome::failure(WcStatus::LOC_PROT_ERR),
            Err(TransferError::Destination) => self.denied(WcStatus::REM_ACCESS_ERR, failures),
            Err(TransferError::PeerGone) => self.peer_gone(),
        }
    }
}
