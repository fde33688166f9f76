//! Ranks that are processes, on every transport that a single host has without devices.

use std::collections::HashMap;
use support::{Finished, Process, host_wrapper, rank_arguments_of, tbccl};

/// Transports: shared memory, shared memory used like a network, TCP, and shared memory with TCP between
/// hosts of two ranks each.
const TRANSPORTS: [&str; 4] = ["shm", "rehearsal", "tcp", "shm+tcp"];

/// Starts `ranks` ranks in a role; they continue when some die.
fn job(ranks: u32, role: &str, env: &[(&str, &str)]) -> Process {
    let mut command = tbccl();
    command
        .args(["run", "--keep-going", "-n", &ranks.to_string(), "--"])
        .args(host_wrapper(env))
        .args(rank_arguments_of("members::roles::play"));
    command.env("ROLE", role).envs(env.iter().copied());
    Process::start(command)
}

fn all_say(done: &Finished, word: &str, ranks: usize) {
    assert!(
        done.code() == 0 && done.all(word).len() == ranks,
        "{}: {:?}\n{}",
        done.code(),
        done.messages,
        done.stderr
    );
}

#[test]
fn every_colour_has_a_communicator_of_its_own_on_every_transport() {
    for transport in TRANSPORTS {
        let done = job(5, "split", &[("TBCCL_TRANSPORT", transport)]).finish();
        all_say(&done, "split", 5);
        assert!(!done.stderr.contains("panic"), "{transport}: {}", done.stderr);
    }
}

#[test]
fn a_healthy_communicator_is_shrunk_and_goes_on() {
    for transport in TRANSPORTS {
        let done = job(4, "shrink_healthy", &[("TBCCL_TRANSPORT", transport)]).finish();
        all_say(&done, "shrunk", 4);
    }
}

/// Kills one rank after another; returns the number of shrunk communicators. Asserts that calls fail within
/// two seconds.
pub(crate) fn ladder(ranks: u32, seed: u64, transport: &str) -> u32 {
    climb("ladder", ranks, seed, transport)
}

fn climb(role: &str, ranks: u32, seed: u64, transport: &str) -> u32 {
    let env = [("TBCCL_TRANSPORT", transport)];
    let done = job(ranks, &format!("{role} {seed}"), &env).finish();
    let about = || format!("{transport}, seed {seed}: {:?}\n{}", done.messages, done.stderr);
    assert!(done.code() == 0 && done.all("through").len() == 2, "{}", about());
    let parts = |text: &str| -> (u32, u128) {
        let mut parts = text.split(' ');
        let round = parts.next().and_then(|round| round.parse().ok());
        let at = parts.next().and_then(|at| at.parse().ok());
        round.zip(at).unwrap_or_else(|| panic!("`{text}`: {}", about()))
    };
    let died: HashMap<u32, u128> = done.all("dying").iter().map(|said| parts(&said.rest)).collect();
    assert_eq!(died.len() as u32, ranks - 2, "{}", about());
    for error in done.all("error") {
        let (round, at) = parts(&error.rest);
        let late = at.saturating_sub(died[&round]);
        assert!(late < 2000, "{late} ms: {error:?}; {}", about());
    }
    died.len() as u32
}

#[test]
fn survivors_of_killed_ranks_go_on_whoever_was_killed() {
    for seed in 0..3 {
        ladder(5, seed, "shm");
    }
    ladder(4, 100, "tcp");
    ladder(4, 101, "rehearsal");
    ladder(4, 102, "shm+tcp");
}

/// A smaller version of the test below: a 64th of the data, in a few seconds.
#[test]
fn thirty_communicators_are_shrunk_when_a_rank_is_killed() {
    let (mut seed, mut shrunk) = (2000, 0);
    while shrunk < 30 {
        shrunk += climb("brief_ladder", 8, seed, "shm");
        seed += 1;
    }
}

#[test]
#[ignore = "takes five minutes; `make endurance` runs it, and the others here do the same with less"]
fn two_hundred_communicators_are_shrunk_when_a_rank_is_killed() {
    for (transport, wanted) in [("shm", 200), ("tcp", 30), ("shm+tcp", 15), ("rehearsal", 15)] {
        let (mut seed, mut shrunk) = (1000, 0);
        while shrunk < wanted {
            shrunk += ladder(6, seed, transport);
            seed += 1;
        }
        eprintln!("{transport}: {shrunk} communicators were shrunk");
    }
}

#[test]
fn who_leaves_out_too_few_is_told_who_else_is_missing() {
    let each = ["shm", "tcp", "shm+tcp"].into_iter().flat_map(|name| [(name, "0"), (name, "1")]);
    for (transport, first) in each {
        let env = [("TBCCL_TRANSPORT", transport), ("FIRST", first), ("TBCCL_TIMEOUT", "2")];
        let done = job(5, "two_die", &env).finish();
        all_say(&done, "through", 3);
        let missing = if first == "0" { 3 } else { 0 };
        for said in done.all("absent") {
            assert!(
                said.rest.contains(&format!("{missing} before")) || said.rest.contains("rank 0 ("),
                "{said:?}"
            );
        }
        assert_eq!(done.all("absent").len(), 3, "{transport}: {:?}", done.messages);
    }
}

/// Once, they waited until the time limit, since the rendezvous of the new communicator had not met the rank.
#[test]
fn a_split_ends_when_a_member_dies_before_it_has_come() {
    for transport in TRANSPORTS {
        for victim in ["0", "3"] {
            let done =
                job(4, &format!("split_orphaned {victim}"), &[("TBCCL_TRANSPORT", transport)]).finish();
            let said = done.all("orphaned");
            assert_eq!(said.len(), 3, "{transport}, {victim}: {:?}\n{}", done.messages, done.stderr);
            let names_it = |text: &str| text.contains(&format!("rank {victim} (process "));
            assert!(said.iter().all(|said| names_it(&said.rest)), "{said:?}");
        }
    }
}

#[test]
fn a_communicator_grows_by_ranks_that_have_an_id() {
    for transport in ["auto", "tcp", "shm+tcp"] {
        let done = job(3, "grow", &[("TBCCL_TRANSPORT", transport)]).finish();
        all_say(&done, "grown", 3);
    }
}

/// Once, the ranks that had waited found their rendezvous closed and the communicator working, and the new
/// ranks were told that a launcher had ended.
#[test]
fn a_communicator_that_can_not_grow_has_failed_and_tells_the_new_ranks_why() {
    for transport in ["shm", "tcp"] {
        let done = job(3, "grow_alone", &[("TBCCL_TRANSPORT", transport), ("TBCCL_TIMEOUT", "2")]).finish();
        all_say(&done, "alone", 3);
    }
}

/// Once, they were told that the launcher might have ended.
#[test]
fn ranks_that_grow_are_told_that_the_rank_which_serves_them_has_died() {
    for transport in ["shm", "tcp"] {
        let done = job(3, "grow_orphaned", &[("TBCCL_TRANSPORT", transport)]).finish();
        assert_eq!(done.all("orphaned").len(), 2, "{transport}: {:?}\n{}", done.messages, done.stderr);
    }
}
