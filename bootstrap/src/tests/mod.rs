//! Tests of ranks that exchange bytes and boards over a rendezvous, as threads, over Unix sockets and over
//! TCP.

mod agreement;
mod audited;
mod clocks;
mod deaths;
mod hostile;
mod intruders;
mod size;
mod snapshots;
mod start;
mod strangers;

use super::{
    ConnectSpec, Connection, Hello, Joined, Member, Notice, Secret, Server, ServerSpec, address::Address,
    wire::MAX_EXCHANGE_BYTES,
};
use crate::error::{Error, Result};
use std::{
    thread,
    time::{Duration, Instant},
};

const SECOND: Duration = Duration::from_secs(1);

/// Transport between ranks and rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Unix,
    Tcp,
}

const WAYS: [Way; 2] = [Way::Unix, Way::Tcp];

/// Starts a rendezvous on this host. Returns it with the secret of its job.
fn open(ranks: u32) -> (Server, Secret) {
    let secret = Secret::generate().expect("random numbers");
    let listen = vec![([127, 0, 0, 1], 0).into()];
    (Server::start(&ServerSpec::network(ranks, listen, secret.clone())).expect("a socket"), secret)
}

fn rendezvous(server: &Server, secret: &Secret, way: Way) -> ConnectSpec {
    let text = match way {
        Way::Unix => server.address().to_owned(),
        Way::Tcp => format!("tcp://{}", server.addresses()[0]),
    };
    let addresses = Address::parse_list(&text).expect("addresses");
    ConnectSpec {
        addresses,
        own: None,
        secret: Some(secret.clone()),
        timeout: Duration::ZERO,
        rendezvous_host: None,
    }
}

pub(crate) fn hello(rank: u32, size: u32, timeout_ms: u64) -> Hello {
    let (host, reconnect_addresses) = (String::new(), String::new());
    let member = Member {
        rank,
        pid: 0,
        host,
        probe_address: 0,
        probe_value: 0,
        reconnect_addresses,
        hosts_rendezvous: false,
    };
    Hello { timeout_ms, peer_timeout_ms: 1400, ..Hello::new(size, member) }
}

pub(crate) fn join(rendezvous: &ConnectSpec, hello: &Hello) -> Result<Connection> {
    let Joined { mut connection, arenas, .. } = Connection::join(rendezvous, hello, None)?;
    assert!(arenas.is_empty());
    connection.start(None)?;
    Ok(connection)
}

