//! Ranks that make different calls.
//!
//! Every rank gets the error: in the call itself, or, if its part of the call needed nothing from the
//! differing rank, in its next call. The latter applies to
//!
//! - ranks of a broadcast whose parent in the tree makes the same call,
//! - a rank whose `send` was staged completely,
//! - ranks that take no part in a message.
//!
//! Ranks that get the error in their next call print `passed`.
//!
//! A rank that only sends, in calls of a kind that has agreed before, gets it after 16 of them at the latest.

use crate::job::{self, TRANSPORTS};
use support::Finished;

/// Runs a case on each transport; asserts that all ranks soon fail and show both calls.
fn disagree(case: &str, ranks: u32, calls: [&str; 2]) -> [Finished; TRANSPORTS.len()] {
    TRANSPORTS.map(|transport| disagree_over(transport, case, ranks, calls))
}

fn disagree_over(transport: &str, case: &str, ranks: u32, calls: [&str; 2]) -> Finished {
    let mut env = vec![("TBCCL_TIMEOUT", "20"), ("TBCCL_TRANSPORT", transport)];
    // Plans in which its sender and its receiver exchange nothing leave a message to a later call.
    env.extend((case == "stray_message").then_some(("TBCCL_ALGO", "mesh")));
    let done = job::start(ranks, &format!("calls {case}"), &env).finish();
    let errors = done.all("error");
    assert_eq!(errors.len() as u32, ranks, "{case}: {:?}\n{}", done.messages, done.stderr);
    for error in errors {
        let mut parts = error.rest.splitn(3, ' ');
        let took: u32 = parts.nth(1).and_then(|ms| ms.parse().ok()).expect("a time");
        let text = parts.next().expect("the error");
        // The ranks compare their calls; they do not wait for the time limit.
        assert!(took < 5000, "{case}: rank {} took {took} ms", error.rank);
        assert!(text.contains("the ranks disagree on call"), "{case}: {text}");
        assert!(calls.iter().all(|call| text.contains(call)), "{case}: {text}");
    }
    assert_eq!(done.all("dropped").len() as u32, ranks, "{case}: {}", done.stderr);
    done
}

/// Runs a case in which every rank gets the error in the call itself.
fn disagree_at_once(case: &str, calls: [&str; 2]) {
    for ranks in [2, 4] {
        for done in disagree(case, ranks, calls) {
            assert!(done.all("passed").is_empty(), "{case} on {ranks} ranks: {:?}", done.messages);
        }
    }
}

#[test]
fn ranks_that_reduce_differently_all_see_both_calls() {
    disagree_at_once("op", ["op sum", "op max"]);
    disagree_at_once("dtype", [" i32, op sum", " f32, op sum"]);
}

#[test]
fn ranks_that_reduce_different_counts_all_see_both_calls() {
    for ranks in [2, 4] {
        let n = 12 * ranks;
        let calls = [format!("all_reduce of {n} i32"), format!("all_reduce of {} i32", n - 1)];
        disagree("count", ranks, [&calls[0], &calls[1]]);
    }
    let calls = ["all_reduce of 1048576 i32", "all_reduce of 1048577 i32"];
    disagree_at_once("large_count", calls);
    disagree_at_once("registered_count", calls);
    disagree_at_once("gather_count", ["all_gather of 5 i32", "all_gather of 6 i32"]);
}

#[test]
fn ranks_in_different_collectives_all_see_both_calls() {
    disagree_at_once("barrier", ["called barrier", "called all_reduce of"]);
    for ranks in [2, 4] {
        // The root of the broadcast needs no data of other ranks, and still compares calls.
        disagree("collective", ranks, ["called broadcast of", "called all_reduce of"]);
        disagree("order", ranks, ["called broadcast of", "called all_reduce of"]);
        disagree("extra", ranks, ["called barrier", "f32, op sum"]);
    }
}

#[test]
fn ranks_that_disagree_on_the_root_all_see_both_calls() {
    for ranks in [2, 4] {
        let last = format!("root {}", ranks - 1);
        disagree("root", ranks, ["root 0", &last]);
        disagree("large_root", ranks, ["root 0", &last]);
        disagree("broadcast_count", ranks, ["broadcast of", "root 0"]);
    }
}

/// Roots do not wait for their receivers in every call.
#[test]
fn a_root_that_goes_on_sees_both_calls_before_its_next_sixteen_are_over() {
    let calls = ["called broadcast of", "called all_reduce of"];
    for done in disagree("repeated", 2, calls) {
        assert!(done.all("passed").is_empty(), "{:?}", done.messages);
    }
    disagree("repeated", 4, calls);
}

#[test]
fn messages_that_do_not_fit_are_shown_with_both_ends() {
    for ranks in [2, 4] {
        disagree("message_count", ranks, ["called recv of", "called send of"]);
        disagree("message_dtype", ranks, [" f32 from rank 0", " i32 to rank"]);
        // The call conflicts with the message, or with the next call of its sender or of an uninvolved rank.
        let other = if ranks == 2 { "rank 0 called " } else { " called " };
        disagree("message_and_collective", ranks, ["called all_reduce of", other]);
        disagree("stray_message", ranks, ["called all_reduce of", "called send of"]);
    }
}
