//! Models of the queues and locks in shared memory under a model checker: `make model`.
//!
//! Loom runs each model over all interleavings of its threads with a few preemptions, and over all values
//! that relaxed loads may see. Threads play processes.
//!
//! # Safety
//! Data under a lock is accessed through raw pointers that Loom checks: that is the test.

use super::{
    complete::{Completion, Cqe, CqeRing, Pushed, QueueKind},
    lock::{Acquired, Owner, RobustLock},
    records::{CqRecord, RqRecord, Signals},
};
use loom::{
    cell::UnsafeCell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize},
    },
    thread,
};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

fn process(number: u32) -> Owner {
    Owner { slot: number, incarnation: 7 }
}

/// Runs a model over all interleavings with up to four preemptions.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(4);
    builder.max_branches = 20_000;
    builder.check(model);
}

/// A completion queue with its ring.
struct Queue {
    record: CqRecord,
    cqes: Vec<Cqe>,
}

impl CqeRing for Queue {
    fn cqe(&self, offset: u64) -> Option<&Cqe> {
        self.cqes.get(offset as usize / size_of::<Cqe>())
    }
}

impl Queue {
    fn new(slots: u64, channel: u32) -> Arc<Queue> {
        let cqes = (0..slots).map(|_| Cqe::default()).collect();
        let queue = Queue { record: CqRecord::default(), cqes };
        queue.record.init(0, slots, slots, channel, 0);
        Arc::new(queue)
    }

    fn push(&self, who: u32) -> Pushed {
        self.push_among(who, |_| false)
    }

    /// Pushes a completion all of whose words name the producer.
    fn push_among(&self, who: u32, is_dead: impl FnMut(Owner) -> bool) -> Pushed {
        let said = u64::from(who) + 100;
        let completion = Completion {
            wr_id: said,
            qpn: who,
            bytes: who,
            imm: who,
            number: said,
            kind: QueueKind::Receive,
            ..Completion::default()
        };
        self.record.push(self, process(who), is_dead, None, &completion, || {})
    }

    /// Returns the producer of a completion.
    fn poll(&self, number: u64) -> Option<u32> {
        let found = self.record.peek(self, number)?;
        let who = found.qpn;
        let said = u64::from(who) + 100;
        assert_eq!((found.wr_id, found.number, found.bytes, found.imm), (said, said, who, who), "torn");
        self.record.consume(number + 1);
        Some(who)
    }
}

#[test]
fn loom_completions_of_several_come_whole_and_once() {
    explore(|| {
        let queue = Queue::new(2, 0);
        let producers: Vec<_> = (1..=2)
            .map(|who| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || assert_eq!(queue.push(who), Pushed::Unnotified))
            })
            .collect();
        let early = queue.poll(0);
        producers.into_iter().for_each(|producer| producer.join().expect("a producer"));
        let first = early.or_else(|| queue.poll(0));
        let second = queue.poll(1);
        let mut all = [first, second].map(|who| who.expect("both are there"));
        all.sort_unstable();
        assert_eq!(all, [1, 2]);
        assert_eq!(queue.poll(2), None);
    });
}

#[test]
fn loom_a_full_queue_overflows_and_overwrites_nothing() {
    explore(|| {
        let queue = Queue::new(1, 0);
        let producer = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || [queue.push(1), queue.push(2)])
        };
        let early = queue.poll(0);
        let pushed = producer.join().expect("a producer");
        let first = early.or_else(|| if pushed[1] == Pushed::Unnotified { None } else { queue.poll(0) });
        assert_eq!((first, pushed[0]), (Some(1), Pushed::Unnotified));
        match pushed[1] {
            Pushed::Unnotified => assert_eq!((early, queue.poll(1)), (Some(1), Some(2))),
            _ => assert_eq!(queue.poll(1), None),
        }
    });
}

/// The owner polls, arms, polls once more and sleeps. The producer wakes it unless that poll has found
/// something.
#[test]
fn loom_no_completion_is_slept_through() {
    explore(|| {
        let queue = Queue::new(2, 1);
        let producer = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.push(1))
        };
        queue.record.arm(false);
        let found = queue.poll(0);
        let pushed = producer.join().expect("a producer");
        assert!(found.is_some() || pushed == Pushed::Notified, "asleep, with a completion");
        assert_eq!(queue.record.fixed.pending.load(Relaxed), u32::from(pushed == Pushed::Notified));
    });
}

/// An owner that looks for notifications of dead producers leaves those of the living alone, and wakes
/// nobody.
#[test]
fn loom_what_the_living_announce_is_theirs() {
    explore(|| {
        let queue = Queue::new(2, 1);
        queue.record.arm(false);
        let producer = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.push(1))
        };
        assert!(!queue.record.recover(&*queue, process(3), |_| false, 0));
        assert_eq!(producer.join().expect("a producer"), Pushed::Notified);
        assert_eq!(queue.record.fixed.pending.load(Relaxed), 1);
    });
}

