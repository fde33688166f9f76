//! Models of the word `revoked` of an arena under a model checker: `make model-deep`.

use super::{Arena, ArenaLayout};
use crate::{
    ring::RingLayout,
    sync::{
        AtomicU64,
        model::{Arc, explore_with, thread},
    },
};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Registered memory of an arena's rank, and the flag by which a message in it is published.
#[derive(Default)]
struct Message {
    word: AtomicU64,
    flag: AtomicU64,
}

/// A rank sends a message, fails, revokes its memory and overwrites it, while a late peer reads in place. The
/// words of the message are atomics here: the race for them is intended.
#[test]
fn loom_bytes_read_before_a_revocation_is_seen_are_those_that_were_sent() {
    explore_with("a revocation during a read in place", 4, || {
        let ring = RingLayout::SMALLEST;
        let layout = ArenaLayout { ranks: 2, lanes: 1, ring, slab_bytes: 4096 };
        let arena = Arena::private(layout).expect("memory");
        let message = Arc::new(Message::default());
        let failing = {
            let (arena, message) = (arena.clone(), Arc::clone(&message));
            thread::spawn(move || {
                message.word.store(1, Relaxed);
                message.flag.store(1, Release);
                arena.revoke();
                message.word.store(666, Relaxed);
            })
        };
        if message.flag.load(Acquire) == 1 {
            let read = message.word.load(Relaxed);
            assert!(arena.is_revoked() || read == 1, "{read} was taken for what was sent");
        }
        failing.join().expect("a rank");
    });
}
