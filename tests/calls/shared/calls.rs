//! Order, results and errors of calls that are issued.

use crate::shared::issued::{Issued, TIMEOUT, call, call_group, issue, ranks};
use std::{
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};
use tbccl::{CallOptions, Collective, Config, Error, Operation, Rank, ReduceOp, SharedCommunicator};

const SUM: Operation<'static> = Operation::new(Collective::AllReduce).with_op(ReduceOp::Sum);

fn default_options() -> CallOptions {
    CallOptions::default()
}

/// Runs `body` as each rank of a job.
fn on_each_rank(size: u32, body: impl Fn(SharedCommunicator) + Sync) {
    thread::scope(|scope| {
        for comm in ranks(size, &Config::default()) {
            let body = &body;
            scope.spawn(move || body(comm));
        }
    });
}

/// Issues calls that differ from each other, so that ranks that execute them in different orders disagree.
fn issue_many(comm: &SharedCommunicator, many: usize) -> Vec<Issued<u32>> {
    let nth = |at: usize| {
        let (own, count) = (vec![comm.rank().0 + at as u32; 1 + at % 7], 1 + at % 7);
        match at % 3 {
            0 => issue(comm, SUM, (own, vec![0; count]), &default_options()),
            1 => issue(
                comm,
                Operation::new(Collective::Broadcast).with_root(Rank(at as u32 % comm.size())),
                (own, vec![0; count]),
                &default_options(),
            ),
            _ => issue(
                comm,
                Operation::new(Collective::AllReduce).with_op(ReduceOp::Max),
                (Vec::new(), own),
                &default_options(),
            ),
        }
    };
    (0..many).map(|at| nth(at).expect("it is issued")).collect()
}

fn check_many(size: u32, issued: Vec<Issued<u32>>) {
    for (at, issued) in issued.into_iter().enumerate() {
        let of_rank = |rank: u32| rank + at as u32;
        let expected = match at % 3 {
            0 => (0..size).map(of_rank).sum(),
            1 => of_rank(at as u32 % size),
            _ => of_rank(size - 1),
        };
        assert_eq!(issued.finish().expect("carried out"), vec![expected; 1 + at % 7], "call {at}");
    }
}

#[test]
fn calls_are_made_in_the_order_in_which_they_were_issued() {
    on_each_rank(3, |comm| {
        let first = issue_many(&comm, 150);
        // The blocking call runs after those queued.
        let mut data = [comm.rank().0; 9];
        call(&comm, SUM, &mut data, &default_options()).expect("behind the others");
        assert_eq!(data, [3; 9]);
        assert!(first.iter().all(|issued| issued.pending.test().is_some()), "those before it are done");
        check_many(3, first);
        check_many(3, issue_many(&comm, 30));
    });
}

#[test]
fn many_threads_call_and_issue_at_once_and_each_call_is_whole() {
    on_each_rank(2, |comm| {
        thread::scope(|scope| {
            for thread in 0..4 {
                let comm = &comm;
                scope.spawn(move || {
                    for round in 0..60 {
                        // Any call of one rank may match any call of the other, so all calls are equal.
                        let mut data = vec![comm.rank().0 + 1; 100];
                        if (thread + round) % 2 == 0 {
                            call(comm, SUM, &mut data, &default_options()).expect("carried out");
                        } else {
                            let issued =
                                issue(comm, SUM, (Vec::new(), data), &default_options()).expect("issued");
                            data = issued.finish().expect("carried out");
                        }
                        assert_eq!(data, [3; 100]);
                    }
                });
            }
        });
    });
}

#[test]
fn a_thread_that_calls_after_it_has_issued_comes_after_what_it_issued() {
    on_each_rank(2, |comm| {
        for round in 0..200 {
            let issued = issue(&comm, SUM, (Vec::new(), vec![round]), &default_options()).expect("issued");
            let mut data = [1.0f32; 3];
            call(
                &comm,
                Operation::new(Collective::AllReduce).with_op(ReduceOp::Prod),
                &mut data,
                &default_options(),
            )
            .expect("the other order disagrees");
            assert_eq!(issued.finish().expect("carried out"), [2 * round]);
        }
    });
}

#[test]
fn calls_of_a_group_are_issued_together() {
    on_each_rank(2, |comm| {
        let mut data = vec![vec![1u64; 5], vec![2; 70_000]];
        call_group(&comm, &SUM, &mut data).expect("a group");
        assert_eq!(data, [vec![2; 5], vec![4; 70_000]]);
    });
}

