//! Tests with many ranks.

use super::{intruders::SetOnDrop, *};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Lets `ranks` ranks join over TCP and exchange a few bytes. Returns the time that it takes.
fn start(ranks: u32) -> Duration {
    let (server, secret) = open(ranks);
    let rendezvous =
        ConnectSpec { timeout: Duration::from_secs(60), ..rendezvous(&server, &secret, Way::Tcp) };
    let began = Instant::now();
    thread::scope(|scope| {
        for rank in 0..ranks {
            let rendezvous = &rendezvous;
            let run = move || {
                let mut connection = join(rendezvous, &hello(rank, ranks, 60_000)).expect("all join");
                let parts = connection.exchange(&rank.to_le_bytes()).expect("all give");
                assert!(parts.iter().zip(0..).all(|(part, rank): (_, u32)| part[..] == rank.to_le_bytes()));
                connection.goodbye(Vec::new());
            };
            thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, run).expect("a thread");
        }
    });
    let took = began.elapsed();
    let status = server.wait_until(|status| status.is_over, SECOND * 20);
    assert_eq!((status.joined, status.gone), (ranks, ranks));
    assert_eq!(server.rejections().ranks, 0);
    took
}

#[test]
fn a_hundred_ranks_come_together_over_tcp() {
    assert!(start(100) < SECOND * 30);
}

/// Follows the boards on a rank until it knows all words of the others' boards.
fn learn_all(connection: &mut Connection, ranks: u32, words: usize) {
    let mut known = std::collections::BTreeSet::new();
    let until = Instant::now() + SECOND * 20;
    while known.len() < words * (ranks as usize - 1) {
        assert!(Instant::now() < until, "{} words", known.len());
        match connection.notice(SECOND / 10) {
            Some(Notice::BoardUpdate(boards)) => {
                let all =
                    boards.into_iter().flat_map(|(rank, words)| words.into_iter().map(move |w| (rank, w.0)));
                known.extend(all);
                connection.sync_board(Vec::new());
            }
            None => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_rank_that_computes_while_much_has_changed_is_alive() {
    const RANKS: u32 = 16;
    const WORDS: usize = 4096;
    let (server, secret) = open(RANKS);
    let rendezvous = &rendezvous(&server, &secret, Way::Tcp);
    let (published, done) = (&std::sync::Barrier::new(RANKS as usize), &AtomicBool::new(false));
    thread::scope(|scope| {
        for rank in 1..RANKS {
            scope.spawn(move || {
                let mut connection = join(rendezvous, &hello(rank, RANKS, 20_000)).expect("all join");
                connection.sync_board((0..WORDS as u16).map(|index| (index, u64::MAX)).collect());
                let mut notices = Vec::new();
                let began = Instant::now();
                while began.elapsed() < SECOND / 2 {
                    notices.extend(connection.notice(SECOND / 100));
                }
                published.wait();
                while !done.load(Relaxed) {
                    notices.extend(connection.notice(SECOND / 100));
                }
                let died = notices.iter().find(|notice| !matches!(notice, Notice::BoardUpdate(_)));
                assert_eq!(died, None);
                connection.goodbye(Vec::new());
            });
        }
        let _done = SetOnDrop(done);
        let mut computing = join(rendezvous, &hello(0, RANKS, 20_000)).expect("all join");
        published.wait();
        computing.sync_board(Vec::new());
        // Nearly three times as long as a host may be silent in these tests.
        thread::sleep(SECOND * 4);
        learn_all(&mut computing, RANKS, WORDS);
        done.store(true, Relaxed);
        computing.goodbye(Vec::new());
    });
    assert_eq!(server.wait_until(|status| status.is_over, SECOND).died, 0);
}
