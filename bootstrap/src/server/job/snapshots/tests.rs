//! Tests of snapshots: complete ones, silent ranks of this host and of others, claims, and departures.

use super::*;
use crate::wire::{FromRank, Hello, decode, split_frame};

/// Returns the hello of a rank with process id 1000 + rank.
fn hello(rank: u32, size: u32, host: &str) -> Hello {
    let member = Member {
        rank,
        pid: 1000 + rank,
        host: host.to_owned(),
        probe_address: 0,
        probe_value: 0,
        reconnect_addresses: String::new(),
        hosts_rendezvous: false,
    };
    Hello { timeout_ms: 60_000, peer_timeout_ms: 1400, ..Hello::new(size, member) }
}

/// Returns a job of ranks on these hosts that have started, and the time.
fn started(hosts: &[&str]) -> (Job, Instant) {
    let (mut job, now) = (Job::new(hosts.len() as u32), Instant::now());
    for (rank, host) in (0..).zip(hosts) {
        job.admit(hello(rank, hosts.len() as u32, host), None, now).expect("a rank of the job");
    }
    for rank in 0..hosts.len() as u32 {
        job.handle(rank, FromRank::Probed { obstacle: None }, Vec::new(), now).expect("its turn");
    }
    job.take_outgoing();
    (job, now)
}

/// Returns the queued messages to ranks, and the ranks to look at.
fn sent(job: &mut Job) -> (Vec<(u32, FromServer)>, Vec<u32>) {
    let (mut messages, mut looks) = (Vec::new(), Vec::new());
    for outgoing in job.take_outgoing() {
        match outgoing {
            Outgoing::Payload(rank, super::super::Payload::Bytes(bytes)) => {
                let (text, _) = split_frame(&bytes, 1 << 20).expect("short").expect("whole");
                messages.push((rank, decode(text).expect("ours")));
            }
            Outgoing::LookAt(rank) => looks.push(rank),
            _ => {}
        }
    }
    (messages, looks)
}

/// Returns the snapshot that was sent to a rank, without other messages.
fn snapshot_for(job: &mut Job, rank: u32) -> Option<Vec<Presence>> {
    let (messages, _) = sent(job);
    messages.into_iter().find_map(|(to, message)| match message {
        FromServer::Snapshot { snapshot: Some(snapshot), .. } if to == rank => Some(snapshot.ranks),
        _ => None,
    })
}

fn answer(job: &mut Job, rank: u32, text: &str) {
    let number = job.snapshots.count;
    job.record_status(rank, number, text.to_owned());
}

fn answered(text: &str) -> Presence {
    Presence::Answered(text.to_owned())
}

#[test]
fn all_ranks_are_asked_and_all_who_have_asked_get_the_answers() {
    let (mut job, now) = started(&["a", "a", "b"]);
    job.request_snapshot(Requester::Rank(1), false, now);
    job.request_snapshot(Requester::Rank(2), false, now);
    let (messages, _) = sent(&mut job);
    assert_eq!(messages.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [0, 1, 2], "{messages:?}");
    assert!(messages.iter().all(|(_, message)| matches!(message, FromServer::RequestStatus { number: 1 })));
    job.record_status(0, 77, "of another snapshot".into());
    for rank in 0..3 {
        answer(&mut job, rank, &format!("status {rank}"));
        answer(&mut job, rank, "twice");
    }
    let (messages, _) = sent(&mut job);
    assert_eq!(messages.len(), 2, "{messages:?}");
    for (_, message) in messages {
        let FromServer::Snapshot { snapshot: Some(snapshot), claimed_by: None } = message else {
            panic!("{message:?}")
        };
        assert_eq!(snapshot.ranks, ["status 0", "status 1", "status 2"].map(answered));
        assert_eq!(snapshot.members.ranks[2], (2, 1002, "b".to_owned()));
        assert_ne!(snapshot.members.id, 0);
    }
    assert_eq!(job.next_deadline(), None);
}

#[test]
fn a_stopped_process_of_this_host_is_not_awaited() {
    let (mut job, now) = started(&["a", "a", "a"]);
    job.request_snapshot(Requester::Rank(0), false, now);
    answer(&mut job, 0, "here");
    answer(&mut job, 2, "here, too");
    job.tick(now + FIRST_LOOK / 2);
    assert_eq!(sent(&mut job).1, Vec::<u32>::new(), "it is early");
    job.tick(now + FIRST_LOOK);
    assert_eq!(sent(&mut job).1, [1]);
    job.report_process_state(1, ProcessState::Stopped);
    let expected = [answered("here"), Presence::Silent(ProcessState::Stopped), answered("here, too")];
    assert_eq!(snapshot_for(&mut job, 0).as_deref(), Some(&expected[..]));
}

