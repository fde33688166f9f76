//! Completion reporting: writes completions to queues of this process and of peers, and notifies their
//! owners.

use super::member::Member;
use crate::{
    clock::now,
    shm::{Completion, CqRecord, Intent, Pushed, View},
    sync::AtomicU64,
};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use verbs_sys::EventType;

/// Reports completions in the name of a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completions<'a> {
    member: &'a Member,
}

impl<'a> Completions<'a> {
    #[inline]
    pub(super) fn new(member: &'a Member) -> Completions<'a> {
        Completions { member }
    }

    /// Writes a completion to the queue `cq` of a process, and notifies its owner if the queue is armed.
    ///
    /// `intent` receives the place of the completion before it is written. Returns false when the queue has
    /// overflowed.
    pub(super) fn push(
        self,
        view: &View,
        cq: u32,
        intent: Option<&AtomicU64>,
        completion: &Completion,
    ) -> bool {
        let Some(record) = view.cq(cq) else { return false };
        let process = self.member.process();
        let is_dead = |owner| process.is_dead(owner);
        let timed;
        let completion = if record.fixed.wants_times.load(Relaxed) == 0 {
            completion
        } else {
            timed = Completion { at: completion.due.max(now()), ..*completion };
            &timed
        };
        let wake = || process.waker.wake(view.owner.slot, record.fixed.channel.load(Relaxed));
        match record.push(view, process.me, is_dead, intent.map(Intent), completion, wake) {
            Pushed::Unnotified | Pushed::Notified => true,
            Pushed::Deferred => {
                self.member.timers().schedule_cq(view, cq, completion.due);
                true
            }
            Pushed::Overrun => {
                self.report_overrun(view, record);
                false
            }
        }
    }

    /// Raises the event of a completion queue's overflow, unless it was raised before.
    #[cold]
    pub(super) fn report_overrun(self, view: &View, record: &CqRecord) {
        let bit = 1 << EventType::CQ_ERR.0;
        if record.fixed.overrun.swap(2, SeqCst) != 2 {
            record.fixed.events.fetch_or(bit, SeqCst);
            self.member.process().waker.wake(view.owner.slot, record.fixed.async_channel.load(Relaxed));
        }
    }

    /// Notifies the owner of a queue of this process if a completion is due that the queue is armed for, and
    /// schedules the next notification.
    pub(super) fn notify_due(self, cq: u32, now: u64) {
        let process = self.member.process();
        let own = process.own();
        let Some(record) = own.cq(cq) else { return };
        if record.notify_due(now) {
            process.waker.wake(own.owner.slot, record.fixed.channel.load(Relaxed));
        }
        self.schedule_next(cq, record);
    }

    /// Schedules the next notification of a queue of this process, if it has one.
    pub(super) fn schedule_next(self, cq: u32, record: &CqRecord) {
        let next = record.next_notification();
        if next != u64::MAX {
            self.member.timers().schedule_cq(self.member.process().own(), cq, next);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{super::member::tests::member, *};

    #[test]
    fn an_overflow_is_an_event_of_the_queue() {
        let folder = tempfile::tempdir().expect("a folder");
        let member = member(&folder);
        let own = member.process().own();
        let record = own.cq(1).expect("a record");
        let ring = member.process().allocate(2 * 64).expect("room");
        record.init(ring.0, 2, 2, 0, 0);
        let push = || Completions::new(&member).push(own, 1, None, &Completion::default());
        assert_eq!([push(), push(), push()], [true, true, false]);
        assert_eq!(record.fixed.events.swap(0, SeqCst), 1 << EventType::CQ_ERR.0);
        assert!(!push());
        assert_eq!(record.fixed.events.load(SeqCst), 0, "the event is raised once");
    }

    #[test]
    fn completions_have_a_time_where_the_queue_wants_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let member = member(&folder);
        let own = member.process().own();
        let record = own.cq(1).expect("a record");
        let ring = member.process().allocate(2 * 64).expect("room");
        record.init(ring.0, 2, 2, 0, 0);
        let before = now();
        for wants_times in [0, 1] {
            record.fixed.wants_times.store(wants_times, Relaxed);
            assert!(Completions::new(&member).push(own, 1, None, &Completion::default()));
            let written = record.peek(own, wants_times.into()).expect("a completion");
            assert_eq!(written.at >= before, wants_times != 0);
        }
    }
}