/// A new producer and the owner both find the work of a dead producer. One takes it over, and one wakes.
#[test]
fn loom_what_the_dead_have_not_announced_is_announced_once() {
    explore(|| {
        let queue = Queue::new(4, 1);
        queue.record.arm(false);
        assert_eq!(queue.push(1), Pushed::Notified, "and it dies before it has woken anybody");
        std::mem::forget(queue.record.producers.lock.lock(process(1), |_| false));
        let is_dead = |owner: Owner| owner == process(1);
        let producer = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.push_among(2, is_dead))
        };
        let mended = queue.record.recover(&*queue, process(3), is_dead, 0);
        let pushed = producer.join().expect("a producer");
        assert!(mended != (pushed == Pushed::Notified), "{mended} and {pushed:?}");
        assert_eq!(queue.record.fixed.pending.load(Relaxed), 1);
    });
}

#[test]
fn loom_one_process_at_a_time_holds_a_lock() {
    explore(|| {
        let shared = Arc::new((RobustLock::default(), UnsafeCell::new(0)));
        let others: Vec<_> = (1..=2)
            .map(|who| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let held = shared.0.lock(process(who), |_| false);
                    // SAFETY: one at a time, by the lock. Loom fails if that is not so, or if earlier
                    // accesses are not seen.
                    shared.1.with_mut(|count| unsafe { *count += 1 });
                    drop(held);
                })
            })
            .collect();
        others.into_iter().for_each(|other| other.join().expect("a holder"));
        let _held = shared.0.lock(process(3), |_| false);
        // SAFETY: under the lock.
        shared.1.with(|count| assert_eq!(unsafe { *count }, 2));
    });
}

/// A holder dies, and two others want the lock. One takes it over, and says so. The other gets it from that
/// one.
#[test]
fn loom_a_lock_of_the_dead_is_taken_over_once() {
    explore(|| {
        let shared = Arc::new((RobustLock::default(), UnsafeCell::new(0), AtomicBool::new(false)));
        let add = |who, shared: &(RobustLock, UnsafeCell<u64>, AtomicBool)| {
            let is_dead = |owner| owner == process(0) && shared.2.load(Acquire);
            let held = shared.0.lock(process(who), is_dead);
            // SAFETY: one at a time, by the lock. Loom fails if that is not so.
            shared.1.with_mut(|count| unsafe { *count += 1 });
            usize::from(held.acquired == Acquired::Stolen)
        };
        std::mem::forget(shared.0.lock(process(0), |_| false));
        let waiter = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || add(1, &shared))
        };
        // The holder works before it dies.
        // SAFETY: it holds the lock.
        shared.1.with_mut(|count| unsafe { *count += 10 });
        shared.2.store(true, Release);
        let stolen = add(2, &shared);
        assert_eq!(stolen + waiter.join().expect("a waiter"), 1);
        // SAFETY: the others are done.
        shared.1.with(|count| assert_eq!(unsafe { *count }, 12));
    });
}

/// The two ends of a connection: one posts a send, the other a receive.
#[derive(Default)]
struct Ends {
    sends: RobustLock,
    receives: RqRecord,
    signals: Signals,
    delivered: AtomicUsize,
}

impl Ends {
    /// As the NIC does: takes a receive under the lock of the send queue, or notes that one is missing.
    fn execute(&self, me: Owner) {
        let _sending = self.sends.lock(me, |_| false);
        if self.delivered.load(Relaxed) != 0 {
            return;
        }
        let take = || {
            let _taking = self.receives.consumer.lock.lock(me, |_| false);
            self.receives.next_receive().inspect(|head| self.receives.consumer.head.store(head + 1, Release))
        };
        let taken = take().or_else(|| {
            self.signals.note_waiting(Some(&self.receives));
            take()
        });
        if taken.is_some() {
            self.delivered.fetch_add(1, Relaxed);
        }
    }
}

#[test]
fn loom_a_send_that_waits_meets_its_receive() {
    explore(|| {
        let ends = Arc::new(Ends::default());
        let sender = {
            let ends = Arc::clone(&ends);
            thread::spawn(move || ends.execute(process(1)))
        };
        ends.receives.publish(1);
        if ends.signals.take_waiting() {
            ends.execute(process(2));
        }
        sender.join().expect("a sender");
        assert_eq!(ends.delivered.load(Relaxed), 1, "a send waits beside a receive");
    });
}

/// The same with a shared queue.
#[test]
fn loom_a_send_that_waits_meets_its_shared_receive() {
    explore(|| {
        let ends = Arc::new(Ends::default());
        let sender = {
            let ends = Arc::clone(&ends);
            thread::spawn(move || ends.execute(process(1)))
        };
        ends.receives.publish(1);
        if ends.receives.take_waiting() && ends.signals.take_waiting() {
            ends.execute(process(2));
        }
        sender.join().expect("a sender");
        assert_eq!(ends.delivered.load(Relaxed), 1, "a send waits beside a receive");
    });
}
