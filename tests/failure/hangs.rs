//! Hangs: the sentence that `tbccl why` prints while ranks wait, and the one in the error after the time
//! limit.
//!
//! Each test asserts the first sentence of both.

use crate::job::{self, TRANSPORTS};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    thread::sleep,
    time::{Duration, Instant},
};
use support::{Message, Process, tbccl};
use tbccl::{Communicator, Config, Rank, ReduceOp, Result};

/// Environment variable with the time limit of ranks, which is longer than a test asks for reports.
const LONG: (&str, &str) = ("TBCCL_TIMEOUT", "60");
const SHORT: (&str, &str) = ("TBCCL_TIMEOUT", "1.5");

/// Elements of a message that no buffer holds.
const LARGE: usize = 32 << 20;

/// Plays a role: makes the calls that hang.
pub(crate) fn hang(mut comm: Communicator, case: &str) {
    let rank = comm.rank().0;
    let config = Config::from_env().expect("valid");
    comm.barrier().expect("all are there");
    // The other ranks of a pair, in the opposite order.
    let mut groups = (case == "groups").then(|| {
        let split =
            |comm: &mut Communicator| comm.split(Some(1), 0, &config).expect("all split").expect("a color");
        let mut groups = [split(&mut comm), split(&mut comm)];
        // One report at a time: each communicator would have its own.
        if rank > 0 {
            groups.iter_mut().for_each(|group| group.set_timeout(Duration::from_secs(60)));
        }
        groups
    });
    // The rendezvous of this one is in rank 1.
    let mut hosted = (case == "hosted")
        .then(|| comm.split(Some(1), -(rank as i32), &config).expect("all split").expect("a color"));
    if let Some(hosted) = &mut hosted {
        // The rendezvous stops with rank 1. The others must have got all addresses from it before.
        hosted.barrier().expect("all have made it");
    }
    crate::roles::say(&comm, "ready", &std::process::id().to_string());
    let started = Instant::now();
    let result = match (case, rank) {
        ("late" | "stopped", 2) => {
            sleep(Duration::from_secs(100));
            Ok(())
        }
        ("late" | "stopped", _) => comm.all_reduce_in_place(&mut vec![1.0f32; 1000], ReduceOp::Sum),
        ("circle", _) => comm.send(&vec![1u8; LARGE], Rank((rank + 1) % comm.size())),
        ("different", 0) => comm.recv(&mut [0u8], Rank(1)),
        ("different", 1) => comm.recv(&mut [0u8], Rank(2)),
        ("different", _) => comm.broadcast(&mut [0u8], Rank(1)),
        ("hosted", 1) => {
            kill_process(rustix::process::getpid(), Signal::STOP).expect("this process");
            sleep(Duration::from_secs(100));
            Ok(())
        }
        ("hosted", _) => {
            hosted.as_mut().expect("made").all_reduce_in_place(&mut vec![1.0f32; 1000], ReduceOp::Sum)
        }
        ("groups", _) => in_opposite_orders(groups.as_mut().expect("made"), rank),
        (other, _) => panic!("no case {other}"),
    };
    if crate::roles::report(&comm, started, result).is_some() {
        std::process::exit(1);
    }
}

/// Rank 0 makes a call on the first communicator first, the others on the second one.
fn in_opposite_orders(groups: &mut [Communicator; 2], rank: u32) -> Result<()> {
    let first = usize::from(rank > 0);
    let reduce = |comm: &mut Communicator| comm.all_reduce_in_place(&mut vec![1.0f32; 1000], ReduceOp::Sum);
    reduce(&mut groups[first])?;
    reduce(&mut groups[1 - first])
}

/// Returns the first line that `tbccl why` prints about a job, once it is the expected one or time is up.
fn first_line(job: &Process, expected: &str) -> String {
    let pid = job.id().to_string();
    let began = Instant::now();
    loop {
        let mut command = tbccl();
        command.args(["why", "--wait", "0.5", "--job", &pid]);
        let asked = Instant::now();
        let output = command.output().expect("it runs");
        assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).expect("text");
        let line = text.lines().next().unwrap_or_default().to_owned();
        if line.starts_with(expected) || began.elapsed() > Duration::from_secs(20) {
            assert!(line.starts_with(expected), "expected: {expected}\n{text}");
            return line;
        }
        sleep(Duration::from_millis(100));
    }
}

/// Kills the ranks of a job, and waits for its end.
fn end(job: Process, pids: &[String]) {
    for pid in pids.iter().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
        let _ = kill_process(pid, Signal::KILL);
    }
    drop(job.finish());
}

fn pids_of(job: &Process, ranks: u32) -> Vec<String> {
    let mut ready: Vec<Message> = (0..ranks).map(|_| job.next_message()).collect();
    ready.sort_by_key(|message| message.rank);
    ready.into_iter().map(|message| message.rest).collect()
}

