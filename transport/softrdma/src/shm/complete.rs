//! Completion queues: many producers in many processes, one polling process, and no lock on the polling side.
//!
//! A completion is one cache line whose first word, written last, is the number of the completion plus one.
//! Producers take turns by a [`RobustLock`](super::lock::RobustLock). A producer that dies after it has
//! written that word and before it has moved the tail leaves a completion that counts: the next producer
//! finds the word and moves the tail past it.
//!
//! # Safety
//! Slots of the ring consist of atomics, which other processes read and write at any time.

use super::{
    lock::{Acquired, Owner},
    map::Atomics,
    records::CqRecord,
};
use crate::sync::{AtomicU64, fence};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// The file of the process that owns a queue, as the ring of its completions.
pub(crate) trait CqeRing {
    /// Returns the slot at an offset of the file.
    fn cqe(&self, offset: u64) -> Option<&Cqe>;
}

/// The content of a completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Completion {
    pub(crate) wr_id: u64,
    /// Time from which the completion may be seen, in nanoseconds of the monotonic clock; zero for at once.
    pub(crate) due: u64,
    pub(crate) qpn: u32,
    pub(crate) source_qpn: u32,
    pub(crate) bytes: u32,
    /// Immediate data in network order.
    pub(crate) imm: u32,
    /// Number of the request or receive in its queue.
    pub(crate) number: u64,
    /// Time of the completion in nanoseconds of the monotonic clock, where the queue records times; else
    /// zero.
    pub(crate) at: u64,
    pub(crate) status: u8,
    pub(crate) opcode: u8,
    pub(crate) flags: u8,
    pub(crate) kind: QueueKind,
    pub(crate) is_solicited: bool,
}

/// The queue whose entry is completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum QueueKind {
    #[default]
    Send = 0,
    Receive = 1,
    SharedReceive = 2,
}

/// A slot of a completion queue's ring (a completion queue entry).
#[derive(Debug)]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(64))]
pub(crate) struct Cqe([AtomicU64; 8]);

// SAFETY: an array of atomics.
unsafe impl Atomics for Cqe {}

impl Completion {
    /// Whether an owner that waits for solicited completions is notified of this one.
    fn is_solicited_or_error(&self) -> bool {
        self.is_solicited || self.status != 0
    }

    fn words(&self) -> [u64; 7] {
        let small = u64::from(self.status)
            | u64::from(self.opcode) << 8
            | u64::from(self.flags) << 16
            | u64::from(self.kind as u8) << 24
            | u64::from(self.is_solicited) << 32;
        [
            self.wr_id,
            self.due,
            u64::from(self.qpn) | u64::from(self.source_qpn) << 32,
            u64::from(self.bytes) | u64::from(self.imm) << 32,
            self.number,
            small,
            self.at,
        ]
    }

    fn of_words(words: [u64; 7]) -> Completion {
        Completion {
            wr_id: words[0],
            due: words[1],
            qpn: words[2] as u32,
            source_qpn: (words[2] >> 32) as u32,
            bytes: words[3] as u32,
            imm: (words[3] >> 32) as u32,
            number: words[4],
            at: words[6],
            status: words[5] as u8,
            opcode: (words[5] >> 8) as u8,
            flags: (words[5] >> 16) as u8,
            kind: match (words[5] >> 24) as u8 {
                1 => QueueKind::Receive,
                2 => QueueKind::SharedReceive,
                _ => QueueKind::Send,
            },
            is_solicited: words[5] >> 32 & 1 != 0,
        }
    }
}

/// The outcome of pushing a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// The queue was not armed: nobody is notified.
    Unnotified,
    /// The queue was armed: its owner was notified.
    Notified,
    /// The queue has a channel, and the completion is due later: the caller schedules the notification.
    Deferred,
    /// The queue was full. It fails from now on.
    Overrun,
}

/// The word in which a producer notes the place that it is about to write, plus one. The next holder of the
/// lock reads it to tell whether the dead producer has written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Intent<'a>(pub(crate) &'a AtomicU64);

impl CqRecord {
    /// Initializes the record of a new queue. Only the owner calls this, before other processes know the
    /// queue.
    pub(crate) fn init(&self, ring: u64, slots: u64, capacity: u64, channel: u32, async_channel: u32) {
        self.producers.lock.reset();
        self.producers.tail.store(0, Relaxed);
        self.producers.seen_head.store(0, Relaxed);
        self.consumer.head.store(0, Relaxed);
        let fixed = &self.fixed;
        for word in &fixed.notify_at {
            word.store(u64::MAX, Relaxed);
        }
        for word in [&fixed.armed, &fixed.pending, &fixed.overrun, &fixed.events, &fixed.wants_times] {
            word.store(0, Relaxed);
        }
        fixed.mask.store(slots - 1, Relaxed);
        fixed.capacity.store(capacity, Relaxed);
        fixed.channel.store(channel, Relaxed);
        fixed.async_channel.store(async_channel, Relaxed);
        fixed.ring.store(ring, Release);
    }

