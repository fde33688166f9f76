//! Aborts from another thread than the calling one.

use crate::shared::issued::{Issued, call, issue, ranks};
use std::{
    thread,
    time::{Duration, Instant},
};
use tbccl::{CallOptions, Collective, Config, Error, Operation, Rank, ReduceOp, Result, SharedCommunicator};

const SUM: Operation<'static> = Operation::new(Collective::AllReduce).with_op(ReduceOp::Sum);

/// Time limits of an abort, and of its effect on every rank.
const ABORT_LIMIT: Duration = Duration::from_millis(100);
const NOTICE_LIMIT: Duration = Duration::from_secs(2);

fn default_options() -> CallOptions {
    CallOptions::default()
}

/// Aborts a communicator; returns the duration of the call.
fn abort(comm: &SharedCommunicator) -> Duration {
    let began = Instant::now();
    comm.abort();
    began.elapsed()
}

fn reduce_until_it_fails(comm: &SharedCommunicator) -> Error {
    let mut data = vec![0.0f32; 16 << 20];
    loop {
        if let Err(error) = call(comm, SUM, &mut data, &default_options()) {
            return error;
        }
    }
}

#[test]
fn an_abort_ends_everyone_s_all_reduce_of_64_mib() {
    let mut fastest = Duration::MAX;
    for round in 0..5u64 {
        let comms = ranks(2 + round as u32 % 2, &Config::default());
        let failed: Vec<(Error, Instant)> = thread::scope(|scope| {
            let callers: Vec<_> = comms
                .iter()
                .map(|comm| scope.spawn(|| (reduce_until_it_fails(comm), Instant::now())))
                .collect();
            thread::sleep(Duration::from_millis(40 + 13 * round));
            let aborted = Instant::now();
            fastest = fastest.min(abort(&comms[1]));
            callers
                .into_iter()
                .map(|caller| caller.join().expect("no panic"))
                .inspect(|(_, at)| {
                    assert!(*at - aborted < NOTICE_LIMIT, "{:?}", *at - aborted);
                })
                .collect()
        });
        for (rank, (error, _)) in failed.iter().enumerate() {
            match rank {
                1 => assert!(matches!(error, Error::Aborted { .. }), "{error}"),
                _ => assert!(matches!(error, Error::Remote { rank: Rank(1), .. }), "{error}"),
            }
            assert!(error.to_string().contains("the program aborted the communicator"), "{error}");
        }
    }
    // The minimum over several rounds: this thread may wait for a core, while a lock held by a call would
    // delay every round.
    assert!(fastest < ABORT_LIMIT, "an abort took {fastest:?}");
}

#[test]
fn an_abort_wakes_all_who_wait() {
    let comms = ranks(2, &Config::default());
    let alone = &comms[0];
    let issued: Vec<Issued<u8>> = (0..4)
        .map(|_| issue(alone, SUM, (Vec::new(), vec![1; 100]), &default_options()).expect("issued"))
        .collect();
    let results: Vec<Result<()>> = thread::scope(|scope| {
        let waiters = [
            scope.spawn(|| issued[0].pending.wait(None).expect("no limit")),
            scope.spawn(|| issued[3].pending.wait(None).expect("no limit")),
            scope.spawn(|| call(alone, SUM, &mut [1u8; 3], &default_options())),
            scope.spawn(|| alone.with(|comm| comm.barrier()).expect("open")),
        ];
        thread::sleep(Duration::from_millis(50));
        let began = Instant::now();
        abort(alone);
        let results = waiters.into_iter().map(|waiter| waiter.join().expect("no panic")).collect();
        assert!(began.elapsed() < NOTICE_LIMIT);
        results
    });
    for result in results {
        assert!(matches!(result, Err(Error::Aborted { .. })), "{result:?}");
    }
    for issued in issued {
        assert!(matches!(issued.finish(), Err(Error::Aborted { .. })));
    }
    assert!(matches!(
        issue(alone, SUM, (Vec::new(), vec![1u8]), &default_options()).map(Issued::forget),
        Err(Error::Aborted { .. })
    ));
    assert!(matches!(alone.finalize(), Err(Error::Aborted { .. })));
}

#[test]
fn an_abort_between_calls_fails_everyone_s_next_one() {
    let comms = ranks(3, &Config::default());
    assert!(comms.iter().all(|comm| comm.async_error().is_none()));
    abort(&comms[2]);
    // Repeated aborts, on any rank, have no further effect.
    abort(&comms[2]);
    assert!(matches!(comms[2].async_error(), Some(Error::Aborted { .. })));
    assert!(matches!(comms[0].async_error(), Some(Error::Remote { rank: Rank(2), .. })));
    for comm in &comms {
        let error = call(comm, SUM, &mut [1u8], &default_options()).expect_err("aborted");
        assert!(matches!(error, Error::Aborted { .. } | Error::Remote { rank: Rank(2), .. }), "{error}");
    }
    abort(&comms[0]);
    let error = call(&comms[0], SUM, &mut [1u8], &default_options()).expect_err("aborted");
    assert!(matches!(error, Error::Remote { rank: Rank(2), .. }), "the first error stays: {error}");
}

#[test]
fn an_aborted_communicator_is_dropped_without_waiting_for_others() {
    let mut comms = ranks(2, &Config::default());
    let aborted = comms.remove(0);
    let issued = issue(&aborted, SUM, (Vec::new(), vec![1u8; 10]), &default_options()).expect("issued");
    abort(&aborted);
    let began = Instant::now();
    drop(aborted);
    assert!(began.elapsed() < NOTICE_LIMIT);
    assert!(matches!(issued.finish(), Err(Error::Aborted { .. })));
}

#[test]
fn a_call_that_waits_asks_whether_to_go_on_and_so_does_one_behind_it() {
    use std::{cell::Cell, sync::atomic::AtomicU32, sync::atomic::Ordering::Relaxed};
    thread_local! {
        static WANTS_OUT: Cell<bool> = const { Cell::new(false) };
    }
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let ask = || {
        ASKED.fetch_add(1, Relaxed);
        WANTS_OUT.get()
    };
    for is_queued in [false, true] {
        let comms = ranks(2, &Config::default());
        comms[0].set_interrupt_check(ask);
        // The other rank never calls; an issued call keeps the blocking call behind it waiting.
        let issued = is_queued
            .then(|| issue(&comms[0], SUM, (Vec::new(), vec![1u8; 10]), &default_options()).expect("issued"));
        let before = ASKED.load(Relaxed);
        WANTS_OUT.set(true);
        let began = Instant::now();
        let error = call(&comms[0], SUM, &mut [1u8], &default_options()).expect_err("nobody else calls");
        assert!(matches!(error, Error::Aborted { .. }), "{error}");
        assert!(began.elapsed() < NOTICE_LIMIT && ASKED.load(Relaxed) > before);
        WANTS_OUT.set(false);
        let error = call(&comms[1], SUM, &mut [1u8], &default_options()).expect_err("aborted");
        assert!(matches!(error, Error::Remote { .. }), "{error}");
        drop(issued);
    }
}
