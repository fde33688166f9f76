//! Queue pairs that fail: at whose hand, who is told, and what becomes of what they hold.

use super::{At, Nic};
use crate::shm::{Kind, Owner};
use std::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};
use verbs_sys::{EventType, QpState};

/// What remains to be done once the lock of a send queue is free again.
#[derive(Debug, Default)]
pub(super) struct Aftermath {
    /// Its queue pair has failed, with this event.
    pub(super) own: Option<Option<EventType>>,
    /// Its peer has failed, with this event.
    pub(super) peer: Option<(Owner, u32, EventType)>,
}

impl Nic {
    pub(super) fn settle(&self, at: At<'_>, aftermath: &Aftermath) {
        if let Some((owner, index, event)) = aftermath.peer
            && let Some(view) = self.process.view(owner.slot, owner.incarnation)
            && let Some(qp) = view.qp(index)
        {
            self.fail(At::new(view, qp), Some(event));
        }
        if let Some(event) = aftermath.own {
            self.fail(at, event);
        }
    }

    /// Moves a queue pair to the state of error and flushes its queues.
    pub(crate) fn fail(&self, at: At<'_>, event: Option<EventType>) {
        let signals = &at.qp.signals;
        signals.flush.store(1, SeqCst);
        let was = at.qp.fixed.state.swap(QpState::ERR.0, AcqRel);
        at.view.header().attention.store(1, SeqCst);
        if let Some(event) = event {
            self.raise(at, event);
        }
        let rq = at.view.rq(at.qp.fixed.rq.load(Relaxed));
        if was != QpState::ERR.0 && rq.is_some_and(|rq| rq.kind() == Kind::SharedReceive) {
            // Its owner may now end it without taking receives along that others share.
            self.raise(at, EventType::QP_LAST_WQE_REACHED);
        }
        self.flush(at);
    }

    /// Raises an asynchronous event of a queue pair.
    pub(crate) fn raise(&self, at: At<'_>, event: EventType) {
        at.qp.signals.events.fetch_or(1 << event.0, SeqCst);
        let channel = at.qp.signals.async_channel.load(Relaxed);
        self.process.waker.wake(at.view.owner.slot, channel);
    }

    /// Completes all that a failed queue pair holds.
    pub(crate) fn flush(&self, at: At<'_>) {
        self.work(at);
        self.flush_receives(at);
        at.qp.signals.flush.store(0, SeqCst);
    }

    /// Looks after what others left to us, and what has changed in the fabric. Cheap when there is nothing.
    #[inline]
    pub(crate) fn tend(&self) {
        self.notice();
        let header = self.process.own().header();
        if header.attention.load(Relaxed) != 0 {
            self.attend();
        }
        if header.waiting.load(Relaxed) != 0 {
            self.retry();
        }
    }

    /// Finishes what others began on this process's queue pairs and did not live to end.
    #[cold]
    pub(crate) fn attend(&self) {
        self.process.own().header().attention.store(0, SeqCst);
        for at in (0..crate::shm::QPS).filter_map(|index| self.own_qp(index)) {
            let is_left = at.qp.signals.flush.load(SeqCst) != 0;
            if is_left && at.qpn() != 0 && at.state() == QpState::ERR {
                self.flush(at);
            }
        }
    }

    /// Tries again what waits on this process's queue pairs: for timers that run out, and peers that die.
    #[cold]
    pub(crate) fn retry(&self) {
        self.process.own().header().waiting.store(0, Relaxed);
        for at in (0..crate::shm::QPS).filter_map(|index| self.own_qp(index)) {
            if at.qp.send.waits_since.load(Relaxed) != 0 && at.qpn() != 0 {
                self.work(at);
            }
        }
    }
}
