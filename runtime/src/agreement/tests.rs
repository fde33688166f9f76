//! Tests of boards, mapped and mirrored.

use super::*;
use crate::call::CallKind;
use collectives::{Collective, DType};
use transport::{memory::ArenaLayout, ring::RingLayout};

fn pair() -> [Agreement; 2] {
    let layout = ArenaLayout { ranks: 2, lanes: 1, ring: RingLayout::default(), slab_bytes: 1 << 20 };
    let arenas = transport::driver::local::arenas(layout).expect("memory for a test");
    [0, 1].map(|r| Agreement::new(Rank(r), arenas.iter().map(|a| a.board()).collect()))
}

fn record(seq: u64) -> CallRecord {
    CallRecord {
        seq,
        kind: CallKind::Collective(Collective::Broadcast),
        dtype: DType::F32,
        op: None,
        count: seq * 3,
        root: Rank(1),
        plan: 5,
        uneven: false,
        codec: None,
    }
}

#[test]
fn the_latest_calls_of_a_peer_can_be_read() {
    let [a, b] = pair();
    for seq in 1..=100 {
        a.enter(&record(seq).encode());
        a.finish(seq - 1);
    }
    assert_eq!(b.entered(Rank(0)), 100);
    assert_eq!(b.call(Rank(0), 100), Some(record(100)));
    assert_eq!(b.call(Rank(0), 37), Some(record(37)));
    assert_eq!(b.call(Rank(0), 36), None, "only 64 are kept");
    assert_eq!(b.call(Rank(0), 101), None);
    assert_eq!(b.find(Rank(0), record(50).digest()), Some(record(50)));
    a.enter_message(&CallRecord { kind: CallKind::Send, ..record(3) }.encode());
    let received = CallRecord { kind: CallKind::Recv, root: Rank(0), ..record(3) };
    assert_eq!(b.find(Rank(0), received.digest()).map(|call| call.kind), Some(CallKind::Send));
    assert_eq!(b.find(Rank(0), 1), None);
    assert_eq!(b.activity(Rank(0)), "rank 0 is in a send of 9 f32 to rank 1");
    a.finish_message();
    assert!(b.activity(Rank(0)).starts_with("rank 0 is in call 100"));
    assert!(b.activity(Rank(0)).starts_with("rank 0 is in call 100 (broadcast of 300 f32"));
}

#[test]
fn the_first_failure_wins_on_every_rank() {
    let [a, b] = pair();
    assert!(!a.has_failure() && a.failure().is_none());
    let first = Failure::Died { rank: Rank(1), how: "killed by SIGKILL, ünïcode".into() };
    assert_eq!(b.raise(first.clone()), first);
    assert_eq!(a.raise(Failure::Failed { rank: Rank(0), message: "later".into() }), first);
    assert!(a.has_failure());
    assert_eq!(a.failure(), Some(first));
}

#[test]
fn messages_with_equal_numbers_have_different_stamps() {
    let [a, b] = pair();
    let stamp = || b.boards[0].words()[MESSAGE].load(Relaxed);
    for peer in 1..4 {
        let before = stamp();
        a.enter_message(&CallRecord { kind: CallKind::Send, root: Rank(peer), ..record(1) }.encode());
        assert!(stamp() > before, "a reader could take a part of each for one");
    }
}

/// A rank that waited for a tagged message sent news to the rendezvous every 5 ms.
#[test]
fn a_message_that_is_waited_for_is_news_once() {
    let agreement = Agreement::mirrored(Rank(1), 2).expect("memory for a test");
    let mut published = Published::default();
    let message = CallRecord { kind: CallKind::Recv, root: Rank(0), ..record(1) };
    let mut news = || {
        agreement.enter_message(&message.encode());
        agreement.news(&mut published).len()
    };
    assert!(news() > 0);
    assert_eq!(news(), 0);
    agreement.finish_message();
    assert!(news() > 0, "the next one, which is equal");
}

#[test]
fn a_failure_of_this_rank_stays_when_the_rendezvous_reports_another_one() {
    let failure = |rank| Failure::Died { rank: Rank(rank), how: format!("ended {rank}") };
    let mirrored = || Agreement::mirrored(Rank(1), 2).expect("memory for a test");
    let reported = mirrored().failure_words(&failure(0));
    let (early, late) = (mirrored(), mirrored());
    early.enter_failure(&reported);
    assert_eq!((early.failure(), early.raise(failure(1))), (Some(failure(0)), failure(0)));
    late.raise(failure(1));
    late.enter_failure(&reported);
    assert_eq!(late.failure(), Some(failure(1)));
    let broken = mirrored();
    broken.enter_failure(&[(FAILURE as u16 + 1, 1), (u16::MAX, 7)]);
    assert_eq!(broken.failure(), None);
}

#[test]
fn failures_survive_the_board() {
    let long = "é".repeat(1000);
    let cut = "é".repeat(480);
    for (given, read) in [
        (
            Failure::Mismatch { calls: [(Rank(0), record(1)), (Rank(1), record(2))] },
            Failure::Mismatch { calls: [(Rank(0), record(1)), (Rank(1), record(2))] },
        ),
        (Failure::Failed { rank: Rank(1), message: long }, Failure::Failed { rank: Rank(1), message: cut }),
    ] {
        let [a, b] = pair();
        a.raise(given);
        assert_eq!(b.failure(), Some(read));
    }
}
