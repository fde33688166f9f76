//! The adapter itself: what happens between a posted request and its completions.
//!
//! No thread is on the way. A request is carried out by the process that posts it, or, when it had to wait for a
//! receive, by the process that posts the receive. Either way one process holds the lock of the send queue,
//! then that of the receive queue, then that of a completion queue: always in this order, so nobody waits in
//! a circle.
//!
//! What has a time, on a cable with latency or because it waits, stands on the [agenda]: whoever polls does what is
//! due, and a thread, the [ticker], does it for a program that sleeps.
//!
//! A process may be killed at any of these points. What it leaves half done is finished or repeated by
//! whoever takes its lock over; see [`Nic::mend_send`] and [`Nic::mend_receive`].

mod agenda;
mod atomics;
mod carry;
mod copy;
mod errand;
mod fail;
mod faults;
mod idle;
mod peer;
mod receive;
mod region;
mod rounds;
mod stray;
mod ticker;
mod travel;

use crate::{
    control::Control,
    shm::{
        Came, Completion, CqRecord, Directory, Held, Intent, Kind, Process, Pushed, QPS, QpRecord, RQS,
        RobustLock, View,
    },
    sync::{AtomicU32, AtomicU64},
    world::World,
};
use rustix::io;
use std::sync::{
    Arc, Mutex,
    atomic::{
        AtomicBool,
        Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    },
};
use verbs_sys::{EventType, QpState, QpType, WcStatus};

pub(crate) use rounds::Listening;

/// This process as the adapters of its node.
#[derive(Debug)]
pub(crate) struct Nic {
    /// First, so that it is dropped first.
    ticker: ticker::Ticker,
    pub(crate) process: Process,
    pub(crate) world: Arc<World>,
    /// Are registered pages shared with peers?
    pub(crate) remap: bool,
    /// For each queue pair: requests whose room is free again, because a completion of them or of a later one
    /// was polled.
    pub(crate) sent: Box<[AtomicU64]>,
    /// For each receive queue: receives whose completion was polled.
    pub(crate) received: Box<[AtomicU64]>,
    /// Held while records of the tables are taken or given back.
    pub(crate) tables: Mutex<()>,
    /// The channels on which programs may sleep until something is completed.
    channels: Mutex<Vec<Arc<Listening>>>,
    /// Counts protection domains, registrations and the like.
    pub(crate) serials: AtomicU32,
    /// The last change of the fabric that was looked at.
    seen_changes: AtomicU32,
    /// The last command that was carried out.
    seen_commands: Mutex<u64>,
    /// For each cable: was it said that whoever posts to its port now would crash?
    warned: Box<[AtomicBool]>,
}

/// A queue pair somewhere: the process it belongs to, and its record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'a> {
    pub(crate) view: &'a View,
    pub(crate) qp: &'a QpRecord,
    qpn: u32,
}

impl<'a> At<'a> {
    pub(crate) fn new(view: &'a View, qp: &'a QpRecord) -> At<'a> {
        At { view, qp, qpn: qp.fixed.qpn.load(Relaxed) }
    }

    pub(crate) fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Is the record still that of this queue pair? Asked under a lock that its owner takes before it ends.
    fn is_current(&self) -> bool {
        self.qpn != 0 && self.qp.fixed.qpn.load(Relaxed) == self.qpn
    }

    pub(crate) fn state(&self) -> QpState {
        QpState(self.qp.fixed.state.load(Acquire))
    }

    /// Its index in the table of its process.
    pub(crate) fn index(&self) -> u32 {
        number::index(self.qpn())
    }
}

/// How a queue pair's number is made: the slot of its process, a generation, and its index there.
pub(crate) mod number {
    use crate::shm::QPS;

    const INDEX_BITS: u32 = QPS.trailing_zeros();
    const GENERATION_BITS: u32 = 16 - INDEX_BITS;

    pub(crate) fn of(slot: u32, generation: u32, index: u32) -> u32 {
        slot << 16 | (generation & ((1 << GENERATION_BITS) - 1)) << INDEX_BITS | index
    }

    pub(crate) fn slot(qpn: u32) -> u32 {
        qpn >> 16 & 0xff
    }

    pub(crate) fn index(qpn: u32) -> u32 {
        qpn & (QPS - 1)
    }
}

