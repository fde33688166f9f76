//! Tests of queued calls that waiting threads make: the queue's thread never starts here.
//!
//! # Safety
//! The memory of calls are vectors that outlive the communicators.

use super::*;
use crate::{Collective, Config, DType, Operation, communicator::Communicator, shared::SharedCommunicator};
use std::{ptr, time::Duration};

const SOON: Duration = Duration::from_millis(20);
/// Age from which a nap takes a job.
const SOONEST: Duration = Duration::from_micros(60);

/// Returns a communicator of one rank, in the place of whose thread another one has come and gone.
fn without_thread() -> SharedCommunicator {
    let config = Config { slab_bytes: Some(1 << 20), ..Config::default() };
    let comm = Communicator::local(1, &config).expect("memory for a test").swap_remove(0);
    let shared = SharedCommunicator::new(comm);
    shared.0.core.queue.state().thread = Some(thread::spawn(|| ()));
    shared
}

/// Returns a call that copies one number.
fn copy(send: &u32, recv: &mut u32) -> RawCall {
    RawCall {
        operation: Operation::new(Collective::AllGather),
        dtype: DType::U32,
        count: 1,
        send: ptr::from_ref(send).cast(),
        recv: ptr::from_mut(recv).cast(),
    }
}

fn issue(comm: &SharedCommunicator, send: &u32, recv: &mut u32) -> Pending {
    // SAFETY: see the module.
    unsafe { comm.issue(vec![copy(send, recv)], &CallOptions::default()) }.expect("nothing is wrong with it")
}

#[test]
fn who_waits_without_a_limit_makes_the_calls_up_to_his_own() {
    let (send, mut recv) = ([1, 2, 3], [0; 3]);
    let comm = without_thread();
    let issued: Vec<Pending> =
        send.iter().zip(&mut recv).map(|(send, recv)| issue(&comm, send, recv)).collect();
    assert!(issued[1].wait(Some(SOON)).is_none(), "a limit might pass during a call");
    assert!(matches!(issued[1].wait(None), Some(Ok(()))));
    assert!(issued[0].test().is_some(), "made before");
    assert!(issued[2].test().is_none(), "not waited for");
    issued[2].run_here();
    assert!(matches!(issued[2].test(), Some(Ok(()))));
    assert!(comm.0.core.queue.is_empty());
    drop(comm);
    assert_eq!(recv, send);
}

#[test]
fn a_blocking_call_behind_queued_ones_makes_them_first() {
    let (send, mut recv) = ([5, 6], [0; 2]);
    let comm = without_thread();
    let [first, second] = &mut recv;
    let queued = issue(&comm, &send[0], first);
    let call = copy(&send[1], second);
    // SAFETY: see the module.
    unsafe { comm.call(&call, &CallOptions::default()) }.expect("nothing is wrong with it");
    assert!(matches!(queued.test(), Some(Ok(()))));
    drop(comm);
    assert_eq!(recv, send);
}

#[test]
fn no_call_begins_while_another_one_runs_or_a_turn_is_due() {
    let (send, mut recv) = ([7, 8], [0; 2]);
    let comm = without_thread();
    let queue = &comm.0.core.queue;
    let [first, second] = &mut recv;
    let ahead = issue(&comm, &send[0], first);
    let running = queue.next_calls().expect("queued");
    let behind = issue(&comm, &send[1], second);
    behind.run_here();
    assert!(behind.test().is_none(), "another call runs");
    running.run(&comm.0.core);
    assert!(ahead.test().is_some());

    queue.state().jobs.push_front(Job::Turn(Arc::default()));
    behind.run_here();
    assert!(behind.test().is_none(), "a turn is due, which only the queue's thread grants");
    queue.state().jobs.pop_front();
    assert!(matches!(behind.wait(None), Some(Ok(()))));
    drop(comm);
    assert_eq!(recv, send);
}

#[test]
fn a_nap_takes_old_jobs_only_while_a_program_may_wait_for_them() {
    let (send, mut recv) = ([3; 100], [0; 100]);
    let comm = without_thread();
    let queue = &comm.0.core.queue;
    for (at, (send, recv)) in send.iter().zip(&mut recv).enumerate() {
        let pending = issue(&comm, send, recv);
        let is_last = at == 99;
        if is_last {
            queue.close();
        }
        let job = loop {
            // At once, and again until the job is old.
            if let Some(job) = queue.state().take(true) {
                break job;
            }
            assert!(!is_last, "nobody waits any more");
        };
        assert!(is_last || pending.age() >= SOONEST, "{:?}", pending.age());
        let Job::Calls(calls) = job else { unreachable!("only calls are queued") };
        calls.run(&comm.0.core);
        assert!(matches!(pending.test(), Some(Ok(()))));
    }
    drop(comm);
    assert_eq!(recv, send);
}

#[test]
fn a_closed_communicator_has_made_what_was_queued() {
    let (send, mut recv) = (9, 0);
    let comm = without_thread();
    let pending = issue(&comm, &send, &mut recv);
    let queue = &comm.0.core.queue;
    let running = queue.next_calls().expect("queued");
    queue.close();
    thread::scope(|scope| {
        let next = scope.spawn(|| queue.next());
        thread::sleep(SOON);
        assert!(!next.is_finished(), "the call that another thread makes is not done");
        running.run(&comm.0.core);
        assert!(next.join().expect("no panic").is_none());
    });
    assert!(matches!(pending.test(), Some(Ok(()))));
}
