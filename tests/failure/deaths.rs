//! Ranks that die, stop or leave during calls.

use crate::job::{self, TRANSPORTS};
use rustix::process::{Pid, Signal, kill_process};
use std::{thread::sleep, time::Duration};
use support::{Finished, Message, milliseconds};

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Kills rank `victim` of a job whose ranks repeat an all_reduce of 64 MiB, and checks the errors of the
/// others.
fn kill_one(ranks: u32, victim: u32, after: Duration, env: &[(&str, &str)]) {
    let job = job::start(ranks, "reduce", env);
    let ready: Vec<Message> = (0..ranks).map(|_| job.next_message()).collect();
    assert!(ready.iter().all(|said| said.word == "ready"), "{ready:?}");
    let pid = &ready.iter().find(|said| said.rank == victim).expect("all are ready").rest;
    sleep(after);
    let killed = milliseconds();
    kill_process(pid.parse().ok().and_then(Pid::from_raw).expect("a process"), Signal::KILL)
        .expect("it runs");
    let done = job.finish();
    let who = format!("rank {victim} (process {pid} on {}) was killed by SIGKILL", host());
    assert_eq!(done.code(), 137, "{}", done.stderr);
    let errors = done.all("error");
    assert_eq!(errors.len() as u32, ranks - 1, "all survivors report: {:?}\n{}", done.messages, done.stderr);
    for error in errors {
        let (at, text) = error.rest.split_once(' ').expect("the time first");
        let late = at.parse::<u128>().expect("a time") - killed;
        assert!(late < 2000, "rank {} took {late} ms: {text}", error.rank);
        assert!(text.contains(&who), "{text}");
        assert!(
            text.contains(&format!("rank {} in all_reduce of 16777216 f32, op sum", error.rank)),
            "{text}"
        );
        let places = ["step ", "after its last step", "before the next call"];
        assert!(places.iter().any(|place| text.contains(place)), "{text}");
    }
    assert_eq!(
        done.all("dropped").len() as u32,
        ranks - 1,
        "each gives the same error again: {}",
        done.stderr
    );
}

#[test]
fn a_killed_rank_is_named_by_every_survivor_within_two_seconds() {
    let mut seed = 12345u64;
    for round in 0..50 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let ranks = 3 + (round % 2);
        let victim = (seed >> 33) as u32 % ranks;
        let transport = TRANSPORTS[round as usize / 2 % TRANSPORTS.len()];
        let env = [("TBCCL_TRANSPORT", transport)];
        kill_one(ranks, victim, Duration::from_micros((seed >> 40) % 60_000), &env);
    }
}

#[test]
fn a_rank_that_is_killed_while_others_pull_from_it_is_dead_and_not_unreadable() {
    for round in 0..6 {
        kill_one(3, round % 3, Duration::from_millis(u64::from(round) * 9), &[("TBCCL_PULL_MIN_BYTES", "1")]);
    }
}

#[test]
fn a_rank_that_is_killed_while_others_read_its_staged_messages_is_named() {
    for round in 0..4 {
        kill_one(3, round % 3, Duration::from_millis(u64::from(round) * 9), &[("TBCCL_PULL", "0")]);
    }
}

/// Returns the errors of the other ranks when rank 1 ends in the given way.
fn one_fails(how: &str, ranks: u32, env: &[(&str, &str)]) -> (Finished, String) {
    let job = job::start(ranks, &format!("one_fails {how}"), env);
    let done = job.finish();
    let pid = done.all("going").first().expect("rank 1 says so").rest.clone();
    assert_eq!(done.all("error").len() as u32, ranks - 1, "{how}: {:?}\n{}", done.messages, done.stderr);
    assert_eq!(done.all("dropped").len() as u32, ranks - 1, "{how}: {}", done.stderr);
    (done, pid)
}