#[test]
fn a_wait_with_a_limit_ends_and_can_be_repeated() {
    let comms = ranks(2, &Config::default());
    let early = issue(&comms[0], SUM, (Vec::new(), vec![5i32; 4]), &default_options()).expect("issued");
    let began = Instant::now();
    assert!(early.pending.wait(Some(Duration::from_millis(30))).is_none(), "nobody else is there");
    assert!(began.elapsed() >= Duration::from_millis(30));
    assert!(early.pending.test().is_none());
    let late = issue(&comms[1], SUM, (Vec::new(), vec![6i32; 4]), &default_options()).expect("issued");
    assert_eq!(early.finish().expect("both are there"), [11; 4]);
    assert_eq!(late.finish().expect("both are there"), [11; 4]);
}

#[test]
fn a_call_whose_pending_is_dropped_is_made_all_the_same() {
    on_each_rank(2, |comm| {
        for _ in 0..20 {
            issue(&comm, SUM, (Vec::new(), vec![1u8; 1000]), &default_options()).expect("issued").forget();
        }
        let mut data = [2i16];
        call(&comm, SUM, &mut data, &default_options()).expect("after the others");
        assert_eq!((data, comm.stats().finished), ([4], 21));
    });
}

#[test]
fn finalize_carries_out_what_is_queued_and_nothing_after_it() {
    on_each_rank(3, |comm| {
        let other = comm.clone();
        let issued = issue_many(&comm, 60);
        comm.finalize().expect("all is well");
        assert!(issued.iter().all(|issued| issued.pending.test().is_some()));
        check_many(3, issued);
        let is_over = |error: Option<Error>| {
            let error = error.expect("it is over");
            assert!(
                matches!(error, Error::InvalidArgument(_)) && error.to_string().contains("finalized"),
                "{error}"
            );
        };
        is_over(call(&other, SUM, &mut [0u8], &default_options()).err());
        is_over(other.with(|comm| comm.barrier()).err());
        is_over(other.finalize().err());
        is_over(
            issue(&other, SUM, (Vec::new(), vec![1u8]), &default_options()).and_then(Issued::finish).err(),
        );
        assert_eq!((other.rank(), other.stats().finished), (comm.rank(), 60));
        assert!(other.stats().links.sent_messages > 0);
    });
}

#[test]
fn the_last_one_who_leaves_waits_for_what_is_queued() {
    on_each_rank(2, |comm| {
        let issued = issue_many(&comm, 40);
        drop(comm);
        assert!(issued.iter().all(|issued| matches!(issued.pending.test(), Some(Ok(())))));
    });
}

#[test]
fn the_communicator_itself_can_be_used_between_calls() {
    on_each_rank(2, |comm| {
        let before = issue_many(&comm, 20);
        let size = comm.with(|comm| {
            let mut data = [1u32; 3];
            comm.all_reduce_in_place(&mut data, ReduceOp::Sum).map(|()| data[0])
        });
        assert_eq!(size.expect("open").expect("carried out"), 2);
        let after = issue_many(&comm, 20);
        assert_eq!(comm.with(|comm| comm.size()).expect("open"), 2);
        check_many(2, before);
        check_many(2, after);
    });
}

#[test]
fn options_hold_for_their_call_only() {
    on_each_rank(2, |comm| {
        let messages = |comm: &SharedCommunicator| comm.stats().links.sent_messages;
        let by = |algorithm: &str| CallOptions {
            algorithm: Some(algorithm.into()),
            segments: 1,
            ..default_options()
        };
        // Number of messages that one of two ranks sends.
        for (algorithm, expected) in [("mesh", 1), ("rsag_mesh", 2), ("mesh", 1)] {
            let before = messages(&comm);
            call(&comm, SUM, &mut [1.0f32; 64], &by(algorithm)).expect(algorithm);
            assert_eq!(messages(&comm) - before, expected, "{algorithm}");
        }
        comm.with(|comm| comm.set_algorithm(Some("rsag_mesh"), 1)).expect("open").expect("known");
        for (options, expected) in [(default_options(), 2), (by("mesh"), 1), (default_options(), 2)] {
            let before = messages(&comm);
            let issued = issue(&comm, SUM, (Vec::new(), vec![1.0f32; 64]), &options).expect("issued");
            issued.finish().expect("carried out");
            assert_eq!(messages(&comm) - before, expected, "{options:?}");
        }
        let reproducible = CallOptions { numerics: Some(tbccl::Numerics::Reproducible), ..default_options() };
        call(&comm, SUM, &mut [1.0f32; 64], &reproducible).expect("carried out");
    });
}

#[test]
fn a_call_s_own_limit_of_time_ends_it() {
    let comms = ranks(2, &Config::default());
    let brief = CallOptions { timeout: Some(Duration::from_millis(100)), ..default_options() };
    let issued = issue(&comms[0], SUM, (Vec::new(), vec![1u8]), &brief).expect("issued");
    let error = issued.finish().expect_err("nobody else is there");
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(matches!(comms[0].async_error(), Some(Error::Timeout { .. })));
    assert!(matches!(comms[1].async_error(), Some(Error::Remote { rank: Rank(0), .. })));
}

