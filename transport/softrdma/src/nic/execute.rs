//! Execution of one request: finds the peer and a receive, passes the cable, and runs the operation.
//!
//! A request that can't be executed now waits at the head of its queue; see [`Executor::wait`].

use super::{
    failure::Failures,
    idle, link,
    link::is_one_sided,
    member::Member,
    operation::Operation,
    peer::{self, Peer},
    qp::QpRef,
    receives::Receives,
    request::{Outcome, Request},
};
use crate::{clock::now, link_model::Delivery, profile::UnmatchedSend};
use std::sync::atomic::Ordering::Relaxed;
use verbs_sys::{QpType, WcStatus, WrOpcode};

/// Nanoseconds after which a waiting request is looked at again, to see whether its peer lives and its node
/// is stalled.
const CHECK_PERIOD: u64 = 10_000_000;

/// Executes requests in the name of a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Executor<'a> {
    member: &'a Member,
}

impl<'a> Executor<'a> {
    #[inline]
    pub(super) fn new(member: &'a Member) -> Executor<'a> {
        Executor { member }
    }

    /// Executes the request at the head of a send queue. The caller holds the lock of the queue.
    #[inline]
    pub(super) fn execute(self, qp: QpRef<'a>, slot: Request, failures: &mut Failures) -> Outcome {
        let kind = QpType(qp.record.fixed.kind.load(Relaxed));
        let request = slot.get();
        if slot.list(qp).check().is_err() {
            return Outcome::failure(WcStatus::LOC_PROT_ERR);
        }
        let port = qp.record.fixed.port.load(Relaxed);
        let device = self.member.fabric().device(port);
        let profile = device.profile;
        if request.bytes > profile.max_message_bytes {
            return Outcome::failure(WcStatus::LOC_LEN_ERR);
        }
        if device.idle_ns != 0 {
            idle::check(qp, device);
        }
        let found = match kind {
            QpType::UD => peer::addressed(self.member, qp, request),
            _ => peer::connected(self.member, qp),
        };
        let holds = kind == QpType::UC && profile.uc_unmatched_send == UnmatchedSend::Hold;
        if self.member.is_stalled(port) {
            self.waiting_time(qp);
            return self.wait_for(qp, None);
        }
        let (peer, wire) = match found {
            Peer::Ready(peer, wire) if !self.member.is_stalled(peer.record.fixed.port.load(Relaxed)) => {
                (peer, wire)
            }
            Peer::Ready(..) | Peer::Silent if kind == QpType::RC => return self.unacknowledged(qp),
            Peer::Dead if kind == QpType::RC => return Outcome::failure(WcStatus::RETRY_EXC_ERR),
            _ if holds => return self.wait(qp),
            _ => return Outcome::success(request.bytes, 0),
        };
        let opcode = WrOpcode(request.opcode);
        let uses_receive = opcode == WrOpcode::RDMA_WRITE_WITH_IMM || !is_one_sided(opcode);
        let must_match = kind == QpType::RC || holds;
        let receives = Receives::new(self.member);
        let taken = match uses_receive {
            false => None,
            true if must_match => receives.take_or_wait(peer),
            true => receives.take(peer),
        };
        if uses_receive && taken.is_none() && must_match {
            return self.receiver_not_ready(qp, peer, holds);
        }
        if device.idle_ns != 0 {
            qp.note_use();
            peer.note_use();
        }
        let Some(transit) = link::transmit(qp, kind, &wire, request) else {
            return Outcome::failure(WcStatus::RETRY_EXC_ERR);
        };
        // A message that found no receive when it departed looks again when it arrives.
        let waits_for_arrival = is_one_sided(opcode) || taken.is_none();
        let is_lost = transit.delivery == Delivery::Lost;
        if !is_lost && waits_for_arrival && self.schedule_arrival(qp, transit.receiver_due) {
            return Outcome::Waiting;
        }
        if is_lost || uses_receive && taken.is_none() {
            // An unreliable connection: a reliable one has repeated the lost message.
            return Outcome::success(request.bytes, transit.sender_due);
        }
        Operation::new(self.member, qp, peer, slot, kind, transit).run(
            opcode,
            taken.as_ref(),
            &wire,
            failures,
        )
    }

    /// Whether a request arrives later than now. Schedules another look at its arrival then.
    #[inline]
    fn schedule_arrival(self, qp: QpRef<'_>, arrives: u64) -> bool {
        if arrives == 0 || arrives <= now() {
            return false;
        }
        self.member.timers().schedule_qp(qp, arrives);
        true
    }

    /// Leaves the request waiting until the peer executes it, and notes since when.
    fn wait(self, qp: QpRef<'_>) -> Outcome {
        self.waiting_time(qp);
        Outcome::Waiting
    }

    /// Leaves the request waiting until it fails, `timeout` nanoseconds after it began to wait.
    ///
    /// The request is looked at periodically before, because nobody reports that a peer has died or that a
    /// stalled node continues.
    fn wait_for(self, qp: QpRef<'_>, timeout: Option<u64>) -> Outcome {
        let next_check = now() + CHECK_PERIOD;
        let since = qp.record.send.waits_since.load(Relaxed);
        let end = timeout.map(|timeout| since.saturating_add(timeout + 1));
        self.member.timers().schedule_qp(qp, end.map_or(next_check, |end| end.min(next_check)));
        Outcome::Waiting
    }

    /// Returns the nanoseconds for which the request at the head has been waiting. The first call notes the
    /// time.
    fn waiting_time(self, qp: QpRef<'_>) -> u64 {
        let now = now();
        qp.view.header().waiting.store(1, Relaxed);
        let since = qp.record.send.waits_since.load(Relaxed);
        if since == 0 {
            qp.record.send.waits_since.store(now, Relaxed);
            return 0;
        }
        now.saturating_sub(since)
    }

    /// Waits for the acknowledgement of a reliable peer that does not answer.
    #[cold]
    fn unacknowledged(self, qp: QpRef<'_>) -> Outcome {
        let tries = u64::from(qp.record.signals.retry_count.load(Relaxed)) + 1;
        let waited = self.waiting_time(qp);
        match qp.ack_timeout().map(|timeout| timeout * tries) {
            Some(timeout) if waited > timeout => Outcome::failure(WcStatus::RETRY_EXC_ERR),
            timeout => self.wait_for(qp, timeout),
        }
    }

    /// Waits for a receive of the peer (receiver not ready, RNR).
    #[cold]
    fn receiver_not_ready(self, qp: QpRef<'_>, peer: QpRef<'_>, holds: bool) -> Outcome {
        if holds {
            return self.wait(qp);
        }
        let retries = qp.record.signals.rnr_retry.load(Relaxed);
        let waited = self.waiting_time(qp);
        let pause = rnr_pause(peer.record.signals.min_rnr_timer.load(Relaxed));
        let timeout = (retries < 7).then(|| pause * (u64::from(retries) + 1));
        if timeout.is_some_and(|timeout| waited > timeout) {
            return Outcome::failure(WcStatus::RNR_RETRY_EXC_ERR);
        }
        self.wait_for(qp, timeout)
    }
}

/// Returns the nanoseconds that a sender waits before it tries again, by the code of the receiver's RNR
/// timer.
///
/// The codes are those of the InfiniBand specification, in units of 10 microseconds.
fn rnr_pause(code: u32) -> u64 {
    const UNITS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    UNITS[code as usize & 31] * 10_000
}
