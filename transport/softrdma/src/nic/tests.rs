//! The parts of a NIC together: repair of notifications whose sender died.

use super::{Nic, member::tests::open, timer_thread::REPAIR_PERIOD};
use crate::{
    clock::now,
    shm::{Completion, Owner, Pushed, is_readable, take_one, wait_readable},
};
use rustix::event::Timespec;
use std::sync::atomic::Ordering::SeqCst;

/// A process that does not exist.
const DEAD: Owner = Owner { slot: 200, incarnation: 77 };

/// Runs each way in which a process can die between pushing a completion and notifying the sleeper.
#[test]
fn a_sleeper_is_told_what_the_dead_have_not_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let (directory, fabric) = open(&folder);
    let nic = Nic::join(directory, fabric, false).expect("a slot");
    let process = nic.process();
    let own = process.own();
    let channel = nic.channels().create(process).expect("a channel");
    let record = own.cq(1).expect("a record");
    let ring = process.allocate(16 * 64).expect("room");
    record.init(ring.0, 16, 16, channel.number, 0);
    let push = |due| {
        let completion = Completion { due, ..Completion::default() };
        record.push(own, process.me, |_| false, None, &completion, || {})
    };
    let steps: [&dyn Fn(); 4] = [
        &|| assert_eq!(push(0), Pushed::Notified, "without a datagram"),
        &|| {
            // Dies before it sees that the queue is armed.
            let armed = record.fixed.armed.swap(0, SeqCst);
            assert_eq!(push(0), Pushed::Unnotified);
            record.fixed.armed.store(armed, SeqCst);
        },
        &|| assert_eq!(push(now() + 1_000_000), Pushed::Deferred, "without a timer"),
        &|| {
            assert_eq!(push(now() + 1_000_000), Pushed::Deferred);
            // Dies before it notes the time.
            record.fixed.notify_at.iter().for_each(|word| word.store(u64::MAX, SeqCst));
        },
    ];
    for (number, step) in (0..).zip(steps) {
        assert!(!is_readable(&channel.fd), "step {number}");
        nic.expect_sleep();
        record.arm(false);
        step();
        std::mem::forget(record.producers.lock.lock(DEAD, |_| false));
        let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert!(wait_readable(&channel.fd, Some(&timeout)).is_ok_and(|ready| ready), "step {number}");
        // One notification, and one datagram for it.
        {
            let _consuming = channel.consuming();
            take_one(&channel.fd, false).expect("a datagram");
            assert_eq!(record.fixed.pending.swap(0, SeqCst), 1, "step {number}");
        }
        record.consume(number + 1);
        assert_eq!(record.fixed.armed.load(SeqCst), 0, "step {number}");
    }
    std::thread::sleep(std::time::Duration::from_nanos(3 * REPAIR_PERIOD));
    assert!(!is_readable(&channel.fd), "a second notification");
    // Completions from before the queue was armed are found by polling.
    assert_eq!(push(0), Pushed::Unnotified);
    record.arm(false);
    std::thread::sleep(std::time::Duration::from_nanos(3 * REPAIR_PERIOD));
    assert!(!is_readable(&channel.fd));
}
