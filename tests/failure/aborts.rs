//! Aborts from another thread than the calling one.

use crate::job::{self, TRANSPORTS};

/// Aborts rank 1 of a job whose ranks repeat an all_reduce of 64 MiB; returns the milliseconds that the abort
/// itself took.
fn abort_one(transport: &str, place: &str, after_micros: u32) -> u128 {
    let role = format!("abort {place} {after_micros}");
    let done = job::start(3, &role, &[("TBCCL_TRANSPORT", transport)]).finish();
    assert_eq!(done.code(), 0, "{:?}\n{}", done.messages, done.stderr);
    let aborted = done.all("aborted");
    let (at, took) = aborted[0].rest.split_once(' ').expect("two numbers");
    let (at, took): (u128, u128) = (at.parse().expect("a time"), took.parse().expect("a number"));
    let errors = done.all("error");
    assert_eq!((errors.len(), done.all("dropped").len()), (3, 3), "{:?}\n{}", done.messages, done.stderr);
    for error in errors {
        let (failed, text) = error.rest.split_once(' ').expect("the time first");
        let late = failed.parse::<u128>().expect("a time") - at;
        // A rank that aborts outside of calls delays its own next call.
        let is_bound = error.rank != 1 || place == "inside";
        assert!(late < 2000 || !is_bound, "{transport}: rank {} took {late} ms: {text}", error.rank);
        let says = if error.rank == 1 { "the program aborted" } else { "rank 1 failed: the program aborted" };
        assert!(text.starts_with(says), "{transport}: rank {}: {text}", error.rank);
    }
    took
}

#[test]
fn an_abort_is_prompt_and_ends_everyone_s_call_within_two_seconds() {
    for transport in TRANSPORTS {
        let took = (0..4).map(|round| abort_one(transport, "inside", 3000 + round * 17_000));
        // The minimum of several rounds, since the aborting thread may have to wait for a core.
        let least = took.min().expect("four");
        assert!(least < 100, "{transport}: an abort took {least} ms");
    }
}

#[test]
fn an_abort_outside_of_calls_ends_those_of_the_others() {
    for transport in TRANSPORTS {
        abort_one(transport, "outside", 20_000);
    }
}
