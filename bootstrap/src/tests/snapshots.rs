//! Tests of snapshots of ranks that compute, and of processes that are no ranks.

use super::*;
use crate::{
    FoundRendezvous, Presence, SnapshotReply, provide_status,
    unix::connect_to_inquiries,
    wire::{Question, encode},
};
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    sync::Barrier,
};
use transport::host::peer_process;

fn describe() -> String {
    "a status".to_owned()
}

fn answered(count: usize) -> Vec<Presence> {
    vec![Presence::Answered("a status".to_owned()); count]
}

#[test]
fn ranks_that_compute_are_described_to_one_that_asks() {
    provide_status(describe);
    for way in WAYS {
        let done = Barrier::new(3);
        run_three(way, 10_000, |rank, mut connection| {
            if rank == 2 {
                let requester = connection.snapshot_requester();
                let began = Instant::now();
                requester.request(false);
                let Some(SnapshotReply::Snapshot(snapshot)) = requester.wait(began + SECOND * 2) else {
                    panic!("no snapshot")
                };
                assert_eq!(snapshot.ranks, answered(3), "{way:?}");
                assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
            }
            done.wait();
            connection.goodbye(Vec::new());
        });
    }
}

#[test]
fn one_of_several_claims_wins_and_notices_are_kept_meanwhile() {
    provide_status(describe);
    for way in WAYS {
        let done = Barrier::new(3);
        let replies = run_three(way, 10_000, |rank, mut connection| {
            if rank == 0 {
                connection.report_failure(vec![(8, 1)]);
            }
            let requester = connection.snapshot_requester();
            requester.request(true);
            let reply = requester.wait(Instant::now() + SECOND * 3).expect("a reply");
            assert_eq!(notice(&mut connection, SECOND * 3), Some(Notice::Failed(vec![(8, 1)])), "{way:?}");
            done.wait();
            connection.goodbye(Vec::new());
            reply
        });
        let winner = replies.iter().position(|reply| matches!(reply, SnapshotReply::Snapshot(_)));
        let winner = winner.expect("one wins") as u32;
        let others = replies.iter().filter(|reply| **reply == SnapshotReply::ClaimedBy(winner));
        assert_eq!(others.count(), 2, "{replies:?}");
    }
}

#[test]
fn a_refusal_that_the_status_thread_has_read_is_not_lost() {
    for way in WAYS {
        let joined = run_three(way, 10_000, |rank, mut connection| {
            if rank == 0 {
                connection.abort_start("no memory");
                return String::new();
            }
            // Longer than the status thread leaves a message to others.
            thread::sleep(SECOND / 5);
            error_text(&connection.exchange(b"here"))
        });
        assert!(joined[1..].iter().all(|why| why.contains("rank 0")), "{way:?}: {joined:?}");
    }
}

#[test]
fn a_process_of_this_user_finds_the_job_and_asks_without_the_secret() {
    provide_status(describe);
    let (asked, done) = (Barrier::new(3), Barrier::new(3));
    run_three(Way::Tcp, 10_000, |rank, mut connection| {
        asked.wait();
        if rank == 0 {
            let found = FoundRendezvous::all().expect("the system lists sockets");
            let size = |mut found: FoundRendezvous| {
                let members = found.members(SECOND).ok()?;
                let is_ours = members.rendezvous_pid == std::process::id() && members.size == 3;
                assert!(found.pid() == Some(members.rendezvous_pid) || !is_ours);
                // Other tests of this process have jobs of three ranks, too.
                is_ours.then(|| found.snapshot(SECOND * 2).ok()).flatten()
            };
            let snapshots: Vec<_> = found.into_iter().filter_map(size).collect();
            assert!(snapshots.iter().any(|snapshot| snapshot.ranks == answered(3)), "{snapshots:?}");
        }
        done.wait();
        connection.goodbye(Vec::new());
    });
}

/// Connects to the sockets for questions of this process, and sends a message to each. Asserts that none
/// answers.
fn assert_no_answer(message: &[u8]) {
    let ours = |stream: &UnixStream| peer_process(stream) == Some(std::process::id());
    let streams = connect_to_inquiries().expect("the system lists sockets");
    let streams: Vec<UnixStream> = streams.into_iter().filter(ours).collect();
    assert!(!streams.is_empty());
    for mut stream in streams {
        stream.set_read_timeout(Some(SECOND * 5)).expect("a socket");
        let _ = stream.write_all(message);
        let read = stream.read(&mut [0]);
        assert!(!matches!(read, Ok(1..)), "{read:?}");
    }
}

#[test]
fn another_user_is_not_answered() {
    let (_server, _) = open(2);
    if support::as_another_user(|| assert_no_answer(&encode(&Question::Members))).is_none() {
        support::missing("another user, whom only root can become");
    }
}

#[test]
fn a_process_that_is_no_rank_may_ask_and_not_join() {
    let (server, _) = open(2);
    assert_no_answer(&encode(&hello(0, 2, 5000)));
    assert_eq!(server.wait_until(|_| true, SECOND).joined, 0);
}
