//! The NIC: everything between a posted request and its completions.
//!
//! No thread is between sender and receiver: the process that posts a request executes it, see `engine`.
//! Requests that take time, on a cable with latency or because they wait, are in the `timer_queue`.
//!
//! A process may be killed at any point. The next process that takes over one of its locks finishes or
//! repeats its work: see `orphan_repair`.
//!
//! Parts, each above those that it uses:
//!
//! - `engine`: executes send queues; fails and flushes queue pairs (`failure`: failures noted under a lock)
//! - `faults`: injected faults
//! - `execute`, `operation`: execute one request (`request`)
//! - `peer`, `link`, `idle`: find the peer, pass the cable, stop idle connections
//! - `receives`, `completions`: take and complete receives, write completions
//! - `orphan_repair`: finishes the work of dead processes
//! - `transfer`, `atomics`: move bytes (`sge_list`, `region`, `wraparound`, `copy`)
//! - `event_channels`, `credits`, `tables`: state of this process that peers do not see
//! - `member`: this process in its fabric, with its `timer_queue` and its `timer_thread`
//! - `qp`, `qp_number`: references to queue pairs
//!
//! # Safety
//! The timer thread has the address of the [`Nic`], which stays where it is in its `Arc`. Dropping the NIC
//! first ends the thread.

mod atomics;
mod completions;
mod copy;
mod credits;
mod engine;
mod event_channels;
mod execute;
mod failure;
mod faults;
mod idle;
mod link;
mod member;
mod operation;
mod orphan_repair;
mod peer;
mod qp;
pub(crate) mod qp_number;
mod receives;
mod region;
mod request;
mod sge_list;
mod tables;
#[cfg(all(test, not(loom)))]
mod tests;
mod timer_queue;
mod timer_thread;
mod transfer;
mod wraparound;

use crate::{
    clock::now,
    control::Control,
    fabric_view::FabricView,
    shm::{Directory, Process},
    sync::AtomicU32,
};
use completions::Completions;
use engine::Engine;
use faults::FaultInjection;
use member::Member;
use orphan_repair::repair_notifications;
use region::Regions;
use rustix::io;
use std::sync::{Arc, atomic::Ordering::Relaxed};
use timer_thread::TimerHandler;
use verbs_sys::EventType;

pub(crate) use credits::Credits;
pub(crate) use event_channels::{EventChannel, EventChannels};
pub(crate) use qp::QpRef;
pub(crate) use tables::Tables;

/// The NIC of this process: all devices of its node.
#[derive(Debug)]
pub(crate) struct Nic {
    /// The first field, because its drop ends the timer thread, which uses the others.
    member: Member,
    faults: FaultInjection,
    channels: EventChannels,
    credits: Credits,
    tables: Tables,
    /// Whether registered pages are shared with peers.
    shares_pages: bool,
}

impl Nic {
    /// Joins a fabric.
    pub(crate) fn join(
        directory: Arc<Directory>,
        fabric: Arc<FabricView>,
        shares_pages: bool,
    ) -> io::Result<Arc<Nic>> {
        // Faults count from before the process can be seen.
        let control = &directory.header().control;
        control.age(now());
        let faults = FaultInjection::new(control, fabric.fabric.cables.len());
        let nic = Arc::new(Nic {
            member: Member::join(directory, fabric)?,
            faults,
            channels: EventChannels::default(),
            credits: Credits::new(),
            tables: Tables::default(),
            shares_pages,
        });
        // SAFETY: the timer queue is a part of the NIC, which stays where it is in its `Arc`. Dropping the
        // NIC drops the timer queue before any other part.
        unsafe { nic.member.timers().set_handler(&raw const *nic) };
        Ok(nic)
    }

    /// Returns this process's files in the fabric's folder, and its views of its peers.
    #[inline]
    pub(crate) fn process(&self) -> &Process {
        self.member.process()
    }

    #[inline]
    pub(crate) fn fabric(&self) -> &FabricView {
        self.member.fabric()
    }

    /// Returns the fabric's control block: injected faults and counters.
    #[inline]
    pub(crate) fn control(&self) -> &Control {
        self.member.control()
    }

    #[inline]
    pub(crate) fn credits(&self) -> &Credits {
        &self.credits
    }

    #[inline]
    pub(crate) fn tables(&self) -> &Tables {
        &self.tables
    }

    pub(crate) fn channels(&self) -> &EventChannels {
        &self.channels
    }

    /// Whether registered pages are shared with peers.
    pub(crate) fn shares_pages(&self) -> bool {
        self.shares_pages
    }