/// The time by which completions are due, in nanoseconds.
pub(crate) fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Nic {
    #[inline]
    fn hold<'a>(&self, lock: &'a RobustLock) -> Held<'a> {
        lock.hold(self.process.me, |owner| self.process.is_dead(owner))
    }

    /// Joins a fabric.
    pub(crate) fn join(directory: Arc<Directory>, world: Arc<World>, remap: bool) -> io::Result<Nic> {
        let control = &directory.header().control;
        control.age(now());
        let seen_changes = AtomicU32::new(control.generation.load(Acquire));
        let seen_commands = Mutex::new(control.last_command());
        let process = Process::join(directory, world.node as u32)?;
        process.own().header().agenda.grace.store(ticker::GRACE, Relaxed);
        let warned = world.fabric.cables.iter().map(|_| AtomicBool::new(false)).collect();
        let words = |count: u32| std::iter::repeat_with(AtomicU64::default).take(count as usize).collect();
        Ok(Nic {
            ticker: ticker::Ticker::default(),
            process,
            world,
            remap,
            sent: words(QPS),
            received: words(RQS),
            tables: Mutex::new(()),
            channels: Mutex::default(),
            serials: AtomicU32::new(0),
            seen_changes,
            seen_commands,
            warned,
        })
    }

    /// What is wrong with the fabric at the moment, and what has been counted.
    #[inline]
    pub(crate) fn control(&self) -> &Control {
        &self.process.directory.header().control
    }

    /// A queue pair of this process.
    pub(crate) fn own_qp(&self, index: u32) -> Option<At<'_>> {
        let view = self.process.own();
        Some(At::new(view, view.qp(index)?))
    }

    /// Writes a completion, and wakes whoever waits for it. False when the queue has overflowed.
    fn complete(&self, view: &View, cq: u32, intent: Option<&AtomicU64>, completion: &Completion) -> bool {
        let Some(record) = view.cq(cq) else { return false };
        let is_dead = |owner| self.process.is_dead(owner);
        let timed;
        let completion = if record.fixed.wants_times.load(Relaxed) == 0 {
            completion
        } else {
            timed = Completion { at: completion.due.max(now()), ..*completion };
            &timed
        };
        let wake = || self.process.waker.wake(view.owner.slot, record.fixed.channel.load(Relaxed));
        match record.push(view, self.process.me, is_dead, intent.map(Intent), completion, wake) {
            Pushed::Quietly | Pushed::ToWake => true,
            Pushed::Later => {
                self.remind_queue(view, cq, completion.due);
                true
            }
            Pushed::Overrun => {
                self.overrun(view, record);
                false
            }
        }
    }

    /// Reports the overflow of a completion queue, once.
    #[cold]
    fn overrun(&self, view: &View, record: &CqRecord) {
        let bit = 1 << EventType::CQ_ERR.0;
        if record.fixed.overrun.swap(2, SeqCst) != 2 {
            record.fixed.events.fetch_or(bit, SeqCst);
            self.process.waker.wake(view.owner.slot, record.fixed.async_channel.load(Relaxed));
        }
    }

    /// Carries out what a send queue holds, as far as possible now.
    pub(crate) fn work(&self, at: At<'_>) {
        let mut aftermath = fail::Aftermath::default();
        let held = self.hold(&at.qp.send.lock);
        if held.came == Came::Stolen {
            self.mend_send(at);
        }
        if at.is_current() {
            self.drain(at, &mut aftermath);
        }
        drop(held);
        self.settle(at, &aftermath);
    }

    /// Under the lock of the send queue.
    fn drain(&self, at: At<'_>, aftermath: &mut fail::Aftermath) {
        let send = &at.qp.send;
        loop {
            let (head, state) = (send.head.load(Relaxed), at.state());
            if state == QpState::SQD && !at.qp.flight.has_begun(head) {
                return self.tell_drained(at);
            }
            if head == at.qp.producer.tail.load(Acquire) {
                at.qp.flight.due.store(0, Relaxed);
                return;
            }
            let Some(slot) = self.send_slot(at, head) else { return };
            let done = match state {
                QpState::ERR | QpState::SQE => carry::Done::with(WcStatus::WR_FLUSH_ERR),
                // When it is being drained, what is on its way arrives still.
                QpState::RTS | QpState::SQD => match self.carry_out(at, slot, aftermath) {
                    carry::Outcome::Done(done) => done,
                    carry::Outcome::Waits => return,
                },
                _ => return,
            };
            self.finish(at, slot, head, &done, aftermath);
        }
    }

    /// Nothing of this queue is on its way any more, and nothing more leaves: says so to an owner who has asked, once
    /// the last completion can be seen.
    #[cold]
    fn tell_drained(&self, at: At<'_>) {
        if at.qp.signals.drain.load(SeqCst) == 0 {
            return;
        }
        let due = at.qp.send.last_due.load(Relaxed);
        if due > now() {
            self.remind(at, due);
        } else if at.qp.signals.drain.swap(0, SeqCst) != 0 {
            self.raise(at, EventType::SQ_DRAINED);
        }
    }

    /// Completes the request at the head of a send queue and moves on to the next.
    #[inline]
    fn finish(
        &self,
        at: At<'_>,
        slot: carry::Slot,
        head: u64,
        done: &carry::Done,
        aftermath: &mut fail::Aftermath,
    ) {
        let send = &at.qp.send;
        let is_error = done.status != WcStatus::SUCCESS;
        let due = at.in_order(done.due);
        if is_error || slot.is_signaled() {
            let completion = Completion {
                wr_id: slot.get().wr_id,
                due,
                qpn: at.qpn(),
                bytes: done.bytes,
                number: head,
                status: done.status.0 as u8,
                opcode: slot.completion_opcode(),
                kind: Kind::Send,
                ..Completion::default()
            };
            let cq = at.qp.fixed.send_cq.load(Relaxed);
            let written = self.complete(at.view, cq, Some(&send.intent), &completion);
            if written && is_error && self.stops_sends_only(at) {
                // Unless somebody has failed all of it meanwhile.
                let _ = at.qp.fixed.state.compare_exchange(QpState::RTS.0, QpState::SQE.0, AcqRel, Acquire);
            } else if !written || is_error && at.state() != QpState::ERR {
                aftermath.own = Some(if written { None } else { Some(EventType::QP_FATAL) });
                at.qp.fixed.state.store(QpState::ERR.0, Release);
            }
        }
        send.waits_since.store(0, Relaxed);
        at.qp.flight.number.store(0, Relaxed);
        send.head.store(head + 1, Release);
        send.intent.store(0, Relaxed);
    }

    /// Is an error of a send no matter of the receives? So it is on unreliable services.
    #[cold]
    fn stops_sends_only(&self, at: At<'_>) -> bool {
        let fixed = &at.qp.fixed;
        let is_unreliable = QpType(fixed.kind.load(Relaxed)) != QpType::RC;
        let profile = self.world.profile(fixed.port.load(Relaxed));
        is_unreliable && profile.unreliable_errors_enter_sqe && at.state() != QpState::ERR
    }

    /// The holder of a send queue's lock died. If it got as far as writing the completion of the request at
    /// the head, the request is done; else it is carried out again.
    ///
    /// Nobody sees a message twice by that. Only the processes of the two ends take this lock for more than to
    /// flush. If the owner has died, nobody is left to repeat anything for, and what it had posted is dropped: the
    /// peer, which may have got the first already, would get it once more. If the peer has died, nobody is left who
    /// could see it.
    #[cold]
    fn mend_send(&self, at: At<'_>) {
        let send = &at.qp.send;
        let (intent, head) = (send.intent.load(Acquire), send.head.load(Relaxed));
        let cq = at.view.cq(at.qp.fixed.send_cq.load(Relaxed));
        if at.view.is_dead() {
            send.head.store(at.qp.producer.tail.load(Acquire), Release);
        } else if cq.is_some_and(|cq| cq.was_pushed(at.view, intent, Some(at.qpn()), Kind::Send, head)) {
            send.head.store(head + 1, Release);
        }
        send.intent.store(0, Relaxed);
    }

    /// Empties both queues of a queue pair of this process, completing nothing. `end` runs while nobody else
    /// can look at it.
    pub(crate) fn discard(&self, at: At<'_>, end: impl FnOnce()) {
        let Some(rq) = at.view.rq(at.qp.fixed.rq.load(Relaxed)) else { return };
        let send = &at.qp.send;
        let _sends = self.hold(&send.lock);
        let _receives = self.hold(&rq.taker.lock);
        let posted = at.qp.producer.tail.load(Acquire);
        send.head.store(posted, Release);
        send.intent.store(0, Relaxed);
        send.waits_since.store(0, Relaxed);
        send.last_due.store(0, Relaxed);
        at.qp.flight.number.store(0, Relaxed);
        at.qp.flight.due.store(0, Relaxed);
        self.sent[at.index() as usize].store(posted, Relaxed);
        if rq.kind() == Kind::Receive {
            let posted = rq.poster.tail.load(Acquire);
            rq.taker.head.store(posted, Release);
            rq.taker.intent.store(0, Relaxed);
            rq.taker.last_due.store(0, Relaxed);
            self.received[at.qp.fixed.rq.load(Relaxed) as usize].store(posted, Relaxed);
        }
        end();
    }
}
