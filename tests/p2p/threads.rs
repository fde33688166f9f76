//! P2p between threads of one process.

use crate::{random, scenarios};
use proptest::prelude::*;
use std::{
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};
use tbccl::{Communicator, Config, Error, P2p, Rank};
use tbccl_cli::reference::parcel;

pub(crate) fn config() -> Config {
    Config { slab_bytes: Some(256 << 20), ..Config::default() }
}

/// Runs `body` as each rank of a job of threads.
pub(crate) fn job(ranks: u32, config: &Config, body: impl Fn(&mut Communicator, &P2p) + Sync) {
    let comms = Communicator::local(ranks, config).expect("memory for a test");
    thread::scope(|scope| {
        for mut comm in comms {
            let body = &body;
            scope.spawn(move || {
                let p2p = scenarios::p2p_of(&mut comm, config);
                body(&mut comm, &p2p);
            });
        }
    });
}

#[test]
fn every_length_arrives_whoever_comes_first() {
    for ranks in [1, 2, 3, 5] {
        job(ranks, &config(), |_, p2p| scenarios::lengths(p2p));
    }
}

#[test]
fn the_memory_of_a_buffered_send_is_free_when_it_returns() {
    for ranks in [1, 2, 3] {
        job(ranks, &config(), scenarios::buffered);
    }
}

#[test]
fn a_ring_of_messages_goes_round() {
    for ranks in [1, 2, 4] {
        job(ranks, &config(), |_, p2p| scenarios::ring(p2p));
    }
}

#[test]
fn messages_of_anyone_come_in_the_order_of_each() {
    job(4, &config(), |_, p2p| scenarios::from_anyone(p2p));
}

#[test]
fn messages_travel_while_their_ranks_are_in_a_collective() {
    job(3, &config(), scenarios::beside_a_collective);
}

#[test]
fn a_message_that_is_too_long_is_an_error_of_its_receive_alone() {
    job(2, &config(), |_, p2p| scenarios::too_long(p2p));
}

#[test]
fn registered_memory_is_read_in_place() {
    job(2, &config(), |comm, p2p| scenarios::in_place(p2p, comm.transport(), 64 << 20));
}

#[test]
fn a_rank_without_peers_writes_to_itself() {
    job(1, &config(), |_, p2p| {
        // More bytes than the heap keeps, received in another order.
        let len = 10_000;
        let sent: Vec<_> = (0..200)
            .map(|i| parcel::send(p2p, 0, 0, i, scenarios::bytes_of(0, i as u32, len)).expect("taken"))
            .collect();
        assert!(sent[0].request.test().is_some(), "within the budget");
        assert!(sent[199].request.test().is_none(), "beyond it");
        for tag in (0..200).rev() {
            let (delivery, bytes) =
                parcel::recv(p2p, None, 0, Some(tag), len).expect("taken").open().expect("received");
            assert_eq!(delivery.tag, tag);
            assert!(bytes == scenarios::bytes_of(0, tag as u32, len));
        }
        sent.into_iter().for_each(|parcel| drop(parcel.open().expect("sent")));
    });
}

#[test]
fn threads_of_one_rank_wait_for_letters_of_their_own() {
    const THREADS: i32 = 4;
    job(2, &config(), |_, p2p| {
        let peer = 1 - p2p.rank().0;
        thread::scope(|scope| {
            for tag in 0..THREADS {
                scope.spawn(move || {
                    for round in 0..100 {
                        let len = if round % 10 == 0 { 50_000 } else { 8 };
                        let received = parcel::recv(p2p, Some(peer), 0, Some(tag), len).expect("taken");
                        let bytes = scenarios::bytes_of(p2p.rank().0, tag as u32, len);
                        let sent = parcel::send(p2p, peer, 0, tag, bytes).expect("taken");
                        let (_, bytes) = received.open().expect("received");
                        assert!(bytes == scenarios::bytes_of(peer, tag as u32, len));
                        sent.open().expect("sent");
                    }
                });
            }
        });
    });
}

