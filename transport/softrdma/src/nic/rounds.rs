//! What is said to a sleeper although who was to say it has died.
//!
//! A completion is announced in steps: it is written, the queue is disarmed, the announcement is counted, a datagram is
//! sent. Whoever pushes it may be killed between any two. The lock of the queue is held through all of them, so the
//! next who pushes finds it held by a dead process and does the rest. But if nobody pushes any more, the program that
//! sleeps on the channel would sleep for ever. So while there is a channel, the [ticker](super::ticker) looks now and
//! then whether a queue's lock is held by somebody dead.
//!
//! Invariants: a datagram is taken, and the announcement that it was about is, by one who holds [`Listening::taking`].
//! There is a datagram for an announcement if nobody holds the queue's lock, and none without one: programs wait for
//! the descriptor to become readable, and would then wait for the announcement in vain.

use super::{Nic, now};
use crate::shm::{CQS, CqRecord, is_readable};
use rustix::{fd::OwnedFd, io};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::Ordering::{Relaxed, SeqCst},
};

/// How often the ticker looks around.
pub(super) const ROUND: u64 = 50_000_000;

/// A descriptor by which others wake this process.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) number: u32,
    pub(crate) fd: OwnedFd,
    taking: Mutex<()>,
}

impl Listening {
    /// Held by who takes a datagram, until what it was about is taken too.
    pub(crate) fn taking(&self) -> MutexGuard<'_, ()> {
        self.taking.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Nic {
    fn channels(&self) -> MutexGuard<'_, Vec<Arc<Listening>>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a channel for announcements.
    pub(crate) fn listen(&self) -> io::Result<Arc<Listening>> {
        let number = self.process.new_channel();
        let fd = self.process.waker.listen(self.process.me.slot, number)?;
        let listening = Arc::new(Listening { number, fd, taking: Mutex::default() });
        self.channels().push(Arc::clone(&listening));
        Ok(listening)
    }

    /// Ends a channel.
    pub(crate) fn stop_listening(&self, number: u32) {
        self.channels().retain(|channel| channel.number != number);
        self.process.waker.forget(self.process.me.slot, number);
    }

    /// Is there a channel on which somebody may sleep?
    pub(super) fn is_listening(&self) -> bool {
        !self.channels().is_empty()
    }

    /// Says what the dead have not said.
    pub(super) fn make_rounds(&self) {
        let own = self.process.own();
        let now = now();
        for (index, record) in (1..CQS).filter_map(|index| Some((index, own.cq(index)?))) {
            let channel = record.fixed.channel.load(Relaxed);
            if channel == 0 || record.fixed.capacity.load(Relaxed) == 0 {
                continue;
            }
            let is_dead = |owner| self.process.is_dead(owner);
            if record.mend(own, self.process.me, is_dead, now) {
                self.ring_if_silent(channel);
            }
            let next = record.next_announcement();
            if next != u64::MAX {
                self.remind_queue(own, index, next);
            }
        }
    }

    /// Sends a datagram if there is none.
    fn ring_if_silent(&self, number: u32) {
        let found = self.channels().iter().find(|channel| channel.number == number).cloned();
        let Some(channel) = found else { return };
        let _taking = channel.taking();
        let own = self.process.own();
        let is_pending = |record: &CqRecord| {
            record.fixed.channel.load(Relaxed) == number && record.fixed.pending.load(SeqCst) != 0
        };
        if !is_readable(&channel.fd) && (1..CQS).filter_map(|index| own.cq(index)).any(is_pending) {
            self.process.waker.wake(own.owner.slot, number);
        }
    }
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use super::*;
    use crate::{
        shm::{Completion, Directory, Owner, Pushed, take_one, wait_readable},
        world::World,
    };
    use rustix::event::Timespec;

    /// A process that there is not.
    const DEAD: Owner = Owner { slot: 200, incarnation: 77 };

    /// An adapter in a fabric of its own.
    pub(in super::super) fn nic(folder: &tempfile::TempDir) -> Arc<Nic> {
        let text = "profile = \"ib\"\n[[node]]\nname = \"a\"\ndevice = [{ name = \"d\" }]\n";
        let fabric = crate::fabric::Fabric::parse(text, std::path::Path::new("test")).expect("a fabric");
        let directory = Arc::new(Directory::open(folder.path(), fabric.digest).expect("a folder"));
        let world = Arc::new(World { fabric, node: 0 });
        Arc::new(Nic::join(directory, world, false).expect("a place"))
    }

    /// Each way in which one who pushes a completion can die before its sleeper is told.
    #[test]
    fn a_sleeper_is_told_what_the_dead_have_not_said() {
        let folder = tempfile::tempdir().expect("a folder");
        let nic = nic(&folder);
        let own = nic.process.own();
        let channel = nic.listen().expect("a channel");
        let record = own.cq(1).expect("a record");
        let ring = nic.process.take(16 * 64).expect("room");
        record.begin(ring.0, 16, 16, channel.number, 0);
        let push = |due| {
            let completion = Completion { due, ..Completion::default() };
            record.push(own, nic.process.me, |_| false, None, &completion, || {})
        };
        let steps: [&dyn Fn(); 4] = [
            &|| assert_eq!(push(0), Pushed::ToWake, "and its datagram is never sent"),
            &|| {
                // It died before it saw that the queue is armed.
                let armed = record.fixed.armed.swap(0, SeqCst);
                assert_eq!(push(0), Pushed::Quietly);
                record.fixed.armed.store(armed, SeqCst);
            },
            &|| assert_eq!(push(now() + 1_000_000), Pushed::Later, "and nobody is reminded"),
            &|| {
                assert_eq!(push(now() + 1_000_000), Pushed::Later);
                // It died before it noted when.
                record.fixed.announce.iter().for_each(|word| word.store(u64::MAX, SeqCst));
            },
        ];
        for (number, step) in (0..).zip(steps) {
            assert!(!is_readable(&channel.fd), "step {number}");
            nic.expect_sleep();
            record.arm(false);
            step();
            std::mem::forget(record.pushers.lock.hold(DEAD, |_| false));
            assert!(
                wait_readable(&channel.fd, Some(&Timespec { tv_sec: 20, tv_nsec: 0 }))
                    .is_ok_and(|ready| ready)
            );
            // One announcement, and one datagram for it.
            {
                let _taking = channel.taking();
                take_one(&channel.fd, false).expect("a datagram");
                assert_eq!(record.fixed.pending.swap(0, SeqCst), 1, "step {number}");
            }
            record.consume(number + 1);
            assert_eq!(record.fixed.armed.load(SeqCst), 0, "step {number}");
        }
        std::thread::sleep(std::time::Duration::from_nanos(3 * ROUND));
        assert!(!is_readable(&channel.fd), "nothing is announced twice");
        // What was there when the queue was armed is found by polling.
        assert_eq!(push(0), Pushed::Quietly);
        record.arm(false);
        std::thread::sleep(std::time::Duration::from_nanos(3 * ROUND));
        assert!(!is_readable(&channel.fd));
    }
}
