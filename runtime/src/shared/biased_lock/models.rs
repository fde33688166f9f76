//! Models of the biased lock under a model checker: `make model-deep`.
//!
//! Guarded values are plain memory whose accesses Loom checks: that is the test.

use super::{guarded::Guarded, *};
use transport::sync::model::{Arc, explore_with, thread};

fn guarded() -> Arc<Guarded<u64>> {
    Arc::new(Guarded::with_lock(BiasedLock::leaked(), 0))
}

/// Adds under the lock, which the caller waits for.
fn add(guarded: &Guarded<u64>) {
    *guarded.lock() += 1;
}

/// Adds if the lock is free.
fn try_add(guarded: &Guarded<u64>) -> u64 {
    guarded.try_lock().map_or(0, |mut value| {
        *value += 1;
        1
    })
}

#[test]
fn loom_one_thread_at_a_time_has_a_new_lock() {
    explore_with("two threads at a new lock", 3, || {
        let guarded = guarded();
        let other = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || try_add(&guarded))
        };
        let ours = try_add(&guarded);
        let sum = ours + other.join().expect("another thread");
        assert_eq!((*guarded.lock(), sum >= 1), (sum, true), "one of them gets it");
    });
}

/// The owner takes the lock twice without an atomic operation while another thread revokes its ownership.
#[test]
fn loom_an_owner_and_the_thread_that_revokes_its_ownership_are_never_both_inside() {
    explore_with("an owner whose ownership is revoked", 3, || {
        let guarded = guarded();
        add(&guarded);
        let other = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || try_add(&guarded))
        };
        let ours = try_add(&guarded) + try_add(&guarded);
        let sum = 1 + ours + other.join().expect("another thread");
        assert_eq!(*guarded.lock(), sum);
    });
}

#[test]
fn loom_a_thread_that_waits_for_the_lock_gets_it() {
    explore_with("a thread that waits for the owner", 2, || {
        let guarded = guarded();
        add(&guarded);
        let other = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || add(&guarded))
        };
        add(&guarded);
        other.join().expect("another thread");
        assert_eq!(*guarded.lock(), 3);
        assert_eq!(guarded.biased_lock().waiting.load(Relaxed), 0);
    });
}

#[test]
fn loom_two_threads_that_revoke_an_ownership_exclude_each_other_and_the_owner() {
    explore_with("an owner and two threads that revoke its ownership", 2, || {
        let guarded = guarded();
        add(&guarded);
        let others = [(); 2].map(|()| {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || try_add(&guarded))
        });
        let ours = try_add(&guarded);
        let sum = 1 + ours + others.into_iter().map(|other| other.join().expect("a thread")).sum::<u64>();
        assert_eq!(*guarded.lock(), sum);
    });
}
