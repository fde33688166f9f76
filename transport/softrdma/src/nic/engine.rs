//! The work-request engine: executes send queues, and fails and flushes queue pairs.
//!
//! The process that posts a request executes it, or, if the request had to wait for a receive, the process
//! that posts the receive. That process holds the lock of the send queue, then that of the receive queue,
//! then that of a completion queue, always in this order: so there is no deadlock. Queue pairs that fail
//! meanwhile are flushed once the lock of the send queue is free again.

use super::{
    completions::Completions,
    credits::Credits,
    execute::Executor,
    failure::Failures,
    link::is_in_flight,
    member::Member,
    orphan_repair::recover_send_queue,
    qp::QpRef,
    qp_number,
    receives::Receives,
    request::{Outcome, Request, RequestResult},
};
use crate::{
    clock::now,
    shm::{Acquired, Completion, QueueKind},
};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use verbs_sys::{EventType, QpState, QpType, WcStatus};

/// Executes the send queues of a member, and those of its peers that wait for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Engine<'a> {
    member: &'a Member,
}

impl<'a> Engine<'a> {
    #[inline]
    pub(super) fn new(member: &'a Member) -> Engine<'a> {
        Engine { member }
    }

    /// Executes the requests of a send queue, as far as possible now.
    pub(super) fn execute(self, qp: QpRef<'_>) {
        let mut failures = Failures::default();
        let guard = self.member.lock(&qp.record.send.lock);
        if guard.acquired == Acquired::Stolen {
            recover_send_queue(qp);
        }
        if qp.is_current() {
            self.execute_locked(qp, &mut failures);
        }
        drop(guard);
        self.apply(qp, &failures);
    }

    /// Executes the requests of a send queue whose lock the caller holds.
    fn execute_locked(self, qp: QpRef<'_>, failures: &mut Failures) {
        let send = &qp.record.send;
        loop {
            let (head, state) = (send.head.load(Relaxed), qp.state());
            if state == QpState::SQD && !is_in_flight(&qp.record.flight, head) {
                return self.report_drained(qp);
            }
            if head == qp.record.producer.tail.load(Acquire) {
                qp.record.flight.due.store(0, Relaxed);
                return;
            }
            let Some(request) = Request::at(qp, head) else { return };
            let result = match state {
                QpState::ERR | QpState::SQE => RequestResult::with_status(WcStatus::WR_FLUSH_ERR),
                // A request in flight still arrives while the queue is drained.
                QpState::RTS | QpState::SQD => {
                    match Executor::new(self.member).execute(qp, request, failures) {
                        Outcome::Completed(result) => result,
                        Outcome::Waiting => return,
                    }
                }
                _ => return,
            };
            self.complete_head(qp, request, head, &result, failures);
        }
    }

    /// Tells the owner, if it has asked, that the send queue is drained, once the last completion can be
    /// seen.
    #[cold]
    fn report_drained(self, qp: QpRef<'_>) {
        if qp.record.signals.drain.load(SeqCst) == 0 {
            return;
        }
        let due = qp.record.send.last_due.load(Relaxed);
        if due > now() {
            self.member.timers().schedule_qp(qp, due);
        } else if qp.record.signals.drain.swap(0, SeqCst) != 0 {
            self.raise(qp, EventType::SQ_DRAINED);
        }
    }

    /// Completes the request at the head of a send queue, and moves on to the next.
    #[inline]
    fn complete_head(
        self,
        qp: QpRef<'_>,
        request: Request,
        head: u64,
        result: &RequestResult,
        failures: &mut Failures,
    ) {
        let (fixed, send) = (&qp.record.fixed, &qp.record.send);
        let is_error = result.status != WcStatus::SUCCESS;
        let due = qp.in_order(result.due);
        if is_error || request.is_signaled() {
            let completion = Completion {
                wr_id: request.get().wr_id,
                due,
                qpn: qp.qpn(),
                bytes: result.bytes,
                number: head,
                status: result.status.0 as u8,
                opcode: request.completion_opcode(),
                kind: QueueKind::Send,
                ..Completion::default()
            };
            let cq = fixed.send_cq.load(Relaxed);
            let written = Completions::new(self.member).push(qp.view, cq, Some(&send.intent), &completion);
            if written && is_error && self.stops_sends_only(qp) {
                // Fails, as it must, if the whole queue pair has failed meanwhile.
                let _ = fixed.state.compare_exchange(QpState::RTS.0, QpState::SQE.0, AcqRel, Acquire);
            } else if !written || is_error && qp.state() != QpState::ERR {
                failures.own = Some(if written { None } else { Some(EventType::QP_FATAL) });
                fixed.state.store(QpState::ERR.0, Release);
            }
        }
        send.waits_since.store(0, Relaxed);
        qp.record.flight.number.store(0, Relaxed);
        send.head.store(head + 1, Release);
        send.intent.store(0, Relaxed);
    }

    /// Whether an error of a send leaves the receives usable, as on unreliable services.
    #[cold]
    fn stops_sends_only(self, qp: QpRef<'_>) -> bool {
        let fixed = &qp.record.fixed;
        let is_unreliable = QpType(fixed.kind.load(Relaxed)) != QpType::RC;
        let profile = self.member.fabric().profile(fixed.port.load(Relaxed));
        is_unreliable && profile.unreliable_errors_enter_sqe && qp.state() != QpState::ERR
    }

    /// Applies the failures that were noted under the lock of `qp`'s send queue.
    fn apply(self, qp: QpRef<'_>, failures: &Failures) {
        if let Some((owner, index, event)) = failures.peer
            && let Some(view) = self.member.process().view(owner.slot, owner.incarnation)
            && let Some(record) = view.qp(index)
        {
            self.fail(QpRef::new(view, record), Some(event));
        }
        if let Some(event) = failures.own {
            self.fail(qp, event);
        }
    }

    /// Moves a queue pair to the error state, raises `event`, and flushes the queues.
    pub(super) fn fail(self, qp: QpRef<'_>, event: Option<EventType>) {
        qp.record.signals.flush.store(1, SeqCst);
        let was = qp.record.fixed.state.swap(QpState::ERR.0, AcqRel);
        qp.view.header().attention.store(1, SeqCst);
        if let Some(event) = event {
            self.raise(qp, event);
        }
        let rq = qp.view.rq(qp.record.fixed.rq.load(Relaxed));
        if was != QpState::ERR.0 && rq.is_some_and(|rq| rq.kind() == QueueKind::SharedReceive) {
            // From now on the owner may destroy the queue pair without losing receives of the shared queue.
            self.raise(qp, EventType::QP_LAST_WQE_REACHED);
        }
        self.flush(qp);
    }

    /// Raises an asynchronous event of a queue pair.
    fn raise(self, qp: QpRef<'_>, event: EventType) {
        let signals = &qp.record.signals;
        signals.events.fetch_or(1 << event.0, SeqCst);
        let channel = signals.async_channel.load(Relaxed);
        self.member.process().waker.wake(qp.view.owner.slot, channel);
    }

    /// Completes everything that a failed queue pair holds.
    pub(super) fn flush(self, qp: QpRef<'_>) {
        self.execute(qp);
        Receives::new(self.member).flush(qp);
        qp.record.signals.flush.store(0, SeqCst);
    }

    /// Executes the waiting requests of a queue pair's peer, after `qp` has posted a receive or has become
    /// ready.
    #[inline]
    pub(super) fn resume_peer(self, qp: QpRef<'_>) {
        if qp.record.signals.take_waiting() {
            self.execute_peer(qp);
        }
    }

    #[cold]
    fn execute_peer(self, qp: QpRef<'_>) {
        let fixed = &qp.record.fixed;
        let qpn = fixed.dest_qpn.load(Relaxed);
        let peer = self.member.process().view(qp_number::slot(qpn), fixed.dest_incarnation.load(Relaxed));
        if let Some(view) = peer
            && let Some(record) = view.qp(qp_number::index(qpn))
            && record.fixed.qpn.load(Relaxed) == qpn
            && !view.seems_dead()
        {
            self.execute(QpRef::new(view, record));
        }
    }

    /// Executes the waiting requests of all peers of a shared receive queue, after receives were posted to
    /// it.
    #[cold]
    pub(super) fn resume_peers_of(self, rq: u32) {
        for qp in self.member.own_qps().filter(|qp| qp.record.fixed.rq.load(Relaxed) == rq) {
            self.resume_peer(qp);
        }
    }

    /// Flushes this process's queue pairs that peers have failed, in case the peer died before it had flushed
    /// them.
    #[cold]
    pub(super) fn flush_failed(self) {
        self.member.process().own().header().attention.store(0, SeqCst);
        for qp in self.member.own_qps() {
            if qp.record.signals.flush.load(SeqCst) != 0 && qp.state() == QpState::ERR {
                self.flush(qp);
            }
        }
    }

    /// Looks again at this process's waiting requests: their time may be over, or their peer dead.
    #[cold]
    pub(super) fn retry_waiting(self) {
        self.member.process().own().header().waiting.store(0, Relaxed);
        for qp in self.member.own_qps().filter(|qp| qp.record.send.waits_since.load(Relaxed) != 0) {
            self.execute(qp);
        }
    }

    /// Empties both queues of a queue pair of this process without completions. `end` runs under both locks.
    pub(super) fn discard(self, qp: QpRef<'_>, credits: &Credits, end: impl FnOnce()) {
        let rq_index = qp.record.fixed.rq.load(Relaxed);
        let Some(rq) = qp.view.rq(rq_index) else { return };
        let send = &qp.record.send;
        let _sends = self.member.lock(&send.lock);
        let _receives = self.member.lock(&rq.consumer.lock);
        let posted = qp.record.producer.tail.load(Acquire);
        send.head.store(posted, Release);
        send.intent.store(0, Relaxed);
        send.waits_since.store(0, Relaxed);
        send.last_due.store(0, Relaxed);
        qp.record.flight.number.store(0, Relaxed);
        qp.record.flight.due.store(0, Relaxed);
        credits.set_freed_sends(qp.index(), posted);
        if rq.kind() == QueueKind::Receive {
            let posted = rq.producer.tail.load(Acquire);
            rq.consumer.head.store(posted, Release);
            rq.consumer.intent.store(0, Relaxed);
            rq.consumer.last_due.store(0, Relaxed);
            credits.set_freed_receives(rq_index, posted);
        }
        end();
    }
}
