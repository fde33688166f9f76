//! The timer queue: requests and completion queues of this process that something happens to at a later time.
//!
//! Requests on a timed cable and requests that wait for a timeout are in the queue, and completion queues
//! whose notification is due later. On a fabric without delays, on which nothing waits, the queue is empty,
//! and a poll reads one word of it. Otherwise a program that polls runs the queue itself, and the [timer
//! thread](super::timer_thread) runs it for a program that does not.
//!
//! The queue is in shared memory, because peers add to it.
//!
//! Invariants: an entry's bit is set before its time is noted, and the time is taken before the bits are
//! read. So an entry is seen, or its writer wakes the timer thread. A request keeps its time until its send
//! queue is empty: if the process that executes it is killed, the owner executes it again.
//!
//! # Safety
//! The handler of the timer thread outlives the queue, by the promise of the caller that sets it.

use super::{
    qp::QpRef,
    timer_thread::{self, TimerHandler, TimerThread},
};
use crate::{
    shm::{TimerRecord, View},
    sync::AtomicU64,
};
use std::sync::{
    Arc,
    atomic::Ordering::{Relaxed, SeqCst},
};

/// This process's timer queue, and the way to those of its peers.
#[derive(Debug)]
pub(crate) struct TimerQueue {
    thread: TimerThread,
    own: Arc<View>,
}

impl TimerQueue {
    pub(super) fn new(own: Arc<View>) -> TimerQueue {
        TimerQueue { thread: TimerThread::new(Arc::clone(&own)), own }
    }

    /// Sets the handler that the timer thread calls. Without a handler there is no timer thread.
    ///
    /// # Safety
    /// `handler` must stay valid until this queue is dropped.
    pub(super) unsafe fn set_handler(&self, handler: *const dyn TimerHandler) {
        // SAFETY: the caller's promise: the thread is a part of this queue.
        unsafe { self.thread.set_handler(handler) };
    }

    fn record(&self) -> &TimerRecord {
        &self.own.header().timers
    }

    /// Returns the earliest time in this process's queue; `u64::MAX` when the queue is empty.
    #[inline]
    pub(super) fn due(&self) -> u64 {
        self.record().due.load(Relaxed)
    }

    /// Schedules another look at the request at the head of a send queue.
    pub(super) fn schedule_qp(&self, qp: QpRef<'_>, when: u64) {
        qp.record.flight.due.store(when, SeqCst);
        set_bit(&qp.view.header().timers.qps, qp.index());
        self.schedule(qp.view, when);
    }

    /// Schedules the notification of a completion queue.
    #[cold]
    pub(super) fn schedule_cq(&self, view: &View, cq: u32, when: u64) {
        set_bit(&view.header().timers.cqs, cq);
        self.schedule(view, when);
    }

    /// Makes a process run its timer queue at `when`.
    fn schedule(&self, view: &View, when: u64) {
        if view.owner == self.own.owner {
            self.thread.ensure_started();
        }
        let record = &view.header().timers;
        // The process that noted an earlier time has woken the thread if necessary.
        if record.due.load(SeqCst) <= when || record.due.fetch_min(when, SeqCst) <= when {
            return;
        }
        if record.sleeps_until.load(SeqCst) > when.saturating_add(record.slack.load(Relaxed)) {
            timer_thread::wake(&record.wake_word);
        }
    }

    /// Takes the entries that are due at `now` off the queue, and passes them to `execute` and `notify`.
    ///
    /// Later requests stay in the queue. `notify` is called for all completion queues in it; it schedules
    /// those with a later notification again.
    pub(super) fn expire(&self, now: u64, mut execute: impl FnMut(QpRef<'_>), notify: impl FnMut(u32)) {
        let record = self.record();
        record.due.swap(u64::MAX, SeqCst);
        for index in take_bits(&record.qps) {
            let qp = self.own.qp(index).map(|record| QpRef::new(&self.own, record));
            let Some(qp) = qp.filter(|qp| qp.qpn() != 0) else { continue };
            match qp.record.flight.due.load(SeqCst) {
                0 => {}
                due if due <= now => execute(qp),
                due => {
                    set_bit(&record.qps, index);
                    self.schedule(qp.view, due);
                }
            }
        }
        take_bits(&record.cqs).for_each(notify);
    }

    /// Notes that the program polls, and has found nothing yet although something is due later.
    pub(super) fn note_poll(&self, now: u64) {
        self.thread.note_poll(now);
    }

    /// Notes that the program is about to sleep, so that its earlier polls no longer delay the timer thread.
    pub(super) fn expect_sleep(&self) {
        self.thread.expect_sleep();
    }
}

fn set_bit(bits: &[AtomicU64], index: u32) {
    if let Some(word) = bits.get(index as usize / 64) {
        word.fetch_or(1 << (index % 64), SeqCst);
    }
}

/// Clears all bits that are set, and returns their indices.
fn take_bits(bits: &[AtomicU64]) -> impl Iterator<Item = u32> + '_ {
    let words = (0u32..).zip(bits).filter(|(_, word)| word.load(SeqCst) != 0);
    words.flat_map(|(number, word)| {
        let taken = word.swap(0, SeqCst);
        (0..64).filter(move |bit| taken >> bit & 1 != 0).map(move |bit| number * 64 + bit)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{super::member::tests::open, *};
    use crate::shm::Process;

    fn process(folder: &tempfile::TempDir) -> Process {
        Process::join(open(folder).0, 0).expect("a slot")
    }

    #[test]
    fn entries_that_are_due_leave_the_queue_and_others_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let process = process(&folder);
        let queue = TimerQueue::new(process.own_shared());
        let own = process.own();
        for index in [1, 70] {
            own.qp(index).expect("a record").fixed.qpn.store(index, Relaxed);
            let qp = QpRef::new(own, own.qp(index).expect("a record"));
            queue.schedule_qp(qp, u64::from(index) * 10);
        }
        queue.schedule_cq(own, 5, 15);
        assert_eq!(queue.due(), 10);
        let (mut qps, mut cqs) = (Vec::new(), Vec::new());
        queue.expire(20, |qp| qps.push(qp.index()), |cq| cqs.push(cq));
        assert_eq!((qps, cqs, queue.due()), (vec![1], vec![5], 700));
        let mut qps = Vec::new();
        queue.expire(700, |qp| qps.push(qp.index()), |_| panic!("the notification was taken"));
        assert_eq!((qps, queue.due()), (vec![70], u64::MAX));
    }

    #[test]
    fn a_peer_adds_to_the_queue_of_the_owner() {
        let folder = tempfile::tempdir().expect("a folder");
        let (owner, peer) = (process(&folder), process(&folder));
        let queues = [&owner, &peer].map(|process| TimerQueue::new(process.own_shared()));
        queues[1].schedule_cq(peer.view(owner.me.slot, 0).expect("the owner"), 3, 40);
        assert_eq!(queues.each_ref().map(TimerQueue::due), [40, u64::MAX]);
    }
}
