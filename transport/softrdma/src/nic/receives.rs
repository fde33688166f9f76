//! The receiving side: takes receives off their queues, and completes them.
//!
//! # Safety
//! Slots lie in a ring within the mapped file of the queue's owner, which is checked for each slot. A slot is
//! copied before its content is checked.

use super::{
    completions::Completions, member::Member, orphan_repair::recover_receive_queue, qp::QpRef,
    region::Access, sge_list::SgeList,
};
use crate::shm::{Acquired, Completion, QueueKind, RecvSlot, RobustGuard, RqRecord, View};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use verbs_sys::{AccessFlags, EventType, QpState, WcOpcode, WcStatus};

/// A receive at the head of its queue. Holds the queue's lock.
#[derive(Debug)]
pub(super) struct TakenReceive<'a> {
    rq: &'a RqRecord,
    head: u64,
    wr_id: u64,
    pub(super) list: SgeList<'a>,
    _guard: RobustGuard<'a>,
}

/// Values of a receive's completion that come from the message.
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

/// The receive queues that a member reaches: its own and those of its peers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receives<'a> {
    member: &'a Member,
}

impl<'a> Receives<'a> {
    #[inline]
    pub(super) fn new(member: &'a Member) -> Receives<'a> {
        Receives { member }
    }

    /// Takes the next receive of a queue pair, if one is posted.
    #[inline]
    pub(super) fn take(self, qp: QpRef<'a>) -> Option<TakenReceive<'a>> {
        let rq = qp.view.rq(qp.record.fixed.rq.load(Relaxed))?;
        let guard = self.member.lock(&rq.consumer.lock);
        if guard.acquired == Acquired::Stolen {
            recover_receive_queue(qp, rq);
        }
        if !qp.is_current() {
            return None;
        }
        let head = rq.next_receive()?;
        let (slot, first) = rq.slot(qp.view, head)?;
        // SAFETY: inside of the ring, aligned, and written before the tail that we have seen.
        let RecvSlot { wr_id, sges } = unsafe { slot.read() };
        let count = sges.min(rq.max_sges()) as u32;
        let mut access = Access::of_qp(qp.view, &qp.record.fixed, AccessFlags::LOCAL_WRITE);
        if rq.kind() == QueueKind::SharedReceive {
            access.pd = rq.producer.pd.load(Relaxed);
        }
        let list = SgeList::Registered { access, first, count };
        Some(TakenReceive { rq, head, wr_id, list, _guard: guard })
    }

    /// Takes the next receive of a queue pair. If none is posted, notes that the sender waits, and looks
    /// again.
    ///
    /// The receiver posts first and then looks for waiting senders, so one of the two sees the other.
    pub(super) fn take_or_wait(self, qp: QpRef<'a>) -> Option<TakenReceive<'a>> {
        if let Some(taken) = self.take(qp) {
            return Some(taken);
        }
        qp.record.signals.note_waiting(qp.view.rq(qp.record.fixed.rq.load(Relaxed)));
        self.take(qp)
    }

    /// Completes a receive of `qp` and frees its slot. Returns false when the completion queue has
    /// overflowed.
    #[inline]
    pub(super) fn complete(self, qp: QpRef<'_>, taken: &TakenReceive<'_>, arrival: &Arrival) -> bool {
        let TakenReceive { rq, head, wr_id, .. } = taken;
        let completion = Completion {
            wr_id: *wr_id,
            due: rq.in_order(arrival.due),
            qpn: qp.qpn(),
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
        let cq = qp.record.fixed.recv_cq.load(Relaxed);
        let consumer = &rq.consumer;
        consumer.intent_cq.store(u64::from(cq), Relaxed);
        let written = Completions::new(self.member).push(qp.view, cq, Some(&consumer.intent), &completion);
        consumer.head.store(head + 1, Release);
        consumer.intent.store(0, Relaxed);
        let limit = rq.producer.limit.load(Relaxed);
        if limit != 0 {
            self.check_limit(qp.view, rq, head + 1, limit);
        }
        written
    }

    /// Raises the event of a shared queue that has fewer receives than its limit.
    #[cold]
    fn check_limit(self, view: &View, rq: &RqRecord, head: u64, limit: u32) {
        let producer = &rq.producer;
        let is_below = producer.tail.load(Acquire).wrapping_sub(head) < u64::from(limit);
        if is_below && producer.limit.swap(0, SeqCst) != 0 {
            producer.events.fetch_or(1 << EventType::SRQ_LIMIT_REACHED.0, SeqCst);
            self.member.process().waker.wake(view.owner.slot, producer.async_channel.load(Relaxed));
        }
    }

    /// Completes all receives of a failed queue pair's own queue as flushed.
    pub(super) fn flush(self, qp: QpRef<'a>) {
        while qp.state() == QpState::ERR
            && qp.view.rq(qp.record.fixed.rq.load(Relaxed)).is_some_and(|rq| rq.kind() == QueueKind::Receive)
        {
            let Some(taken) = self.take(qp) else { return };
            let flushed = Arrival {
                status: WcStatus::WR_FLUSH_ERR.0 as u8,
                opcode: WcOpcode::RECV.0 as u8,
                ..Arrival::default()
            };
            self.complete(qp, &taken, &flushed);
        }
    }
}