#[test]
fn a_busy_process_has_its_time_and_a_rank_of_its_host_looks_at_it_then() {
    let (mut job, now) = started(&["a", "b", "b", "c"]);
    job.request_snapshot(Requester::Rank(0), false, now);
    sent(&mut job);
    answer(&mut job, 0, "0");
    answer(&mut job, 2, "2");
    job.tick(now + FIRST_LOOK);
    // Neither process is on the host of the rendezvous.
    for rank in sent(&mut job).1 {
        job.report_process_state(rank, ProcessState::Unknown);
    }
    job.tick(now + ANSWER_TIMEOUT);
    let (messages, _) = sent(&mut job);
    let [(2, FromServer::RequestProcessStates { number: 1, pids })] = &messages[..] else {
        panic!("{messages:?}")
    };
    assert_eq!(pids, &[1001]);
    job.record_process_states(2, 1, &[ProcessState::Alive]);
    let ranks = snapshot_for(&mut job, 0).expect("complete");
    let silent = |state| Presence::Silent(state);
    let expected = [answered("0"), silent(ProcessState::Alive), answered("2"), silent(ProcessState::Unknown)];
    assert_eq!(ranks, expected);
}

#[test]
fn a_rank_that_was_asked_to_look_and_does_not_is_not_awaited_for_long() {
    let (mut job, now) = started(&["a", "b", "b"]);
    job.request_snapshot(Requester::Rank(0), false, now);
    (0..2).for_each(|rank| answer(&mut job, rank, "here"));
    for after in [FIRST_LOOK, ANSWER_TIMEOUT, ANSWER_TIMEOUT + LOOK_TIMEOUT] {
        assert_eq!(snapshot_for(&mut job, 0), None);
        assert_eq!(job.next_deadline(), Some(now + after));
        job.tick(now + after);
    }
    assert_eq!(snapshot_for(&mut job, 0).map(|ranks| ranks.len()), Some(3));
    assert_eq!(job.next_deadline(), None);
}

#[test]
fn the_first_claim_holds_for_some_seconds() {
    let (mut job, now) = started(&["a", "a"]);
    job.request_snapshot(Requester::Rank(1), true, now);
    sent(&mut job);
    job.request_snapshot(Requester::Rank(0), true, now + CLAIM_TIME / 2);
    let (messages, _) = sent(&mut job);
    assert!(matches!(messages[..], [(0, FromServer::Snapshot { claimed_by: Some(1), snapshot: None })]));
    (0..2).for_each(|rank| answer(&mut job, rank, ""));
    assert!(snapshot_for(&mut job, 1).is_some());
    job.request_snapshot(Requester::Rank(0), true, now + CLAIM_TIME);
    (0..2).for_each(|rank| answer(&mut job, rank, ""));
    assert!(snapshot_for(&mut job, 0).is_some(), "the claim is over");
}

#[test]
fn a_rank_that_leaves_or_dies_meanwhile_is_not_awaited() {
    let (mut job, now) = started(&["a", "a", "a", "a"]);
    job.request_snapshot(Requester::Rank(0), false, now);
    job.request_snapshot(Requester::Rank(2), false, now);
    (0..2).for_each(|rank| answer(&mut job, rank, "here"));
    job.handle(2, FromRank::Goodbye { words: Vec::new() }, Vec::new(), now).expect("its turn");
    job.report_exit(3, 1003, "was killed by SIGKILL");
    let ranks = snapshot_for(&mut job, 0).expect("complete");
    assert_eq!(ranks[2..], [Presence::Left, Presence::Died("was killed by SIGKILL".into())]);
}

#[test]
fn a_job_that_has_not_started_is_described_at_once() {
    let (mut job, now) = (Job::new(2), Instant::now());
    job.admit(hello(1, 2, ""), None, now).expect("a rank of the job");
    job.take_outgoing();
    job.request_snapshot(Requester::Rank(1), false, now);
    assert_eq!(snapshot_for(&mut job, 1), Some(vec![Presence::NotJoined, Presence::Starting]));
    assert_eq!(job.members().id, 0);
}

#[test]
fn statuses_that_are_too_long_are_left_out() {
    let (mut job, now) = started(&["a"]);
    job.request_snapshot(Requester::Rank(0), false, now);
    answer(&mut job, 0, &"x".repeat(MAX_STATUS_BYTES + 1));
    assert_eq!(snapshot_for(&mut job, 0), Some(vec![answered("")]));
}
