//! The receiving side: taking a receive off its queue, and completing it.
//!
//! # Safety
//! Slots lie in a ring within the mapped file of the queue's owner, which is checked for each; they are
//! copied out before they are believed.

use super::{At, Nic, copy::List, region::Need};
use crate::shm::{Came, Completion, Held, Kind, RecvSlot, RqRecord, Sge, View};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use verbs_sys::{AccessFlags, EventType, QpState, WcStatus};

/// A receive at the head of its queue, whose lock is held.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    rq: &'a RqRecord,
    head: u64,
    wr_id: u64,
    pub(super) list: List<'a>,
    _held: Held<'a>,
}

/// What is said about a message that came.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrival {
    pub(super) status: u8,
    pub(super) opcode: u8,
    pub(super) flags: u8,
    pub(super) bytes: u32,
    pub(super) imm: u32,
    pub(super) source_qpn: u32,
    pub(super) due: u64,
    pub(super) is_solicited: bool,
}

impl RqRecord {
    pub(crate) fn kind(&self) -> Kind {
        if self.poster.is_shared.load(Relaxed) == 0 { Kind::Receive } else { Kind::SharedReceive }
    }

    /// The slot of a receive and its first piece.
    pub(crate) fn slot(&self, view: &View, number: u64) -> Option<(*mut RecvSlot, *mut Sge)> {
        let stride = self.poster.stride.load(Relaxed);
        let at = (number & self.poster.mask.load(Relaxed)).checked_mul(stride)?;
        let offset = self.poster.ring.load(Relaxed).checked_add(at)?;
        let pieces = stride.checked_sub(size_of::<RecvSlot>() as u64)?;
        view.area().bytes(offset, stride as usize)?;
        let slot = view.area().at::<RecvSlot>(offset)?;
        (pieces as usize / size_of::<Sge>() > 0).then(|| (slot, slot.wrapping_add(1).cast::<Sge>()))
    }

    /// When a completion may be seen: those of a queue pair's own receives come in their order, those that are flushed
    /// too.
    #[inline]
    fn in_order(&self, due: u64) -> u64 {
        let last = &self.taker.last_due;
        if self.kind() == Kind::SharedReceive {
            return due;
        }
        if due > last.load(Relaxed) {
            last.store(due, Relaxed);
        }
        last.load(Relaxed)
    }

    /// Pieces that a slot has room for.
    fn most_pieces(&self) -> u64 {
        self.poster.stride.load(Relaxed).saturating_sub(size_of::<RecvSlot>() as u64)
            / size_of::<Sge>() as u64
    }
}

impl Nic {
    /// The next receive of a queue pair, if one is posted.
    #[inline]
    pub(super) fn take_receive<'a>(&'a self, peer: At<'a>) -> Option<Taken<'a>> {
        let rq = peer.view.rq(peer.qp.fixed.rq.load(Relaxed))?;
        let held = self.hold(&rq.taker.lock);
        if held.came == Came::Stolen {
            self.mend_receive(peer, rq);
        }
        if !peer.is_current() {
            return None;
        }
        let head = rq.next()?;
        let (slot, first) = rq.slot(peer.view, head)?;
        // SAFETY: inside of the ring, aligned, and written before the tail that we have seen.
        let RecvSlot { wr_id, sges } = unsafe { slot.read() };
        let count = sges.min(rq.most_pieces()) as u32;
        let mut need = Need::of(peer.view, &peer.qp.fixed, AccessFlags::LOCAL_WRITE);
        if rq.kind() == Kind::SharedReceive {
            need.pd = rq.poster.pd.load(Relaxed);
        }
        Some(Taken { rq, head, wr_id, list: List::Pieces { need, first, count }, _held: held })
    }

    /// As [`Nic::take_receive`]. When there is none, says that the sender waits for one, and looks again, as
    /// the receiver posts first and looks for waiting senders then.
    pub(super) fn take_receive_or_wait<'a>(&'a self, peer: At<'a>) -> Option<Taken<'a>> {
        if let Some(taken) = self.take_receive(peer) {
            return Some(taken);
        }
        peer.qp.signals.note_waiting(peer.view.rq(peer.qp.fixed.rq.load(Relaxed)));
        self.take_receive(peer)
    }