#[test]
fn a_rank_that_crashes_is_named_with_how_it_ended() {
    let ways = [
        ("segv", "was killed by SIGSEGV", 139),
        ("abort", "was killed by SIGABRT", 134),
        ("exit3", "exited with status 3", 3),
    ];
    for ((how, what, code), transport) in ways.into_iter().flat_map(|way| TRANSPORTS.map(|t| (way, t))) {
        let (done, pid) = one_fails(how, 3, &[("TBCCL_TRANSPORT", transport)]);
        assert_eq!(done.code(), code, "{how}: {}", done.stderr);
        for error in done.all("error") {
            assert!(
                error.rest.contains(&format!("rank 1 (process {pid} on {}) {what}", host())),
                "{error:?}"
            );
        }
    }
}

#[test]
fn a_rank_that_exits_without_a_word_is_dead_even_with_status_zero() {
    for transport in TRANSPORTS {
        let (done, pid) = one_fails("exit0", 3, &[("TBCCL_TRANSPORT", transport)]);
        for error in done.all("error") {
            assert!(error.rest.contains(&format!("rank 1 (process {pid}")), "{transport}: {error:?}");
        }
    }
}

#[test]
fn a_rank_that_closes_its_communicator_early_is_named() {
    for transport in TRANSPORTS {
        let (done, pid) = one_fails("leave", 4, &[("TBCCL_TRANSPORT", transport)]);
        for error in done.all("error") {
            let text = &error.rest;
            assert!(text.contains(&format!("rank 1 (process {pid} on {})", host())), "{text}");
            assert!(text.contains("closed its communicator without taking part"), "{text}");
        }
    }
}

#[test]
fn a_stopped_rank_is_a_timeout_that_says_what_everyone_was_doing() {
    for transport in TRANSPORTS {
        // Without a shared board, only a rank that has waited for long has reported, as in the barrier of a
        // busy machine.
        let activities: &[&str] = match transport {
            "shm" => &["rank 1 is outside, after call 1 (barrier)"],
            _ => &[
                "rank 1 has entered no collective, as far as it has told",
                "rank 1 is in call 1 (barrier), as far as it has told",
            ],
        };
        stopped(transport, activities);
    }
}

fn stopped(transport: &str, activities: &[&str]) {
    let (done, _) = one_fails("stop", 3, &[("TBCCL_TIMEOUT", "1"), ("TBCCL_TRANSPORT", transport)]);
    for error in done.all("error") {
        let mut parts = error.rest.splitn(3, ' ');
        let took: u32 = parts.nth(1).and_then(|ms| ms.parse().ok()).expect("a time");
        let text = parts.next().expect("the error");
        // An error comes within two seconds after the time limit.
        assert!((900..3000).contains(&took), "after {took} ms: {text}");
        assert!(text.contains("no progress within the time limit"), "{text}");
        assert!(text.contains("in all_reduce of 1000 f32, op sum, step "), "{text}");
        assert!(activities.iter().any(|activity| text.contains(activity)), "{text}");
        assert!(text.contains("TBCCL_TIMEOUT"), "{text}");
    }
}

#[test]
fn a_rank_that_was_stopped_does_not_take_what_a_failed_one_left() {
    for transport in TRANSPORTS {
        let env = [("TBCCL_TIMEOUT", "1"), ("TBCCL_ALGO", "mesh"), ("TBCCL_TRANSPORT", transport)];
        let job = job::start(2, "give_up", &env);
        let stopping = job.next_message();
        assert_eq!(stopping.word, "stopping");
        while job.next_message().word != "reused" {}
        let pid = stopping.rest.parse().ok().and_then(Pid::from_raw).expect("a process");
        kill_process(pid, Signal::CONT).expect("it is stopped");
        let done = job.finish();
        assert!(done.all("wrong").is_empty(), "{:?}", done.messages);
        assert_eq!(
            done.all("error").last().map(|said| said.rank),
            Some(1),
            "{:?}\n{}",
            done.messages,
            done.stderr
        );
    }
}
