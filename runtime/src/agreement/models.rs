//! Models of the boards under a model checker: `make model-deep`. Threads play ranks.

use super::*;
use crate::call::CallKind;
use collectives::{Collective, DType};
use transport::sync::{
    mark_read, mark_write,
    model::{Arc, explore_with, thread},
};

fn record(seq: u64) -> CallRecord {
    CallRecord { seq, count: seq, plan: seq, ..CallRecord::nothing(seq) }
}

/// Returns what two ranks see of their boards, which both have mapped.
fn pair() -> [Agreement; 2] {
    let boards = [(); 2].map(|()| Board::private().expect("memory"));
    [0, 1].map(|rank| Agreement::new(Rank(rank), boards.to_vec()))
}

/// The second call takes the line of the first.
#[test]
fn loom_a_call_is_read_whole_or_not_at_all() {
    explore_with("a line of calls that is written while it is read", 2, || {
        let [writer, reader] = pair();
        let (early, late) = (1, 1 + CALLS_KEPT);
        let other = thread::spawn(move || {
            writer.enter(&record(early).encode());
            writer.enter(&record(late).encode());
        });
        let seen = read_line(line(reader.boards[0].words(), CALLS + 8));
        assert!(seen.is_none_or(|call| call == record(early) || call == record(late)), "a torn call");
        other.join().expect("a rank");
        assert_eq!(reader.call(Rank(0), late), Some(record(late)));
    });
}

/// A root that has only sent confirms its call by the words of its receivers.
#[test]
fn loom_a_rank_that_has_entered_a_call_shows_that_call() {
    explore_with("the word of an entered call", 3, || {
        let [receiver, root] = pair();
        let done = Arc::new(0u64);
        let theirs = Arc::clone(&done);
        let other = thread::spawn(move || {
            mark_write(std::ptr::from_ref(&*theirs).cast(), 8);
            receiver.enter(&record(1).encode());
            receiver.enter(&record(2).encode());
        });
        if root.entered(Rank(0)) >= 1 {
            assert_eq!(root.call(Rank(0), 1), Some(record(1)));
            mark_read(std::ptr::from_ref(&*done).cast(), 8);
        }
        other.join().expect("a rank");
    });
}

/// Messages to different peers have equal numbers.
#[test]
fn loom_a_message_is_read_whole_where_the_next_one_has_the_same_number() {
    explore_with("the line of messages that is written while it is read", 3, || {
        let [writer, reader] = pair();
        let message = |peer: u32| CallRecord {
            kind: CallKind::Send,
            count: peer.into(),
            root: Rank(peer),
            ..record(1)
        };
        let other = thread::spawn(move || {
            writer.enter_message(&message(1).encode());
            writer.enter_message(&message(2).encode());
        });
        let words = reader.boards[0].words();
        let seen = read_line(line(words, MESSAGE));
        assert!(seen.is_none_or(|seen| seen == message(1) || seen == message(2)), "a torn message: {seen:?}");
        other.join().expect("a rank");
    });
}

fn failure(rank: u32) -> Failure {
    Failure::Died { rank: Rank(rank), how: "x".repeat(rank as usize + 1) }
}

/// Returns the words in which the rendezvous reports the failure of rank 0.
fn reported() -> Vec<Word> {
    let [rank, _] = pair();
    rank.failure_words(&failure(0))
}

#[test]
fn loom_the_first_failure_holds_on_all_ranks() {
    explore_with("two ranks that fail at the same time", 3, || {
        let [a, b] = pair();
        let other = thread::spawn(move || b.raise(failure(1)));
        let ours = a.raise(failure(0));
        assert_eq!(ours, other.join().expect("a rank"), "ranks report different failures");
    });
}

/// The thread that makes calls enters the failure that the rendezvous reports, while another thread of the
/// rank asks for it.
#[test]
fn loom_a_failure_that_the_rendezvous_reports_is_whole_for_other_threads() {
    let words = reported();
    explore_with("a failure that is entered while it is read", 3, move || {
        let mirrored = Agreement::mirrored(Rank(1), 2).expect("memory");
        let asked = mirrored.clone();
        let other = thread::spawn(move || asked.failure());
        mirrored.enter_failure(&words);
        let seen = other.join().expect("another thread");
        assert!(seen.is_none_or(|seen| seen == failure(0)), "a torn failure");
        assert_eq!(mirrored.failure(), Some(failure(0)));
    });
}

/// A thread that has failed by itself keeps its failure when the rendezvous reports another one.
#[test]
fn loom_a_failure_does_not_change_once_it_was_seen() {
    let words = reported();
    explore_with("a failure that is entered after another one", 2, move || {
        let mirrored = Agreement::mirrored(Rank(1), 2).expect("memory");
        mirrored.raise(failure(1));
        let asked = mirrored.clone();
        let other = thread::spawn(move || asked.failure());
        mirrored.enter_failure(&words);
        assert_eq!(other.join().expect("another thread"), Some(failure(1)));
    });
}

/// A rank that leaves is not missed for calls that it has finished.
#[test]
fn loom_a_rank_that_has_left_has_finished_its_calls() {
    explore_with("a rank that leaves", 3, || {
        let [leaver, other] = pair();
        let theirs = thread::spawn(move || {
            let record = CallRecord {
                kind: CallKind::Collective(Collective::AllReduce),
                dtype: DType::F32,
                ..record(1)
            };
            leaver.enter(&record.encode());
            leaver.finish(1);
            leaver.leave();
        });
        if other.has_left(Rank(0)) {
            assert!(other.has_finished(Rank(0), 1), "it would be missed");
        }
        theirs.join().expect("a rank");
    });
}

/// A rank that had left because of a failure was named in place of the rank that had caused the failure.
#[test]
fn loom_a_rank_that_leaves_for_a_failure_has_not_left_in_good_order() {
    explore_with("a rank that fails and leaves", 3, || {
        let [leaver, other] = pair();
        let theirs = thread::spawn(move || {
            leaver.raise(failure(0));
            leaver.leave();
        });
        assert!(!other.has_left_in_good_order(Rank(0)), "it would be blamed");
        theirs.join().expect("a rank");
    });
}