#[test]
fn what_is_wrong_with_a_call_is_said_when_it_is_issued() {
    let comms = ranks(2, &Config::default());
    let refused = |operation: Operation<'static>, options: CallOptions| {
        issue(&comms[0], operation, (Vec::new(), vec![1.0f32; 4]), &options)
            .map(Issued::forget)
            .expect_err("wrong")
    };
    for (operation, message) in [
        (Operation::new(Collective::Broadcast).with_root(Rank(2)), "root 2"),
        (Operation::new(Collective::AllReduce).with_op(ReduceOp::BitOr), "f32"),
        (Operation::new(Collective::Scan).with_op(ReduceOp::Avg), "no average"),
        (
            Operation::new(Collective::AllReduce).with_op(ReduceOp::Sum).with_scale(tbccl::Scale::new(1u8)),
            "the factor is a u8",
        ),
        (Operation::new(Collective::AllToAll), "no form in place"),
    ] {
        let error = refused(operation, default_options()).to_string();
        assert!(error.contains(message), "{error}");
    }
    let unknown = CallOptions { algorithm: Some("rong".into()), ..default_options() };
    assert!(matches!(refused(SUM, unknown), Error::UnknownName(_)));
    assert!(
        refused(SUM, CallOptions { timeout: Some(Duration::ZERO), ..default_options() })
            .to_string()
            .contains("0 s")
    );
    assert!(matches!(
        refused(SUM, CallOptions { segments: u32::MAX, ..default_options() }),
        Error::InvalidArgument(_)
    ));
    assert_eq!(comms[0].stats().begun, 0);
}

#[test]
fn stats_are_told_while_a_call_waits() {
    let comms = ranks(2, &Config::default());
    let issued = issue(&comms[0], SUM, (Vec::new(), vec![1u8; 100_000]), &default_options()).expect("issued");
    let until = Instant::now() + TIMEOUT;
    let stats = loop {
        let started = Instant::now();
        let stats = comms[0].stats();
        assert!(started.elapsed() < Duration::from_secs(5), "it waits for the call");
        if stats.begun == 1 && stats.links.copied_bytes > 0 {
            break stats;
        }
        assert!(Instant::now() < until, "never told: {stats:?}");
    };
    assert_eq!((stats.finished, &stats.peers[..]), (0, &[(Rank(1), stats.links)][..]));
    call(&comms[1], SUM, &mut [1u8; 100_000], &default_options()).expect("both are there");
    assert_eq!(issued.finish().expect("both are there"), vec![2; 100_000]);
    assert_eq!((comms[0].stats().begun, comms[0].stats().finished), (1, 1));
}

#[test]
fn a_panic_is_not_the_end_of_the_process_but_of_the_communicator() {
    let comms = ranks(2, &Config::default());
    let broken = &comms[0];
    let panicked = thread::scope(|scope| {
        scope.spawn(|| broken.with(|_| -> () { panic!("a defect, as this test wants it") })).join().is_err()
    });
    assert!(panicked);
    let error = call(broken, SUM, &mut [1u8], &default_options()).expect_err("nobody knows its state");
    assert!(matches!(error, Error::Defect(_)), "{error}");
    call(&comms[1], SUM, &mut [1u8], &default_options()).expect_err("rank 0 has failed");
}

/// Returns the nanoseconds that a rank's call thread has spent on a core.
#[cfg(target_os = "linux")]
fn time_on_a_core(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("our threads").flatten();
    let matching = tasks
        .map(|task| task.path())
        .filter(|path| std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name));
    let used = |path: std::path::PathBuf| -> Option<u64> {
        std::fs::read_to_string(path.join("schedstat")).ok()?.split(' ').next()?.parse().ok()
    };
    matching.filter_map(used).sum()
}

#[cfg(target_os = "linux")]
#[test]
fn the_thread_for_calls_costs_nothing_while_there_are_none() {
    // No other test has this many ranks, and threads are found by their names.
    let comms = ranks(60, &Config { slab_bytes: Some(1 << 20), ..Config::default() });
    let (left, right) = (&comms[57], &comms[58]);
    let together = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            let issued =
                issue(left, Operation::send(Rank(58)), (vec![1u8; 8], vec![0; 8]), &default_options());
            issued.and_then(Issued::finish).expect("sent");
            together.wait();
        });
        let issued = issue(right, Operation::recv(Rank(57)), (Vec::new(), vec![0u8; 8]), &default_options());
        assert_eq!(issued.and_then(Issued::finish).expect("received"), [1; 8]);
        together.wait();
    });
    let before = time_on_a_core("tbccl-calls-58");
    assert!(before > 0, "there is such a thread");
    thread::sleep(Duration::from_millis(300));
    let used = time_on_a_core("tbccl-calls-58") - before;
    assert!(used < 5_000_000, "{used} ns in 300 ms of nothing to do");
}