/// Runs `role` on three ranks that have started and returns the results.
fn run_three<T: Send>(way: Way, timeout_ms: u64, role: impl Fn(u32, Connection) -> T + Sync) -> Vec<T> {
    let (server, secret) = open(3);
    let rendezvous = rendezvous(&server, &secret, way);
    // A role that ends the job at once must not meet a rank that is still joining.
    let joined = std::sync::Barrier::new(3);
    thread::scope(|scope| {
        let rank = |rank| {
            let (rendezvous, role, joined) = (&rendezvous, &role, &joined);
            scope.spawn(move || {
                let connection = join(rendezvous, &hello(rank, 3, timeout_ms)).expect("all join");
                joined.wait();
                role(rank, connection)
            })
        };
        let threads: Vec<_> = (0..3).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn error_text(result: &Result<Vec<Vec<u8>>>) -> String {
    match result {
        Err(Error::Rendezvous(why)) => why.clone(),
        other => panic!("{other:?}"),
    }
}

/// Returns the next notice other than a death, which may arrive at any time when other ranks end.
fn notice(connection: &mut Connection, within: Duration) -> Option<Notice> {
    let until = Instant::now() + within;
    while Instant::now() < until {
        match connection.notice(Duration::from_millis(10)) {
            None | Some(Notice::Died { .. }) => {}
            Some(other) => return Some(other),
        }
    }
    None
}

#[test]
fn everyone_gets_what_everyone_gave_any_number_of_times() {
    for way in WAYS {
        let contribution =
            |rank: u32, round: usize| vec![rank as u8 + 1; rank as usize * 100_000 * (round % 2) + round];
        let got = run_three(way, 10_000, |rank, mut connection| {
            let rounds =
                (0..20).map(|round| connection.exchange(&contribution(rank, round)).expect("all give"));
            let rounds = rounds.collect::<Vec<_>>();
            connection.goodbye(Vec::new());
            rounds
        });
        for rounds in got {
            for (round, parts) in rounds.iter().enumerate() {
                assert!(*parts == [0, 1, 2].map(|rank| contribution(rank, round)), "round {round}");
            }
        }
    }
}

#[test]
fn who_does_not_give_in_time_is_named() {
    for way in WAYS {
        let got = run_three(way, 500, |rank, mut connection| {
            if rank == 1 {
                thread::sleep(SECOND);
                return None;
            }
            Some(error_text(&connection.exchange(b"here")))
        });
        for why in got.into_iter().flatten() {
            assert!(why.contains("not sent their addresses in time: 1;"), "{why}");
        }
    }
}

#[test]
fn who_ends_or_gives_up_is_named_at_once() {
    for way in WAYS {
        for (how, expected) in
            [("end", "rank 2 ended"), ("give up", "rank 2: no cable"), ("leave", "rank 2 ended")]
        {
            let started = Instant::now();
            let got = run_three(way, 20_000, |rank, mut connection| {
                match (rank, how) {
                    (2, "give up") => connection.abort_start("no cable"),
                    (2, "leave") => connection.goodbye(Vec::new()),
                    (2, _) => {}
                    _ => return Some(error_text(&connection.exchange(b"here"))),
                }
                None
            });
            for why in got.into_iter().flatten() {
                assert!(why.contains(expected), "{how}: {why}");
            }
            assert!(started.elapsed() < 5 * SECOND, "{how}: {:?}", started.elapsed());
        }
    }
}

#[test]
fn too_much_to_exchange_is_refused_here() {
    for way in WAYS {
        let got = run_three(way, 10_000, |_, mut connection| {
            error_text(&connection.exchange(&vec![0; MAX_EXCHANGE_BYTES as usize + 1]))
        });
        assert!(got.iter().all(|why| why.contains("the limit of 1048576")), "{got:?}");
    }
}

#[test]
fn news_comes_once_to_those_who_asked_and_to_no_others() {
    for way in WAYS {
        run_three(way, 10_000, |rank, mut connection| {
            match rank {
                0 => {
                    connection.sync_board(vec![(5, 50), (6, 60)]);
                    let Some(Notice::BoardUpdate(boards)) = notice(&mut connection, SECOND) else {
                        panic!("rank 1 told")
                    };
                    assert_eq!(boards, [(1, vec![(5, 51)])]);
                    assert_eq!(notice(&mut connection, SECOND / 5), None, "it has not asked again");
                }
                1 => {
                    thread::sleep(SECOND / 10);
                    connection.sync_board(vec![(5, 51)]);
                    let Some(Notice::BoardUpdate(boards)) = notice(&mut connection, SECOND) else {
                        panic!("rank 0 told")
                    };
                    assert_eq!(boards, [(0, vec![(5, 50), (6, 60)])]);
                    connection.sync_board(vec![]);
                    assert_eq!(notice(&mut connection, SECOND / 5), None, "there is nothing newer");
                }
                _ => assert_eq!(notice(&mut connection, SECOND / 2), None, "it has not asked"),
            }
            connection.exchange(&[]).expect("all are there");
            // A goodbye carries the last changed words of the rank.
            if rank == 0 {
                return connection.goodbye(vec![(7, 70)]);
            }
            if rank == 1 {
                let Some(Notice::BoardUpdate(boards)) = notice(&mut connection, SECOND) else {
                    panic!("rank 0 left")
                };
                assert_eq!(boards, [(0, vec![(7, 70)])]);
            }
            connection.goodbye(vec![]);
        });
    }
}

#[test]
fn the_first_failure_holds_for_all() {
    for way in WAYS {
        let got = run_three(way, 10_000, |rank, mut connection| {
            if rank < 2 {
                connection.report_failure(vec![(8, rank.into())]);
            }
            let first = notice(&mut connection, SECOND);
            assert_eq!(notice(&mut connection, SECOND / 5), None, "there is one failure");
            connection.exchange(&[]).expect("all are there");
            first
        });
        assert!(matches!(&got[0], Some(Notice::Failed(words)) if words.len() == 1), "{got:?}");
        assert!(got.iter().all(|verdict| *verdict == got[0]), "{got:?}");
    }
}

#[test]
fn a_rank_that_is_slow_learns_why_the_job_failed_after_the_rendezvous_has_ended() {
    for way in WAYS {
        let (server, secret) = open(2);
        let rendezvous = rendezvous(&server, &secret, way);
        let [mut failing, mut slow] = thread::scope(|scope| {
            let join = |rank| {
                let rendezvous = &rendezvous;
                scope.spawn(move || join(rendezvous, &hello(rank, 2, 10_000)).expect("both join"))
            };
            [0, 1].map(join).map(|rank| rank.join().expect("no panic"))
        });
        failing.abort_start("no memory");
        drop(server);
        let why = error_text(&slow.exchange(b"an address"));
        assert!(why.contains("rank 0: no memory"), "{way:?}: {why}");
    }
}