    /// Returns the record of this process at `index`, used or not.
    #[inline]
    pub(crate) fn own_qp(&self, index: u32) -> Option<QpRef<'_>> {
        self.member.own_qp(index)
    }

    #[inline]
    fn engine(&self) -> Engine<'_> {
        Engine::new(&self.member)
    }

    /// Executes the requests of a send queue, as far as possible now.
    #[inline]
    pub(crate) fn execute(&self, qp: QpRef<'_>) {
        self.engine().execute(qp);
    }

    /// Executes the waiting requests of a queue pair's peer, after `qp` has posted a receive or has become
    /// ready.
    #[inline]
    pub(crate) fn resume_peer(&self, qp: QpRef<'_>) {
        self.engine().resume_peer(qp);
    }

    /// Executes the waiting requests of all peers of a shared receive queue, after receives were posted to
    /// it.
    pub(crate) fn resume_peers_of(&self, rq: u32) {
        self.engine().resume_peers_of(rq);
    }

    /// Moves a queue pair to the error state, raises `event`, and flushes the queues.
    pub(crate) fn fail(&self, qp: QpRef<'_>, event: Option<EventType>) {
        self.engine().fail(qp, event);
    }

    /// Completes everything that a failed queue pair holds.
    pub(crate) fn flush(&self, qp: QpRef<'_>) {
        self.engine().flush(qp);
    }

    /// Empties both queues of a queue pair of this process without completions. `end` runs under both locks.
    pub(crate) fn discard(&self, qp: QpRef<'_>, end: impl FnOnce()) {
        self.engine().discard(qp, &self.credits, end);
    }

    /// Executes the fault-injection commands that were issued since the last look.
    #[inline]
    pub(crate) fn poll_commands(&self) {
        self.faults.poll(&self.member);
    }

    /// Checks the cable of a port that the program posts to, on devices that crash programs without one.
    #[inline]
    pub(crate) fn check_cable(&self, port: u32) {
        self.faults.check_cable(&self.member, port);
    }

    /// Whether the node that a port belongs to is stalled by fault injection.
    #[inline]
    pub(crate) fn is_stalled(&self, port: u32) -> bool {
        self.member.is_stalled(port)
    }

    /// Runs the timer queue if something in it is due. For polls that find nothing.
    ///
    /// `is_steady` says that the program has polled in vain several times, and so does little else.
    #[inline]
    pub(crate) fn poll_timers(&self, is_steady: bool) {
        let due = self.member.timers().due();
        if due != u64::MAX {
            self.run_timers(due, is_steady);
        }
    }

    #[cold]
    fn run_timers(&self, due: u64, is_steady: bool) {
        let now = now();
        if is_steady {
            self.note_poll(now);
        }
        if due <= now {
            self.expire(now);
        }
    }

    /// Notes that the program polls, and has found nothing yet although something is due later.
    pub(crate) fn note_poll(&self, now: u64) {
        self.member.timers().note_poll(now);
    }

    /// Notes that the program is about to sleep, so that its earlier polls no longer delay the timer thread.
    pub(crate) fn expect_sleep(&self) {
        self.member.timers().expect_sleep();
    }

    /// Schedules the notification of a completion queue of this process.
    pub(crate) fn schedule_cq(&self, cq: u32, when: u64) {
        self.member.timers().schedule_cq(self.process().own(), cq, when);
    }

    /// Executes fault-injection commands, and finishes what peers left to this process. Cheap when there is
    /// nothing.
    #[inline]
    pub(crate) fn maintain(&self) {
        self.poll_commands();
        let header = self.process().own().header();
        if header.attention.load(Relaxed) != 0 {
            self.engine().flush_failed();
        }
        if header.waiting.load(Relaxed) != 0 {
            self.engine().retry_waiting();
        }
    }

    /// Revokes the key of a region in `word`, and waits until no living process uses the region.
    pub(crate) fn revoke_key(&self, word: &AtomicU32) {
        Regions::new(self.process()).revoke(word);
    }
}

impl TimerHandler for Nic {
    fn expire(&self, now: u64) {
        let completions = Completions::new(&self.member);
        let timers = self.member.timers();
        timers.expire(now, |qp| self.execute(qp), |cq| completions.notify_due(cq, now));
    }

    fn maintain(&self) {
        Nic::maintain(self);
    }

    fn has_event_channels(&self) -> bool {
        !self.channels.is_empty()
    }

    fn repair_notifications(&self) {
        repair_notifications(&self.member, &self.channels);
    }
}
