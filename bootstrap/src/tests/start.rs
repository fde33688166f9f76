//! Starting in few steps: reports and contributions that travel with the hello, and connections of the
//! process that has the rendezvous.

use super::*;
use crate::{frame_stream::FrameStream, record_layer::RecordLayer, socket::Socket};
use mio::{Events, Interest, Poll, Token};
use std::os::unix::net::UnixStream;

/// Runs `role` on three ranks with their hellos and returns the results.
fn run_ranks<T: Send>(
    way: Way,
    timeout_ms: u64,
    role: impl Fn(u32, &ConnectSpec, &Hello) -> T + Sync,
) -> Vec<T> {
    let (server, secret) = open(3);
    let rendezvous = rendezvous(&server, &secret, way);
    thread::scope(|scope| {
        let rank = |rank| {
            let (rendezvous, role) = (&rendezvous, &role);
            scope.spawn(move || role(rank, rendezvous, &hello(rank, 3, timeout_ms)))
        };
        let threads: Vec<_> = (0..3).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn join_and_give(rendezvous: &ConnectSpec, hello: &Hello, data: &[u8]) -> Result<(Connection, Vec<Vec<u8>>)> {
    let (joined, parts) = Connection::join_and_exchange(rendezvous, hello, "no memory".into(), data)?;
    Ok((joined.connection, parts))
}

#[test]
fn ranks_may_start_and_give_with_their_hello_or_later() {
    for way in WAYS {
        let got = run_ranks(way, 10_000, |rank, rendezvous, hello| {
            let given = [rank as u8; 3];
            let (mut connection, first) = match rank {
                0 => join_and_give(rendezvous, hello, &given).expect("all give"),
                1 => {
                    let mut connection = join(rendezvous, hello).expect("all start");
                    let first = connection.exchange(&given).expect("all give");
                    (connection, first)
                }
                _ => {
                    thread::sleep(SECOND / 10);
                    join_and_give(rendezvous, hello, &given).expect("all give")
                }
            };
            let second = connection.exchange(b"again").expect("all give");
            connection.goodbye(Vec::new());
            (first, second)
        });
        for (first, second) in got {
            assert_eq!(first, [[0; 3], [1; 3], [2; 3]]);
            assert_eq!(second, [b"again"; 3]);
        }
    }
}

#[test]
fn ranks_that_have_given_with_their_hello_hear_who_has_not_joined_or_started() {
    for way in WAYS {
        for (joins, expected) in [(false, "not joined in time: 1;"), (true, "not started in time: 1;")] {
            let began = Instant::now();
            let got = run_ranks(way, 500, |rank, rendezvous, hello| {
                if rank == 1 {
                    let joined = joins.then(|| Connection::join(rendezvous, hello, None).expect("all join"));
                    thread::sleep(SECOND);
                    drop(joined);
                    return None;
                }
                Some(join_and_give(rendezvous, hello, b"here").expect_err("rank 1 is missing").to_string())
            });
            for why in got.into_iter().flatten() {
                assert!(why.contains(expected), "{why}");
            }
            assert!(began.elapsed() < 5 * SECOND, "{:?}", began.elapsed());
        }
    }
}

#[test]
fn ranks_that_have_given_with_their_hello_hear_of_a_death_before_the_start() {
    for way in WAYS {
        let began = Instant::now();
        let got = run_ranks(way, 10_000, |rank, rendezvous, hello| {
            if rank == 1 {
                drop(Connection::join(rendezvous, hello, None).expect("all join"));
                return None;
            }
            Some(join_and_give(rendezvous, hello, b"here").expect_err("rank 1 has died").to_string())
        });
        assert!(got.into_iter().flatten().all(|why| why.contains("rank 1")));
        assert!(began.elapsed() < 5 * SECOND, "{:?}", began.elapsed());
    }
}

#[test]
fn the_process_that_has_the_rendezvous_joins_it_without_a_handshake_and_others_with_one() {
    let (server, secret) = open(2);
    let theirs = rendezvous(&server, &secret, Way::Tcp);
    // Its addresses are of no use, and its secret is wrong: the process needs neither.
    let ours = ConnectSpec { addresses: Vec::new(), secret: None, ..theirs.clone() }.of_own(&server);
    thread::scope(|scope| {
        let other = scope.spawn(|| join_and_give(&theirs, &hello(1, 2, 10_000), b"other"));
        let (connection, parts) = join_and_give(&ours, &hello(0, 2, 10_000), b"own").expect("both join");
        assert_eq!(parts, [&b"own"[..], b"other"]);
        drop((connection, other.join().expect("no panic").expect("both join")));
    });
}

#[test]
fn the_end_of_output_is_one_event_for_the_process_that_waits_for_its_peer() {
    let (ours, _peer) = UnixStream::pair().expect("sockets");
    let mut frames = FrameStream::new(Socket::unix(ours).expect("a socket"), RecordLayer::Open);
    let (mut poll, mut events) = (Poll::new().expect("a poll"), Events::with_capacity(4));
    let both = Interest::READABLE | Interest::WRITABLE;
    poll.registry().register(frames.socket(), Token(1), both).expect("registered");
    let mut has_events = |frames: &mut FrameStream| {
        frames.finish();
        poll.poll(&mut events, Some(Duration::from_millis(20))).expect("polled");
        !events.is_empty()
    };
    assert!(has_events(&mut frames), "the socket is writable");
    assert!(!has_events(&mut frames), "the repetition changes nothing");
}

/// A rank whose hello was on its way as the rendezvous was closed for a reason saw the end of the connection
/// in place of the reason (`chaos --seed 22 --round 29 --transport shm+tcp`).
#[test]
fn ranks_that_come_as_a_job_is_ended_are_told_why() {
    const WHY: &str = "the communicator can't grow: rank 0 was late";
    let mut told = 0;
    for round in 0..40 {
        let (server, secret) = open(5);
        let rendezvous = rendezvous(&server, &secret, WAYS[round % 2]);
        let errors: Vec<String> = thread::scope(|scope| {
            let rank = |rank| {
                let rendezvous = &rendezvous;
                scope.spawn(move || {
                    join(rendezvous, &hello(rank, 5, 3000)).expect_err("one is missing").to_string()
                })
            };
            let threads: Vec<_> = (0..4).map(rank).collect();
            thread::sleep(Duration::from_micros(50 * round as u64));
            server.close_because(WHY);
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        for error in errors {
            // A rank that comes after the end finds no rendezvous.
            assert!(error.contains(WHY) || !error.contains("end of file"), "round {round}: {error}");
            told += usize::from(error.contains(WHY));
        }
    }
    assert!(told > 40, "{told} of 160 ranks were told");
}