    /// Completes a receive and frees its slot. False when the completion queue has overflowed.
    #[inline]
    pub(super) fn arrive(&self, peer: At<'_>, taken: &Taken<'_>, arrival: &Arrival) -> bool {
        let Taken { rq, head, wr_id, .. } = taken;
        let completion = Completion {
            wr_id: *wr_id,
            due: rq.in_order(arrival.due),
            qpn: peer.qpn(),
            source_qpn: arrival.source_qpn,
            bytes: arrival.bytes,
            imm: arrival.imm,
            number: *head,
            at: 0,
            status: arrival.status,
            opcode: arrival.opcode,
            flags: arrival.flags,
            kind: rq.kind(),
            is_solicited: arrival.is_solicited,
        };
        let cq = peer.qp.fixed.recv_cq.load(Relaxed);
        rq.taker.intent_cq.store(u64::from(cq), Relaxed);
        let written = self.complete(peer.view, cq, Some(&rq.taker.intent), &completion);
        rq.taker.head.store(head + 1, Release);
        rq.taker.intent.store(0, Relaxed);
        let limit = rq.poster.limit.load(Relaxed);
        if limit != 0 {
            self.check_limit(peer.view, rq, head + 1, limit);
        }
        written
    }

    #[cold]
    fn check_limit(&self, view: &View, rq: &RqRecord, head: u64, limit: u32) {
        let is_below = rq.poster.tail.load(Acquire).wrapping_sub(head) < u64::from(limit);
        if is_below && rq.poster.limit.swap(0, SeqCst) != 0 {
            rq.poster.events.fetch_or(1 << EventType::SRQ_LIMIT_REACHED.0, SeqCst);
            self.process.waker.wake(view.owner.slot, rq.poster.async_channel.load(Relaxed));
        }
    }

    /// The holder of a receive queue's lock died. If it got as far as writing the completion of the receive
    /// at the head, the receive is used up; else it serves the next message.
    #[cold]
    fn mend_receive(&self, peer: At<'_>, rq: &RqRecord) {
        let (intent, head) = (rq.taker.intent.load(Acquire), rq.taker.head.load(Relaxed));
        let qpn = (rq.kind() == Kind::Receive).then(|| peer.qpn());
        let cq = peer.view.cq(rq.taker.intent_cq.load(Relaxed) as u32);
        if cq.is_some_and(|cq| cq.was_pushed(peer.view, intent, qpn, rq.kind(), head)) {
            rq.taker.head.store(head + 1, Release);
        }
        rq.taker.intent.store(0, Relaxed);
    }

    /// Completes all receives of a queue pair's own queue as flushed.
    pub(super) fn flush_receives(&self, at: At<'_>) {
        while at.state() == QpState::ERR
            && at.view.rq(at.qp.fixed.rq.load(Relaxed)).is_some_and(|rq| rq.kind() == Kind::Receive)
        {
            let Some(taken) = self.take_receive(at) else { return };
            let flushed = Arrival {
                status: WcStatus::WR_FLUSH_ERR.0 as u8,
                opcode: verbs_sys::WcOpcode::RECV.0 as u8,
                ..Arrival::default()
            };
            self.arrive(at, &taken, &flushed);
        }
    }

    /// After a receive was posted, or a queue pair became ready: carries out what its peer has waiting.
    #[inline]
    pub(crate) fn serve(&self, at: At<'_>) {
        if at.qp.signals.take_waiting() {
            self.serve_peer(at);
        }
    }

    #[cold]
    fn serve_peer(&self, at: At<'_>) {
        let fixed = &at.qp.fixed;
        let qpn = fixed.dest_qpn.load(Relaxed);
        let peer = self.process.view(super::number::slot(qpn), fixed.dest_incarnation.load(Relaxed));
        if let Some(view) = peer
            && let Some(qp) = view.qp(super::number::index(qpn))
            && qp.fixed.qpn.load(Relaxed) == qpn
            && !view.seems_dead()
        {
            self.work(At::new(view, qp));
        }
    }

    /// After receives were posted to a shared queue: serves all queue pairs that use it.
    #[cold]
    pub(crate) fn serve_all(&self, rq: u32) {
        for at in (0..crate::shm::QPS).filter_map(|index| self.own_qp(index)) {
            if at.qpn() != 0 && at.qp.fixed.rq.load(Relaxed) == rq {
                self.serve(at);
            }
        }
    }
}
