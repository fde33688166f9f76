//! Jobs whose ranks do not all join.

use crate::job;
use bootstrap::{PROTOCOL, Server, ServerSpec};
use std::{
    io::{Read, Write},
    os::{linux::net::SocketAddrExt, unix::net::UnixStream},
    process::Command,
    time::{Duration, Instant},
};
use support::{Finished, Process, rank_arguments};

/// Starts a rank without a launcher.
fn rank(server: &Server, rank: u32, size: u32, env: &[(&str, &str)]) -> Process {
    let args = rank_arguments();
    let mut command = Command::new(&args[0]);
    command.args(&args[1..]).env("ROLE", "join").env("TBCCL_TIMEOUT", "10");
    command.env("TBCCL_RANK", rank.to_string()).env("TBCCL_SIZE", size.to_string());
    command.env("TBCCL_BOOTSTRAP", server.address()).envs(env.iter().copied());
    Process::start(command)
}

fn server(ranks: u32) -> Server {
    Server::start(&ServerSpec::local(ranks, None)).expect("a rendezvous")
}

fn joined(done: &Finished) {
    assert_eq!(done.all("joined").len(), 1, "{:?} {}", done.messages, done.stderr);
}

fn refused(done: &Finished, why: &str) {
    let refused = done.all("refused");
    assert!(
        refused.iter().any(|said| said.rest.contains(why)),
        "not `{why}`: {:?} {}",
        done.messages,
        done.stderr
    );
}

#[test]
fn ranks_that_never_join_are_named() {
    let server = server(4);
    let waiting = [0, 2].map(|r| rank(&server, r, 4, &[("TBCCL_TIMEOUT", "0.5")]));
    for job in waiting {
        refused(&job.finish(), "these ranks have not joined in time: 1, 3; start them");
    }
    // A failed job is not resumed.
    refused(&rank(&server, 1, 4, &[]).finish(), "not joined in time: 1, 3");
}

#[test]
fn a_rank_that_joins_twice_is_refused_and_the_job_goes_on() {
    let server = server(2);
    let first = rank(&server, 0, 2, &[]);
    std::thread::sleep(Duration::from_millis(300));
    refused(&rank(&server, 0, 2, &[]).finish(), "rank 0 has already joined (process ");
    let second = rank(&server, 1, 2, &[]);
    joined(&first.finish());
    joined(&second.finish());
}

#[test]
fn a_rank_of_another_size_is_refused_with_the_reason_on_both_sides() {
    let server = server(2);
    let right = rank(&server, 0, 2, &[]);
    let wrong = rank(&server, 1, 3, &[]);
    for job in [right, wrong] {
        refused(&job.finish(), "rank 1 of 3 cannot join a job of 2 ranks");
    }
}

#[test]
fn ranks_with_different_options_are_refused_with_both_values() {
    let server = server(2);
    let jobs = [rank(&server, 0, 2, &[]), rank(&server, 1, 2, &[("TBCCL_PIECE_BYTES", "16K")])];
    for job in jobs {
        let done = job.finish();
        refused(&done, "TBCCL_PIECE_BYTES must be equal on all ranks: it is `");
        refused(&done, "`16384` on rank 1");
    }
}

#[test]
fn ranks_over_different_transports_are_refused_with_both_names() {
    let server = server(2);
    let jobs = [rank(&server, 0, 2, &[]), rank(&server, 1, 2, &[("TBCCL_TRANSPORT", "rehearsal")])];
    for job in jobs {
        let done = job.finish();
        refused(&done, "TBCCL_TRANSPORT must be equal on all ranks: it is `");
        refused(&done, "`rehearsal` on rank 1");
    }
}

fn stranger(server: &Server) -> UnixStream {
    let name = server.address().strip_prefix("unix-abstract:").expect("on Linux");
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name).expect("a name");
    let stream = UnixStream::connect_addr(&address).expect("the rendezvous listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    stream
}

fn frame(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

#[test]
fn another_version_is_refused_with_the_reason_on_both_sides() {
    let (server, newer) = (server(2), PROTOCOL + 1);
    let ours = rank(&server, 0, 2, &[]);
    std::thread::sleep(Duration::from_millis(300));
    let mut theirs = stranger(&server);
    let hello = format!(r#"{{"magic":"tbccl","protocol":{newer},"news":[1]}}"#);
    theirs.write_all(&frame(&hello)).expect("write");
    let mut answer = Vec::new();
    theirs.read_to_end(&mut answer).expect("an answer");
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let why = format!("protocol {newer}");
    assert!(answer.contains(&why) && answer.contains("same version of tbccl"), "{answer}");
    refused(&ours.finish(), &format!("a rank speaks protocol {newer}"));
}

#[test]
fn strangers_do_not_disturb_the_job() {
    let server = server(2);
    let silent: Vec<UnixStream> = (0..20).map(|_| stranger(&server)).collect();
    let first = rank(&server, 0, 2, &[]);
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 100],
        &[0, 0, 0, 0],
        &frame("{}"),
        &frame("[1, 2, 3]"),
        &frame(&format!(r#"{{"magic":"other","protocol":{PROTOCOL}}}"#)),
        &frame(&format!(r#"{{"magic":"tbccl","protocol":{PROTOCOL},"size":2}}"#)),
        &frame(&"[".repeat(100_000)),
    ] {
        let mut stream = stranger(&server);
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let started = Instant::now();
        let _ = stream.read_to_end(&mut Vec::new());
        assert!(started.elapsed() < Duration::from_secs(5), "hung up on at once");
    }
    let second = rank(&server, 1, 2, &[]);
    joined(&first.finish());
    joined(&second.finish());
    drop(silent);
}

#[test]
fn ranks_are_told_when_one_ends_before_all_have_joined() {
    let started = Instant::now();
    let job = job::start_under(
        &["/bin/sh", "-c", "[ $TBCCL_RANK = 1 ] && { sleep 0.3; exit 7; }; exec \"$0\" \"$@\""],
        3,
        "join",
        &[],
    );
    let done = job.finish();
    assert_eq!(done.code(), 7, "{}", done.stderr);
    for said in done.all("refused") {
        assert!(
            said.rest.contains("rank 1 (process ") && said.rest.contains("exited with status 7"),
            "{said:?}"
        );
    }
    assert_eq!(done.all("refused").len(), 2, "{:?}", done.messages);
    assert!(started.elapsed() < Duration::from_secs(8));
}

#[test]
fn a_rank_that_quits_without_joining_is_not_waited_for() {
    let server = server(2);
    let waiting = rank(&server, 0, 2, &[]);
    std::thread::sleep(Duration::from_millis(200));
    let start = Instant::now();
    server.report_success(1, 4711);
    refused(&waiting.finish(), "rank 1 (process 4711) ended with status 0 without joining the job");
    assert!(start.elapsed() < Duration::from_secs(5), "it waited for {:?}", start.elapsed());
}
