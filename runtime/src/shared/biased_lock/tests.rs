//! Biased locks, and values behind them, used by several threads.

use super::{guarded::Guarded, *};
use std::{
    hint,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::mpsc,
    thread,
};

#[test]
fn one_thread_at_a_time_has_the_value() {
    const THREADS: u64 = 4;
    const TURNS: u64 = 20_000;
    let guarded = Guarded::new((0u64, 0u64));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for turn in 0..TURNS {
                    let mut both = if turn % 3 == 0 {
                        match guarded.try_lock() {
                            Some(both) => both,
                            None => guarded.lock(),
                        }
                    } else {
                        guarded.lock()
                    };
                    // Both words are always seen equal.
                    both.0 += 1;
                    if turn % 64 == 0 {
                        thread::yield_now();
                    }
                    both.1 += 1;
                    assert_eq!(both.0, both.1);
                }
            });
        }
    });
    assert_eq!(*guarded.lock(), (THREADS * TURNS, THREADS * TURNS));
    assert_eq!(guarded.biased_lock().waiting.load(Relaxed), 0);
}

#[test]
fn a_favourite_loses_the_seat_for_a_moment_and_its_favour_for_good() {
    const ROUNDS: u32 = 300;
    // All are kept, so that each has a new lock of its own.
    let all: Vec<_> = (0..ROUNDS).map(|_| Guarded::new((0u64, 0u64))).collect();
    for (round, guarded) in (0..).zip(&all) {
        let rounds = 50 + u64::from(round % 7u32) * 40;
        let add = |value: &mut (u64, u64)| {
            value.0 += 1;
            hint::black_box(&mut *value);
            value.1 += 1;
            assert_eq!(value.0, value.1, "nobody else was inside");
        };
        add(&mut guarded.lock());
        let owner = guarded.biased_lock().owner.load(Relaxed);
        assert_eq!(owner == this_thread(), fence::is_available());
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..round {
                    spin_loop();
                }
                (0..5).for_each(|_| add(&mut guarded.lock()));
            });
            (0..rounds).for_each(|_| add(&mut guarded.lock()));
        });
        assert_eq!(*guarded.lock(), (rounds + 6, rounds + 6));
        assert_eq!(guarded.biased_lock().owner.load(Relaxed), REVOKED);
    }
}

#[test]
fn asking_in_vain_leaves_nothing_of_others() {
    let guarded = Guarded::new(());
    // Revokes the ownership, so that the lock is taken by an atomic operation from now on.
    thread::scope(|scope| {
        drop(guarded.lock());
        scope.spawn(|| drop(guarded.lock()));
    });
    let biased_lock = guarded.biased_lock();
    biased_lock.inside.store(true, SeqCst);
    assert!(biased_lock.try_take().is_none(), "the former owner has not left");
    assert!(!biased_lock.taken.load(SeqCst), "and it is not taken for that");
    biased_lock.waiting.fetch_add(1, SeqCst);
    let asleep = biased_lock.mutex.lock().expect("nobody panics");
    assert!(biased_lock.try_take().is_none(), "and who waits asks without waking itself");
    drop(asleep);
    biased_lock.waiting.fetch_sub(1, SeqCst);
    biased_lock.inside.store(false, SeqCst);
    assert!(biased_lock.try_take().is_some());
}

#[test]
fn a_favourite_that_is_inside_keeps_all_out_itself_too() {
    let guarded = Guarded::new(());
    for _ in 0..3 {
        let held = guarded.lock();
        assert!(guarded.try_lock().is_none(), "not twice");
        thread::scope(|scope| {
            let other = scope.spawn(|| guarded.try_lock().is_some());
            assert!(!other.join().expect("no panic"), "it is taken");
        });
        drop(held);
        assert!(guarded.try_lock().is_some());
    }
}

#[test]
fn seats_that_nobody_uses_are_lent_again() {
    let first = Guarded::new(()).biased_lock() as *const BiasedLock;
    let again = (0..100).any(|_| ptr::eq(Guarded::new(()).biased_lock(), first));
    assert!(again, "tests beside this one borrow some, too, but not a hundred times");
}

#[test]
fn who_waits_gets_it_when_it_is_left() {
    let guarded = Guarded::new(());
    let held = guarded.lock();
    assert!(guarded.try_lock().is_none());
    let (got, gets) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            drop(guarded.lock());
            got.send(()).expect("somebody waits");
        });
        assert!(gets.recv_timeout(Duration::from_millis(20)).is_err(), "it is taken");
        drop(held);
        gets.recv_timeout(Duration::from_secs(60)).expect("it was left");
    });
}

#[test]
fn a_panic_inside_is_noticed_and_one_before_is_not() {
    let guarded = Guarded::new(());
    struct InItsWake<'g>(&'g Guarded<()>);
    impl Drop for InItsWake<'_> {
        fn drop(&mut self) {
            drop(self.0.lock());
        }
    }
    let before = catch_unwind(AssertUnwindSafe(|| {
        let _wake = InItsWake(&guarded);
        panic!("before");
    }));
    assert!(before.is_err() && !guarded.is_poisoned());
    let inside = catch_unwind(AssertUnwindSafe(|| {
        let _held = guarded.lock();
        panic!("inside");
    }));
    assert!(inside.is_err() && guarded.is_poisoned());
    assert!(guarded.try_lock().is_some(), "and it was left");
}

#[test]
fn another_seat_opens_nothing() {
    let (one, other) = (Guarded::new(1), Guarded::new(2));
    let mut taken = other.biased_lock().try_take().expect("nobody has it");
    assert!(one.borrow(&mut taken).is_none());
    let borrowed = other.borrow(&mut taken).expect("its own lock");
    assert_eq!(*borrowed.value, 2);
    borrowed.end();
    assert!(other.try_lock().is_none(), "it is still taken");
    drop(taken);
    assert!(other.try_lock().is_some());
}
