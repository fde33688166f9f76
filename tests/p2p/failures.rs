//! Failures of p2p between threads: every rank soon gets an error that names the cause.

use crate::threads::{config, job};
use std::{
    sync::Barrier,
    time::{Duration, Instant},
};
use tbccl::{Config, Error, P2p};
use tbccl_cli::reference::parcel::{self, Parcel, TIMEOUT};

/// Waits for a request that fails; asserts that it fails soon.
fn failure_of(parcel: Parcel, began: Instant) -> Error {
    let error = parcel.error();
    assert!(began.elapsed() < Duration::from_secs(10), "{error} after {:?}", began.elapsed());
    error
}

/// Asserts that after a failure every call returns the same error.
fn stays_failed(p2p: &P2p, error: &Error) {
    let text = error.to_string();
    assert_eq!(p2p.failed().expect("it has").to_string(), text);
    assert_eq!(parcel::send(p2p, 0, 0, 0, vec![1]).expect_err("it has").to_string(), text);
    assert_eq!(parcel::recv(p2p, None, 0, None, 1).expect_err("it has").to_string(), text);
}

#[test]
fn an_abort_ends_every_letter_on_every_rank() {
    let barrier = Barrier::new(3);
    job(3, &config(), |_, p2p| {
        let me = p2p.rank().0;
        let began = Instant::now();
        let next = (me + 1) % 3;
        let never = parcel::recv(p2p, Some(next), 0, Some(1), 8).expect("taken");
        let waiting = parcel::send(p2p, next, 0, 2, vec![0; 100_000]).expect("taken");
        barrier.wait();
        if me == 1 {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(20));
                    p2p.abort();
                });
                let error = failure_of(never, began);
                assert!(matches!(error, Error::Aborted { .. }), "{error}");
            });
            assert!(matches!(waiting.error(), Error::Aborted { .. }));
        } else {
            let error = failure_of(never, began);
            assert!(error.to_string().contains("rank 1"), "{error}");
            assert_eq!(waiting.error().to_string(), error.to_string());
            stays_failed(p2p, &error);
        }
    });
}

#[test]
fn a_wait_that_is_too_long_says_for_what() {
    let config = Config { timeout: Duration::from_millis(300), ..config() };
    let barrier = Barrier::new(2);
    job(2, &config, |_, p2p| {
        barrier.wait();
        if p2p.rank().0 == 0 {
            let began = Instant::now();
            let parcel = parcel::recv(p2p, Some(1), 3, Some(-7), 77).expect("taken");
            // Repeated short waits count as one long wait for the time limit.
            let error = loop {
                match parcel.request.wait(Some(Duration::from_millis(50))) {
                    None => assert!(began.elapsed() < TIMEOUT, "it never ends"),
                    Some(result) => break result.expect_err("nobody has sent it"),
                }
            };
            assert!(began.elapsed() >= Duration::from_millis(300));
            let said = error.to_string();
            assert!(matches!(error, Error::Timeout { .. }), "{said}");
            for word in ["recv of 77 u8 from rank 1", "tag -7", "context 3", "TBCCL_TIMEOUT"] {
                assert!(said.contains(word), "{word}: {said}");
            }
            stays_failed(p2p, &error);
        }
        barrier.wait();
        if p2p.rank().0 == 1 {
            let error = parcel::recv(p2p, None, 0, None, 1).expect_err("rank 0 has failed").to_string();
            assert!(error.contains("rank 0 failed") && error.contains("tag -7"), "{error}");
        }
        barrier.wait();
    });
}

#[test]
fn progress_of_a_letter_begins_its_time_anew() {
    let config = Config { timeout: Duration::from_millis(400), ..config() };
    job(2, &config, |_, p2p| {
        // Each message arrives within the time limit, but not all of them together.
        for tag in 0..10 {
            if p2p.rank().0 == 0 {
                std::thread::sleep(Duration::from_millis(60));
                parcel::send_slice(p2p, 1, tag, &[1]).expect("sent");
            } else {
                parcel::recv_slice(p2p, 0, tag, &mut [0]).expect("received");
            }
        }
    });
}

#[test]
fn who_waits_for_a_rank_that_has_closed_its_mail_is_told() {
    let barrier = Barrier::new(3);
    job(3, &config(), |comm, _p2p| {
        let p2p = crate::scenarios::p2p_of(comm, &config());
        let me = p2p.rank().0;
        if me > 0 {
            parcel::send(&p2p, 0, 0, me as i32, vec![me as u8]).expect("taken").open().expect("sent");
            if me == 1 {
                barrier.wait();
            }
            drop(p2p);
            if me == 2 {
                barrier.wait();
            }
            barrier.wait();
            return;
        }
        barrier.wait();
        // Messages sent before the failure are delivered.
        assert_eq!(parcel::recv(&p2p, Some(2), 0, None, 1).expect("taken").open().expect("there").1, [2]);
        assert_eq!(parcel::recv(&p2p, None, 0, Some(1), 1).expect("taken").open().expect("there").1, [1]);
        let began = Instant::now();
        let error = failure_of(parcel::recv(&p2p, Some(2), 0, None, 1).expect("taken"), began);
        assert!(matches!(&error, Error::PeerLeft { peer, .. } if peer.rank.0 == 2), "{error}");
        barrier.wait();
    });
}

#[test]
fn a_receive_from_anyone_waits_until_all_others_have_left() {
    let barrier = Barrier::new(3);
    job(3, &config(), |comm, _p2p| {
        let p2p = crate::scenarios::p2p_of(comm, &config());
        let me = p2p.rank().0;
        if me == 2 {
            drop(p2p);
            barrier.wait();
            return;
        }
        if me == 1 {
            barrier.wait();
            // Long enough for several polls.
            std::thread::sleep(Duration::from_millis(50));
            parcel::send(&p2p, 0, 0, 0, vec![9]).expect("taken").open().expect("sent");
            return;
        }
        barrier.wait();
        assert_eq!(parcel::recv(&p2p, None, 0, None, 1).expect("taken").open().expect("there").1, [9]);
        let began = Instant::now();
        let error = failure_of(parcel::recv(&p2p, None, 0, None, 1).expect("taken"), began);
        assert!(error.to_string().contains("from any rank"), "{error}");
    });
}

#[test]
fn mail_that_is_closed_with_a_message_on_its_way_fails_for_all() {
    let barrier = Barrier::new(2);
    job(2, &config(), |comm, _p2p| {
        let p2p = crate::scenarios::p2p_of(comm, &config());
        if p2p.rank().0 == 0 {
            let waiting = parcel::send(&p2p, 1, 0, 0, vec![7; 1 << 20]).expect("taken");
            drop(p2p);
            let error = waiting.error().to_string();
            assert!(error.contains("closed"), "{error}");
            barrier.wait();
            return;
        }
        barrier.wait();
        let error = parcel::recv(&p2p, Some(0), 0, None, 1 << 20).and_then(|parcel| parcel.open().map(drop));
        let error = error.expect_err("its bytes are gone").to_string();
        assert!(error.contains("rank 0") && error.contains("in flight"), "{error}");
    });
}
