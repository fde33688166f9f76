//! Handles that are right, stale, foreign or made up, by one thread and by several.

use super::*;
use std::{sync::Arc, thread};
use tbccl::{Communicator, Config, SharedCommunicator};

/// A table that outlives the test's threads.
fn table<T>() -> &'static Table<T> {
    Box::leak(Box::new(Table::new()))
}

#[test]
fn a_handle_finds_its_own_until_it_is_closed_and_never_another() {
    let table = table();
    let first = table.insert("first").expect("room");
    let second = table.insert("second").expect("room");
    assert_eq!((*table.get(first).expect("live"), *table.get(second).expect("live")), ("first", "second"));
    let held = table.get(first).expect("live");
    assert!(Table::close(&held) && !Table::close(&held), "it is closed once");
    assert!(table.get(first).is_none() && !table.is_live(first), "closed, and still held");
    assert_eq!(*held, "first", "who holds it sees it");
    drop(held);
    let third = table.insert("third").expect("room");
    assert_eq!(third.index, first.index, "places are used again");
    assert!(table.get(first).is_none() && !table.is_live(first), "of an earlier generation");
    assert!(table.is_live(third));
    assert_eq!((*table.get(third).expect("live"), table.count()), ("third", 2));
}

#[test]
fn numbers_that_are_no_handles_find_nothing() {
    let table = table();
    let key = table.insert(1u8).expect("room");
    let bits = key.to_bits(Kind::Comm);
    assert_eq!(Key::from_bits(bits, Kind::Comm), Some(key));
    assert_eq!(Key::from_bits(bits, Kind::Request), None, "another kind");
    for bit in 0..64 {
        let other = Key::from_bits(bits ^ 1 << bit, Kind::Comm);
        assert!(other.and_then(|key| table.get(key)).is_none(), "bit {bit} changed");
    }
    for bits in [0, 1, u64::MAX, 0x7fff_1234_5678, ptr::from_ref(&bits) as u64] {
        assert_eq!(Key::from_bits(bits, Kind::Comm), None, "{bits:#x}");
    }
    assert!(table.get(key).is_some() && table.count() == 1);
}

#[test]
fn numbers_of_operations_fit_an_int_and_tell_generations_apart() {
    let table = table();
    let key = table.insert(1u8).expect("room");
    let number = key.to_op().expect("a low place");
    assert!(number >= 1 << 30 && table.get_op(number).is_some());
    for other in [number + 1, number ^ 1 << 16, 0, -1, 4, i32::MAX, i32::MIN] {
        assert!(table.get_op(other).is_none(), "{other}");
    }
    Table::close(&table.get(key).expect("live"));
    assert!(table.get_op(number).is_none());
}

#[test]
fn chunks_lie_side_by_side() {
    let mut expected = (0, 0);
    for index in 0..10_000 {
        assert_eq!(Table::<u8>::split(index), expected, "{index}");
        expected.1 += 1;
        if expected.1 == (FIRST_CHUNK as usize) << expected.0 {
            expected = (expected.0 + 1, 0);
        }
    }
    assert!(MAX_SLOTS.next_power_of_two() <= 1 << 23, "a place fits its bits");
    assert_eq!(Table::<u8>::split(MAX_SLOTS - 1).0, MAX_CHUNKS - 1);
}

#[test]
fn what_is_closed_while_others_hold_it_is_dropped_once_by_the_last() {
    let table = table();
    let drops = Arc::new(AtomicU32::new(0));
    struct Counted(Arc<AtomicU32>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    const ROUNDS: u32 = 2000;
    for round in 0..ROUNDS {
        let key = table.insert(Counted(Arc::clone(&drops))).expect("room");
        let found: u32 = thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|at| {
                    scope.spawn(move || match table.get(key) {
                        Some(held) => {
                            assert!(held.0.load(Ordering::Relaxed) <= round, "seen after it was dropped");
                            if at == 0 { u32::from(Table::close(&held)) } else { 0 }
                        }
                        None => 0,
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert_eq!((found, drops.load(Ordering::Relaxed), table.count()), (1, round + 1, 0));
    }
    assert_eq!(table.taken.load(Ordering::Relaxed), 1, "one place served all");
}

/// A lock that nothing else has while the communicator is there.
fn lender() -> SharedCommunicator {
    let config = Config { slab_bytes: Some(1 << 20), ..Config::default() };
    let alone = Communicator::local(1, &config).expect("memory for a test").remove(0);
    SharedCommunicator::new(alone)
}

#[test]
fn a_lock_is_held_by_one_who_found_its_value_live() {
    let (table, lender, other) = (table(), lender(), lender());
    let without = table.insert("without").expect("room");
    assert!(table.lock(without).is_none(), "it has none");
    let key = table.insert_with("with", Some(lender.biased_lock())).expect("room");
    let mut locked = table.lock(key).expect("nobody has it");
    assert_eq!(*locked.split().0, "with");
    assert!(table.lock(key).is_none() && lender.biased_lock().try_take().is_none(), "one has it");
    drop(locked);
    let later = Key { generation: key.generation + 1, ..key };
    assert!(table.lock(later).is_none(), "not yet");
    Table::close(&table.get(key).expect("live"));
    assert!(table.lock(key).is_none(), "not any more");
    assert!(lender.biased_lock().try_take().is_some(), "what was taken in error is left");
    let next = table.insert_with("next", Some(other.biased_lock())).expect("room");
    assert_eq!(next, later, "the same place");
    let _held = lender.biased_lock().try_take().expect("nobody has it");
    assert_eq!(*table.lock(next).expect("it has another lock now").split().0, "next");
}

#[test]
fn nothing_is_dropped_while_its_lock_is_held() {
    const ROUNDS: u64 = 3000;
    struct Alive(Arc<AtomicU32>);
    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.store(0, Ordering::SeqCst);
        }
    }
    let (table, lenders) = (table(), [lender(), lender()]);
    let key = AtomicU64::new(0);
    let (is_over, seen) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while is_over.load(Ordering::SeqCst) == 0 {
                    let key = Key::from_bits(key.load(Ordering::SeqCst), Kind::Comm);
                    let Some(mut locked) = key.and_then(|key| table.lock(key)) else { continue };
                    let alive: &Alive = locked.split().0;
                    assert_eq!(alive.0.load(Ordering::SeqCst), 1);
                    seen.fetch_add(1, Ordering::SeqCst);
                    thread::yield_now();
                    assert_eq!(alive.0.load(Ordering::SeqCst), 1, "it is locked");
                }
            });
        }
        let start = std::time::Instant::now();
        for round in 0.. {
            let alive = Alive(Arc::new(AtomicU32::new(1)));
            let biased_lock = lenders[round as usize % 2].biased_lock();
            let now = table.insert_with(alive, Some(biased_lock)).expect("room");
            key.store(now.to_bits(Kind::Comm), Ordering::SeqCst);
            thread::yield_now();
            assert!(Table::close(&table.get(now).expect("live")));
            let is_enough = round >= ROUNDS && seen.load(Ordering::SeqCst) > 100;
            if is_enough || start.elapsed().as_secs() > 60 {
                break;
            }
        }
        is_over.store(1, Ordering::SeqCst);
    });
    assert!(seen.load(Ordering::SeqCst) > 100, "locks were held meanwhile");
}