    fn cqe<'a>(&self, view: &'a impl CqeRing, number: u64) -> Option<&'a Cqe> {
        let slot = number & self.fixed.mask.load(Relaxed);
        let offset = slot.checked_mul(size_of::<Cqe>() as u64)?.checked_add(self.fixed.ring.load(Relaxed))?;
        view.cqe(offset)
    }

    /// Writes a completion behind the others, and notifies the owner if the queue is armed.
    ///
    /// `view` is the file of the queue's owner, and `wake` wakes the owner. `wake` is called before the lock
    /// is free again. So a free lock means that the owner has been notified.
    pub(crate) fn push(
        &self,
        view: &impl CqeRing,
        me: Owner,
        is_dead: impl FnMut(Owner) -> bool,
        intent: Option<Intent<'_>>,
        completion: &Completion,
        wake: impl FnOnce(),
    ) -> Pushed {
        let held = self.producers.lock.lock(me, is_dead);
        let mut tail = self.producers.tail.load(Relaxed);
        let mut has_unsent = false;
        if held.acquired == Acquired::Stolen {
            if self.is_written(view, tail) {
                tail += 1;
                self.producers.tail.store(tail, Relaxed);
            }
            has_unsent = self.fixed.pending.load(SeqCst) != 0;
        }
        let capacity = self.fixed.capacity.load(Relaxed);
        if tail.wrapping_sub(self.producers.seen_head.load(Relaxed)) >= capacity {
            let head = self.consumer.head.load(Acquire);
            self.producers.seen_head.store(head, Relaxed);
            if tail.wrapping_sub(head) >= capacity {
                // Keeps the note that the overflow was reported.
                self.fixed.overrun.fetch_max(1, Relaxed);
            }
        }
        let cqe = match self.cqe(view, tail) {
            Some(cqe) if self.fixed.overrun.load(Relaxed) == 0 => cqe,
            _ => return Pushed::Overrun,
        };
        if let Some(Intent(word)) = intent {
            word.store(tail + 1, Release);
        }
        for (word, value) in cqe.0[1..].iter().zip(completion.words()) {
            word.store(value, Relaxed);
        }
        cqe.0[0].store(tail + 1, Release);
        self.producers.tail.store(tail + 1, Relaxed);
        let mut pushed = self.notify(completion);
        if has_unsent && pushed == Pushed::Unnotified {
            pushed = Pushed::Notified;
        }
        if pushed == Pushed::Notified || has_unsent {
            wake();
        }
        drop(held);
        pushed
    }

    /// Notifies the owner if the queue is armed.
    ///
    /// The counterpart of [`CqRecord::arm`]: the producer writes the completion and then reads the arming;
    /// the owner arms and then polls once more. So one of the two sees the other.
    #[inline]
    fn notify(&self, completion: &Completion) -> Pushed {
        if self.fixed.channel.load(Relaxed) == 0 {
            return Pushed::Unnotified;
        }
        if completion.due != 0 {
            self.defer_notification(completion);
            return Pushed::Deferred;
        }
        fence(SeqCst);
        let armed = self.fixed.armed.load(Relaxed);
        let wanted = armed == 1 || armed == 2 && completion.is_solicited_or_error();
        if wanted && self.fixed.armed.swap(0, SeqCst) != 0 {
            self.fixed.pending.fetch_add(1, SeqCst);
            return Pushed::Notified;
        }
        Pushed::Unnotified
    }

    /// Notes the time at which the owner is to be notified of a completion that is due later.
    pub(crate) fn defer_notification(&self, completion: &Completion) {
        let [any, solicited] = &self.fixed.notify_at;
        any.fetch_min(completion.due, SeqCst);
        if completion.is_solicited_or_error() {
            solicited.fetch_min(completion.due, SeqCst);
        }
    }

    /// Counts a notification if a completion is due that the queue is armed for. The owner calls this, and
    /// then wakes its channel.
    ///
    /// An owner that arms the queue later finds the completions that were due before by polling.
    pub(crate) fn notify_due(&self, now: u64) -> bool {
        let is_due = |word: &AtomicU64| {
            let due = word.load(SeqCst);
            due <= now && word.compare_exchange(due, u64::MAX, SeqCst, SeqCst).is_ok()
        };
        let [any, solicited] = self.fixed.notify_at.each_ref().map(is_due);
        let armed = self.fixed.armed.load(SeqCst);
        let wanted = armed == 1 && any || armed == 2 && solicited;
        let notified = wanted && self.fixed.armed.swap(0, SeqCst) != 0;
        if notified {
            self.fixed.pending.fetch_add(1, SeqCst);
        }
        notified
    }

    /// Finishes the work of a producer that died before it had notified the owner. The owner calls this.
    ///
    /// Returns whether the owner's channel is to be woken. Leaves alone what a living producer is about to
    /// notify.
    pub(crate) fn recover(
        &self,
        view: &impl CqeRing,
        me: Owner,
        mut is_dead: impl FnMut(Owner) -> bool,
        now: u64,
    ) -> bool {
        if !self.producers.lock.holder().is_some_and(&mut is_dead) {
            return false;
        }
        let held = self.producers.lock.lock(me, is_dead);
        let tail = self.producers.tail.load(Relaxed);
        if held.acquired == Acquired::Stolen && self.is_written(view, tail) {
            self.producers.tail.store(tail + 1, Relaxed);
        }
        held.acquired == Acquired::Stolen
            && (self.notify_missed(view, now) || self.fixed.pending.load(SeqCst) != 0)
    }

    /// Counts a notification if a completion has come since the queue was armed. The caller holds the lock of
    /// a dead producer.
    fn notify_missed(&self, view: &impl CqeRing, now: u64) -> bool {
        let armed = self.fixed.armed.load(SeqCst);
        if armed == 0 {
            return false;
        }
        let first = self.consumer.head.load(Acquire).max(self.fixed.armed_from.load(Relaxed));
        let unseen: Vec<Completion> = (first..).map_while(|number| self.peek(view, number)).collect();
        unseen.iter().filter(|found| found.due > now).for_each(|found| self.defer_notification(found));
        let is_wanted =
            |found: &Completion| found.due <= now && (armed == 1 || found.is_solicited_or_error());
        let notified = unseen.iter().any(is_wanted) && self.fixed.armed.swap(0, SeqCst) != 0;
        if notified {
            self.fixed.pending.fetch_add(1, SeqCst);
        }
        notified
    }

    /// Returns the time of the next notification; `u64::MAX` for none.
    pub(crate) fn next_notification(&self) -> u64 {
        self.fixed.notify_at.iter().map(|word| word.load(SeqCst)).min().unwrap_or(u64::MAX)
    }

    /// Asks for a notification of the next completion, or of the next solicited one.
    pub(crate) fn arm(&self, only_solicited: bool) {
        self.fixed.armed_from.store(self.producers.tail.load(Relaxed), Relaxed);
        // Arming for solicited completions does not undo arming for any.
        match only_solicited {
            false => self.fixed.armed.store(1, SeqCst),
            true => {
                let _ = self.fixed.armed.compare_exchange(0, 2, SeqCst, SeqCst);
            }
        }
        fence(SeqCst);
    }

    fn is_written(&self, view: &impl CqeRing, number: u64) -> bool {
        self.cqe(view, number).is_some_and(|cqe| cqe.0[0].load(Acquire) == number + 1)
    }

    /// Whether the holder of an intent has written the completion of request `number`. `qpn` is the queue
    /// pair, unless the queue is shared.
    pub(crate) fn was_pushed(
        &self,
        view: &impl CqeRing,
        intent: u64,
        qpn: Option<u32>,
        kind: QueueKind,
        number: u64,
    ) -> bool {
        let Some(cqe) = intent.checked_sub(1).and_then(|at| self.cqe(view, at)) else {
            return false;
        };
        let seq = cqe.0[0].load(Acquire);
        if seq != intent {
            // The slot holds a later completion: the holder's was written and polled.
            return seq > intent;
        }
        let found = Completion::of_words(std::array::from_fn(|i| cqe.0[i + 1].load(Relaxed)));
        found.kind == kind && found.number == number && qpn.is_none_or(|qpn| found.qpn == qpn)
    }

    /// Returns completion `head` if it has been written.
    ///
    /// Only the owner polls, one thread at a time. For other callers the completion may be replaced while
    /// they read it.
    #[inline]
    pub(crate) fn peek(&self, view: &impl CqeRing, head: u64) -> Option<Completion> {
        let cqe = self.cqe(view, head)?;
        (cqe.0[0].load(Acquire) == head + 1)
            .then(|| Completion::of_words(std::array::from_fn(|i| cqe.0[i + 1].load(Relaxed))))
    }

    /// Frees the slots of the completions before `head`.
    #[inline]
    pub(crate) fn consume(&self, head: u64) {
        self.consumer.head.store(head, Release);
    }
}