/// Asserts the beginning of the sentence for a case, as `tbccl why` prints it and as the errors hold it.
/// `prepare` gets the process ids of the ranks.
fn assert_sentence(
    case: &str,
    transports: &[&str],
    expected: impl Fn(&[String]) -> String,
    prepare: impl Fn(&[String]),
) {
    for transport in transports {
        let transport = ("TBCCL_TRANSPORT", *transport);
        let hanging = job::start(3, &format!("hang {case}"), &[LONG, transport]);
        let pids = pids_of(&hanging, 3);
        prepare(&pids);
        first_line(&hanging, &expected(&pids));
        end(hanging, &pids);
        let limited = job::start(3, &format!("hang {case}"), &[SHORT, transport]);
        let pids = pids_of(&limited, 3);
        prepare(&pids);
        let done = limited.finish();
        let sentence = expected(&pids);
        // Of ranks in a cycle over communicators, the first error ends the process that the others wait for.
        let expected_errors = if case == "groups" { 1 } else { 2 };
        let errors = done.all("error");
        let telling = errors.iter().filter(|error| error.rest.contains(&sentence)).count();
        assert!(telling >= expected_errors, "expected: {sentence}\n{:?}\n{}", done.messages, done.stderr);
        let count =
            done.stderr.lines().filter(|line| line.starts_with(&format!("tbccl: {sentence}"))).count();
        assert_eq!(count, 1, "one rank reports: {}", done.stderr);
    }
}

#[test]
fn a_rank_that_never_calls_is_the_knot() {
    let expected =
        |_: &[String]| "rank 2 never called all_reduce number 2: it has been outside tbccl for ".to_owned();
    assert_sentence("late", &TRANSPORTS, expected, |_| ());
}

#[test]
fn a_stopped_process_is_the_knot() {
    let expected = |pids: &[String]| {
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy();
        let pid = &pids[2];
        format!(
            "rank 2 (process {pid} on {host}) is stopped (state T; `kill -CONT {pid}` there continues it); "
        )
    };
    assert_sentence("stopped", &TRANSPORTS, expected, |pids| {
        let pid = Pid::from_raw(pids[2].parse().expect("a number")).expect("a process");
        kill_process(pid, Signal::STOP).expect("it runs");
    });
}

#[test]
fn sends_in_a_circle_are_the_knot() {
    // Not over the driver of tests, which takes any message.
    let expected = |_: &[String]| "rank 0, rank 1 and rank 2 wait for each other: ".to_owned();
    assert_sentence("circle", &["shm", "tcp"], expected, |_| ());
}

#[test]
fn ranks_in_different_calls_are_the_knot() {
    let expected = |_: &[String]| {
        "rank 1 and rank 2 wait for each other: rank 1 in recv number 1 from rank 2, rank 2 in broadcast \
         number 2 for rank 1"
            .to_owned()
    };
    assert_sentence("different", &["shm", "tcp"], expected, |_| ());
}

#[test]
fn calls_on_two_communicators_in_opposite_orders_are_the_knot() {
    let expected = |_: &[String]| "rank 0 and rank ".to_owned();
    assert_sentence("groups", &["shm", "tcp"], expected, |_| ());
}

/// The report waits for the rendezvous for as long as there is time. Nothing may wait for it once more.
#[test]
fn a_stopped_rank_that_has_the_rendezvous_delays_the_error_by_no_more_than_the_report() {
    for transport in ["shm", "rehearsal", "tcp"] {
        let job = job::start(2, "hang hosted", &[SHORT, ("TBCCL_TRANSPORT", transport)]);
        let pids = pids_of(&job, 2);
        let error = job.next_message();
        let mut parts = error.rest.splitn(3, ' ');
        let took: u32 = parts.nth(1).and_then(|ms| ms.parse().ok()).expect("a time");
        let text = parts.next().expect("the error");
        end(job, &pids);
        assert!((1500..3500).contains(&took), "{transport}: after {took} ms: {text}");
        assert!(text.contains("no progress within the time limit"), "{transport}: {text}");
    }
}

#[test]
fn a_report_goes_to_the_file_that_an_option_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report");
    let file = file.to_str().expect("text");
    let limited = job::start(3, "hang late", &[SHORT, ("TBCCL_HANG_REPORT", file)]);
    pids_of(&limited, 3);
    let done = limited.finish();
    assert!(!done.stderr.contains("never called"), "{}", done.stderr);
    let text = std::fs::read_to_string(file).expect("it is written");
    assert!(text.starts_with("tbccl: rank 2 never called all_reduce number 2"), "{text}");
    assert!(text.lines().count() == 5 && text.contains("\nrank 2 "), "{text}");
}
