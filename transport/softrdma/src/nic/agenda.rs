//! What falls due: requests that are on a cable or wait for a timer, and channels that are to be told something.
//!
//! Nothing here happens on a fabric without time on which nobody waits: then the agenda is empty, and whoever polls
//! reads one word of it. Else whoever polls does what is due, and the [ticker](super::ticker) does it for a program
//! that does not poll.
//!
//! Invariants: a bit is set before the time is noted, and the time is taken away before the bits are looked at, so
//! one who notes something is seen or wakes the ticker. A request keeps its time until the queue is empty: if who
//! carries it out is killed, its owner looks again.

use super::{At, Nic, now};
use crate::{
    shm::{Agenda, View},
    sync::AtomicU64,
};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// How often it is looked whether the peer of a waiting request still lives, and what has become of its node.
pub(super) const CHECKUP: u64 = 10_000_000;

fn set(bits: &[AtomicU64], index: u32) {
    if let Some(word) = bits.get(index as usize / 64) {
        word.fetch_or(1 << (index % 64), SeqCst);
    }
}

/// Takes all bits that are set.
fn take(bits: &[AtomicU64]) -> impl Iterator<Item = u32> + '_ {
    let words = (0u32..).zip(bits).filter(|(_, word)| word.load(SeqCst) != 0);
    words.flat_map(|(number, word)| {
        let taken = word.swap(0, SeqCst);
        (0..64).filter(move |bit| taken >> bit & 1 != 0).map(move |bit| number * 64 + bit)
    })
}

impl Nic {
    pub(super) fn own_agenda(&self) -> &Agenda {
        &self.process.own().header().agenda
    }

    /// The request at the head of a send queue is to be looked at again at this time.
    pub(super) fn remind(&self, at: At<'_>, when: u64) {
        at.qp.flight.due.store(when, SeqCst);
        set(&at.view.header().agenda.qps, at.index());
        self.schedule(at.view, when);
    }

    /// A completion queue has something to announce at this time.
    #[cold]
    pub(crate) fn remind_queue(&self, view: &View, cq: u32, when: u64) {
        set(&view.header().agenda.cqs, cq);
        self.schedule(view, when);
    }

    /// Sees to it that a process looks at its agenda at this time.
    pub(super) fn schedule(&self, view: &View, when: u64) {
        if view.owner == self.process.me {
            self.ticker.begin(self);
        }
        let agenda = &view.header().agenda;
        // Who noted an earlier time has seen to it already.
        if agenda.due.load(SeqCst) <= when || agenda.due.fetch_min(when, SeqCst) <= when {
            return;
        }
        if agenda.sleeps_until.load(SeqCst) > when.saturating_add(agenda.grace.load(Relaxed)) {
            super::ticker::ring(&agenda.bell);
        }
    }

    /// Does what is due, if anything is. For whoever polls and finds nothing.
    #[inline]
    pub(crate) fn look_at_the_clock(&self, is_steady: bool) {
        let due = self.own_agenda().due.load(Relaxed);
        if due != u64::MAX {
            self.act_by_poll(due, is_steady);
        }
    }

    #[cold]
    fn act_by_poll(&self, due: u64, is_steady: bool) {
        let now = now();
        if is_steady {
            self.note_poll(now);
        }
        if due <= now {
            self.act(now);
        }
    }

    /// The program polls, and has found nothing yet though there is something to come.
    pub(crate) fn note_poll(&self, now: u64) {
        self.ticker.polled_at.store(now, Relaxed);
    }

    /// Does what is due, and notes when the next is.
    pub(super) fn act(&self, now: u64) {
        let agenda = self.own_agenda();
        agenda.due.swap(u64::MAX, SeqCst);
        for index in take(&agenda.qps) {
            let Some(at) = self.own_qp(index).filter(|at| at.qpn() != 0) else { continue };
            match at.qp.flight.due.load(SeqCst) {
                0 => {}
                due if due <= now => self.work(at),
                due => {
                    set(&agenda.qps, index);
                    self.schedule(at.view, due);
                }
            }
        }
        for index in take(&agenda.cqs) {
            self.announce_due(index, now);
        }
    }

    fn announce_due(&self, index: u32, now: u64) {
        let own = self.process.own();
        let Some(record) = own.cq(index) else { return };
        if record.announce_due(now) {
            self.process.waker.wake(own.owner.slot, record.fixed.channel.load(Relaxed));
        }
        let next = record.next_announcement();
        if next != u64::MAX {
            self.remind_queue(own, index, next);
        }
    }
}