#[test]
fn a_sender_whose_receiver_takes_nothing_is_not_held_up_and_takes_no_more_memory_there() {
    job(2, &config(), |comm, p2p| {
        const COUNT: i32 = 3000;
        let len = 1000;
        if p2p.rank() == Rank(0) {
            let sent: Vec<_> = (0..COUNT)
                .map(|tag| parcel::send(p2p, 1, 0, tag, scenarios::bytes_of(0, 1, len)).expect("taken"))
                .collect();
            comm.barrier().expect("all are here");
            sent.into_iter().for_each(|parcel| drop(parcel.open().expect("sent")));
        } else {
            comm.barrier().expect("all are here");
            // The last tag is received first, behind all others.
            for tag in (0..COUNT).rev() {
                let (_, bytes) =
                    parcel::recv(p2p, Some(0), 0, Some(tag), len).expect("taken").open().expect("received");
                assert!(bytes == scenarios::bytes_of(0, 1, len));
            }
        }
        comm.barrier().expect("all are here");
    });
}

#[test]
fn arguments_that_make_no_sense_are_refused_and_nothing_is_lost() {
    job(2, &config(), |_, p2p| {
        let error = parcel::send(p2p, 2, 0, 0, vec![1]).expect_err("there is none").to_string();
        assert!(error.contains("rank 2 is not in 0..2"), "{error}");
        let error = parcel::recv(p2p, Some(7), 0, None, 1).expect_err("there is none").to_string();
        assert!(error.contains("rank 7 is not in 0..2"), "{error}");
        scenarios::ring(p2p);
    });
}

#[test]
fn a_wait_that_is_over_can_be_begun_again() {
    let barrier = Barrier::new(2);
    job(2, &config(), |_, p2p| {
        if p2p.rank() == Rank(0) {
            barrier.wait();
            parcel::send(p2p, 1, 0, 0, vec![1, 2, 3]).expect("taken").open().expect("sent");
            return;
        }
        let parcel = parcel::recv(p2p, None, 0, None, 3).expect("taken");
        let began = Instant::now();
        assert!(parcel.request.wait(Some(Duration::from_millis(30))).is_none());
        assert!(began.elapsed() >= Duration::from_millis(30));
        assert!(parcel.request.wait(Some(Duration::ZERO)).is_none());
        barrier.wait();
        assert_eq!(parcel.open().expect("received").1, [1, 2, 3]);
    });
}

#[test]
fn letters_outlive_their_mail_and_say_that_it_is_closed() {
    let mut comm = Communicator::local(1, &config()).expect("memory for a test").remove(0);
    let p2p = scenarios::p2p_of(&mut comm, &config());
    let parcel = parcel::recv(&p2p, None, 0, None, 8).expect("taken");
    drop(p2p);
    let error = parcel.error();
    assert!(matches!(&error, Error::InvalidArgument(what) if what.contains("closed")), "{error}");
}

#[test]
fn a_message_that_an_abort_has_ended_gives_the_same_error_after_the_close() {
    let mut comm = Communicator::local(1, &config()).expect("memory for a test").remove(0);
    let p2p = scenarios::p2p_of(&mut comm, &config());
    let waited = parcel::recv(&p2p, None, 0, None, 8).expect("taken");
    let untested = parcel::recv(&p2p, None, 0, None, 8).expect("taken");
    p2p.abort();
    let result = waited.request.wait(Some(parcel::TIMEOUT));
    assert!(matches!(result, Some(Err(Error::Aborted { .. }))), "{result:?}");
    drop(p2p);
    for parcel in [waited, untested] {
        let error = parcel.error();
        assert!(matches!(error, Error::Aborted { .. }), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_traffic_keeps_to_the_rule(seed in any::<u64>()) {
        job(3, &config(), |_, p2p| random::traffic(p2p, seed, 0, 150));
    }
}

#[test]
fn ten_thousand_messages_arrive() {
    job(3, &config(), |_, p2p| {
        for round in 0..20u32 {
            random::traffic(p2p, round.into(), round, 500);
        }
    });
}
