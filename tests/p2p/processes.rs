//! P2p between processes, on every transport that a single host has without devices.

use support::{Process, host_wrapper, rank_arguments, tbccl};

/// Transports: shared memory, shared memory used like a network, TCP, and shared memory with TCP between
/// hosts of two ranks each.
const TRANSPORTS: [&str; 4] = ["shm", "rehearsal", "tcp", "shm+tcp"];

/// Starts `ranks` ranks in a role with environment variables.
fn start(ranks: u32, role: &str, env: &[(&str, &str)]) -> Process {
    start_with(&[], ranks, role, env)
}

/// Starts ranks as [`start`] does, with options of `tbccl run`.
fn start_with(options: &[&str], ranks: u32, role: &str, env: &[(&str, &str)]) -> Process {
    let mut command = tbccl();
    command
        .arg("run")
        .args(options)
        .args(["-n", &ranks.to_string(), "--"])
        .args(host_wrapper(env))
        .args(rank_arguments());
    command.env("ROLE", role).envs(env.iter().copied());
    Process::start(command)
}

#[test]
fn everything_arrives_on_every_transport() {
    for transport in TRANSPORTS {
        let done = start(3, "everything", &[("TBCCL_TRANSPORT", transport)]).finish();
        assert!(
            done.code() == 0 && done.all("done").len() == 3,
            "{transport}: {} {:?}\n{}",
            done.code(),
            done.messages,
            done.stderr
        );
    }
}

#[test]
fn everything_arrives_encrypted_over_several_connections() {
    let env = [("TBCCL_TRANSPORT", "tcp"), ("TBCCL_SECURITY", "encrypt"), ("TBCCL_TCP_SOCKETS", "2")];
    let done = start(2, "everything", &env).finish();
    assert!(
        done.code() == 0 && done.all("done").len() == 2,
        "{} {:?}\n{}",
        done.code(),
        done.messages,
        done.stderr
    );
}

#[test]
fn who_receives_from_anyone_does_without_those_that_have_left() {
    for transport in TRANSPORTS {
        let done = start(3, "leavers", &[("TBCCL_TRANSPORT", transport)]).finish();
        let about = || format!("{transport}: {} {:?}\n{}", done.code(), done.messages, done.stderr);
        assert!(done.code() == 0 && done.all("done").len() == 3, "{}", about());
    }
}

#[test]
fn what_a_rank_has_sent_before_it_closed_its_mail_arrives_though_it_hears_nothing_any_more() {
    let done = start(2, "last_words", &[("TBCCL_TRANSPORT", "tcp")]).finish();
    let about = || format!("{} {:?}\n{}", done.code(), done.messages, done.stderr);
    assert!(done.code() == 0 && done.all("done").len() == 2, "{}", about());
}

#[test]
fn that_a_peer_has_closed_a_connection_is_no_failure_while_the_launcher_is_late_to_tell_why() {
    let env = [("TBCCL_TRANSPORT", "tcp"), ("LATE", "1500")];
    let done = start(2, "last_words", &env).finish();
    let about = || format!("{} {:?}\n{}", done.code(), done.messages, done.stderr);
    assert!(done.code() == 0 && done.all("done").len() == 2, "{}", about());
}

#[test]
fn who_waits_for_a_neighbour_to_hear_its_last_words_has_not_failed_for_others() {
    let env = [("TBCCL_TRANSPORT", "tcp"), ("TBCCL_TCP_BUFFER_BYTES", "256K")];
    let done = start(3, "slow_neighbour", &env).finish();
    let about = || format!("{} {:?}\n{}", done.code(), done.messages, done.stderr);
    assert!(done.code() == 0 && done.all("done").len() == 3, "{}", about());
}

#[test]
fn a_rank_that_is_killed_is_named_to_all_who_wait() {
    for transport in TRANSPORTS {
        let done = start(4, "killed", &[("TBCCL_TRANSPORT", transport)]).finish();
        let errors = done.all("error");
        let about = || format!("{transport}: {:?}\n{}", done.messages, done.stderr);
        assert!(done.code() != 0, "{}", about());
        assert_eq!(errors.len(), 3, "{}", about());
        for error in errors {
            let (took, text) = error.rest.split_once(' ').expect("two parts");
            assert!(took.parse::<u32>().is_ok_and(|took| took < 3000), "{}", about());
            assert!(text.contains("rank 1 (process") && text.contains("message with"), "{}", about());
        }
    }
}

/// Messages that are complete for their sender wait for a reader that will never come.
#[test]
fn who_closes_does_not_wait_for_a_rank_that_has_died() {
    for transport in ["shm", "tcp"] {
        let env = [("TBCCL_TRANSPORT", transport), ("TBCCL_TCP_BUFFER_BYTES", "256K")];
        let done = start_with(&["--keep-going"], 2, "close_after_kill", &env).finish();
        let about = || format!("{transport}: {:?}\n{}", done.messages, done.stderr);
        let took = done.all("closed").first().and_then(|said| said.rest.parse::<u32>().ok());
        assert!(took.is_some_and(|took| took < 5000), "{}", about());
    }
}
