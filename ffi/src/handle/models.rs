//! Models of the table of handles under a model checker: `make model-deep`.
//!
//! Values are plain memory whose accesses Loom checks: that is the test.

use super::*;
use tbccl::shared::sync::model::{explore_with, thread};

/// A table that outlives the threads of a run.
fn table() -> &'static Table<u64> {
    Box::leak(Box::new(Table::new()))
}

#[test]
fn loom_a_value_is_dropped_once_and_not_while_it_is_seen() {
    explore_with("handles that are looked up while they are closed", 3, || {
        let table = table();
        let key = table.insert(7).expect("room");
        let closer = thread::spawn(move || {
            let held = table.get(key);
            held.is_some_and(|held| Table::close(&held))
        });
        let seen = table.get(key).map(|held| *held);
        assert!(seen.is_none_or(|value| value == 7));
        assert!(closer.join().expect("a closer"), "it is closed once");
        assert!(table.get(key).is_none() && table.count() == 0, "the slot is vacant");
    });
}

#[test]
fn loom_a_handle_of_an_earlier_generation_finds_nothing() {
    explore_with("a slot that is used again while its old handle is looked up", 3, || {
        let table = table();
        let key = table.insert(7).expect("room");
        let other = thread::spawn(move || {
            assert!(table.get(key).is_some_and(|held| Table::close(&held)));
            table.insert(8).expect("room")
        });
        assert!(table.get(key).is_none_or(|held| *held == 7));
        let next = other.join().expect("another thread");
        assert_eq!(table.get(next).map(|held| *held), Some(8));
        assert!(table.get(key).is_none());
    });
}

#[test]
fn loom_two_that_close_a_handle_close_it_once() {
    explore_with("two threads that close a handle", 3, || {
        let table = table();
        let key = table.insert(7).expect("room");
        let close = move || table.get(key).is_some_and(|held| Table::close(&held));
        let other = thread::spawn(close);
        let both = [close(), other.join().expect("another thread")];
        assert_eq!(both.into_iter().filter(|first| *first).count(), 1);
        assert_eq!(table.count(), 0);
    });
}

/// A value whose users hold its lock: the lock is taken first, and the handle compared afterwards.
#[test]
fn loom_a_value_stays_while_its_lock_is_held() {
    explore_with("a handle whose value is locked while it is closed", 2, || {
        let table = table();
        let lock: &'static BiasedLock = BiasedLock::leaked();
        let key = table.insert_with(7, Some(lock)).expect("room");
        let closer = thread::spawn(move || table.get(key).is_some_and(|held| Table::close(&held)));
        if let Some(mut locked) = table.lock(key) {
            assert_eq!(*locked.split().0, 7);
        }
        assert!(closer.join().expect("a closer"));
        assert!(table.lock(key).is_none());
    });
}

/// The lock of a slot's earlier value is taken by the user of an old handle while the slot has a later value.
#[test]
fn loom_the_lock_of_an_earlier_value_gives_no_access_to_the_next_one() {
    explore_with("a slot that is used again with another lock", 2, || {
        let table = table();
        let (first, second) = (BiasedLock::leaked(), BiasedLock::leaked());
        let old = table.insert_with(7, Some(first)).expect("room");
        let other = thread::spawn(move || {
            assert!(table.get(old).is_some_and(|held| Table::close(&held)));
            table.insert_with(8, Some(second)).expect("room")
        });
        if let Some(mut locked) = table.lock(old) {
            assert_eq!(*locked.split().0, 7);
        }
        let new = other.join().expect("another thread");
        assert_eq!(table.lock(new).map(|mut locked| *locked.split().0), Some(8));
    });
}
