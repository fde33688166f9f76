//! Failures among threads of one process, at chosen moments.

use std::{thread, time::Duration};
use tbccl::{Communicator, Config, Error, Rank, ReduceOp};

fn pair() -> [Communicator; 2] {
    let config =
        Config { slab_bytes: Some(64 << 20), timeout: Duration::from_millis(400), ..Config::default() };
    Communicator::local(2, &config).expect("memory").try_into().expect("two")
}

#[test]
fn a_message_is_received_whose_sender_leaves_at_once() {
    for round in 0..60 {
        let [mut sender, mut receiver] = pair();
        thread::scope(|scope| {
            scope.spawn(move || {
                // The receiver sleeps between two polls.
                thread::sleep(Duration::from_micros(12_000 + round * 170));
                sender.send(&[7u32; 100], Rank(1)).expect("room in the ring");
            });
            let mut got = [0u32; 100];
            receiver.recv(&mut got, Rank(0)).expect("it was sent");
            assert_eq!(got, [7; 100]);
        });
    }
}

#[test]
fn a_rank_that_comes_after_another_has_failed_fails_and_reads_nothing_of_it() {
    let [mut early, mut late] = pair();
    let mut data = early.alloc::<f32>(100_000).expect("memory");
    data.fill(1.0);
    let error = early.all_reduce_in_place(&mut data, ReduceOp::Sum).expect_err("alone");
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    // The caller owns its memory again, and its posted message can still be read.
    data.fill(f32::NAN);
    let mut data = late.alloc::<f32>(100_000).expect("memory");
    let error = late.all_reduce_in_place(&mut data, ReduceOp::Sum).expect_err("the job has failed");
    assert!(matches!(error, Error::Remote { rank: Rank(0), .. }), "{error}");
}
