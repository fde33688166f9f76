//! Forked children of ranks: their calls are errors, and they harm no communicator of their parent.
//!
//! # Safety
//! A forked child runs one closure and leaves by `_exit`, which runs none of the parent's destructors. An
//! alarm ends a child that hangs. The memory of a message lives until its request is complete.

use std::{panic::AssertUnwindSafe, thread};
use tbccl::{Buffer, Communicator, Config, P2p, Rank, ReduceOp, SharedCommunicator, Transport, UniqueId};

/// Runs a closure in a forked child and returns its exit status.
fn in_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child only runs the closure and exits.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: a child that hangs is ended by the alarm's signal.
        unsafe { libc::alarm(30) };
        let status = std::panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or(99);
        // SAFETY: `_exit` runs no code of the parent.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: the process is a child of this one; the pointer is a valid place for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -status }
}

fn is_refused<T>(result: tbccl::Result<T>) -> bool {
    result.err().is_some_and(|error| error.to_string().contains("this process was forked"))
}

/// Returns the number of the first statement that does not hold, or 0.
fn first_wrong(statements: &[bool]) -> i32 {
    statements.iter().position(|holds| !holds).map_or(0, |at| at as i32 + 1)
}

/// Returns two ranks of this process, and a buffer of ones on each.
fn pair(transport: Transport) -> (UniqueId, Vec<(Communicator, Buffer<f32>)>) {
    let config = &Config { transport, slab_bytes: Some(16 << 20), ..Config::default() };
    let id = UniqueId::create().expect("a rendezvous");
    let join = |rank| {
        let comm = Communicator::from_unique_id(&id, rank, 2, config).expect("all come");
        let mut data = comm.alloc::<f32>(100_000).expect("memory");
        data.fill(1.0);
        (comm, data)
    };
    let ranks = thread::scope(|scope| {
        let join = &join;
        let ranks = [0, 1].map(|rank| scope.spawn(move || join(rank)));
        ranks.map(|rank| rank.join().expect("it has joined")).into()
    });
    (id, ranks)
}

fn harms_nothing_over(transport: Transport) {
    let (_id, mut ranks) = pair(transport);
    let status = in_child(|| {
        let mut refused = Vec::new();
        for (comm, data) in &mut ranks {
            refused.push(is_refused(comm.all_reduce_in_place(data, ReduceOp::Sum)));
            refused.push(is_refused(comm.send(&[1u8], Rank(1 - comm.rank().0))));
            refused.push(is_refused(comm.alloc::<u8>(1)));
            refused.push(is_refused(comm.shrink(&[], &Config::default())));
        }
        drop(std::mem::take(&mut ranks));
        first_wrong(&refused)
    });
    assert_eq!(status, 0, "{transport:?}");
    thread::scope(|scope| {
        for (comm, data) in &mut ranks {
            scope.spawn(move || {
                assert!(data.iter().all(|value| *value == 1.0), "the child has dropped a copy");
                comm.all_reduce_in_place(data, ReduceOp::Sum).expect("the parent's goes on");
                assert!(data.iter().all(|value| *value == 2.0));
            });
        }
    });
}

#[test]
fn a_child_that_drops_communicators_and_buffers_harms_none_of_its_parents() {
    for transport in [Transport::Mixed, Transport::Tcp] {
        harms_nothing_over(transport);
    }
}

#[test]
fn a_child_gets_errors_for_what_its_parent_shares_between_threads() {
    let alone = || Communicator::local(1, &Config::default()).expect("memory").swap_remove(0);
    let shared = SharedCommunicator::new(alone());
    let p2p = P2p::new(alone()).expect("it has not failed");
    let mut received = 0u8;
    // SAFETY: the byte lives until the request is complete, below.
    let request = unsafe { p2p.recv(Some(Rank(0)), 0, Some(1), &raw mut received, 1) }.expect("posted");
    let status = in_child(|| {
        shared.abort();
        let (comm, messages) = (shared.clone(), p2p.clone());
        let byte = 5u8;
        let refused = [
            is_refused(comm.with(|comm| comm.barrier())),
            is_refused(comm.finalize()),
            is_refused(messages.alloc::<u8>(1)),
            // SAFETY: the send is refused.
            is_refused(unsafe { messages.send(Rank(0), 0, 1, &raw const byte, 1) }),
            request.wait(None).is_some_and(is_refused),
            request.test().is_some_and(is_refused),
        ];
        drop((comm, messages, shared, p2p));
        first_wrong(&refused)
    });
    assert_eq!(status, 0);
}
