//! Calls by address: compared with typed calls, in groups, and with arguments that slices cannot have.
//!
//! | module | subject |
//! |---|---|
//! | `grouped` | raw calls in groups |
//! | `invalid` | arguments that are rejected |
//! | `typed` | the same results and errors as typed calls |
//!
//! # Safety
//! Addresses are those of vectors that outlive the calls, and lengths are at most theirs. The exceptions are
//! calls with invalid arguments, which are rejected before any memory is accessed.

mod grouped;
mod invalid;
mod typed;

use std::{ptr, thread};
use tbccl::{
    BlockLen, Codec, Collective, Communicator, Config, DType, Element, Operation, Rank, RawCall, ReduceOp,
    Result,
};

const INT8: Codec = Codec::Int8(BlockLen::B128);

/// Runs `body` as each rank of a job of threads.
fn on_each_rank(ranks: u32, body: impl Fn(&mut Communicator) + Sync) {
    let config = Config { slab_bytes: Some(64 << 20), ..Config::default() };
    let communicators = Communicator::local(ranks, &config).expect("memory for a test");
    thread::scope(|scope| {
        for mut communicator in communicators {
            let body = &body;
            scope.spawn(move || body(&mut communicator));
        }
    });
}

fn raw<T: Element>(operation: Operation<'static>, count: usize, send: &[T], recv: &mut [T]) -> RawCall {
    RawCall { operation, dtype: T::DTYPE, count, send: send.as_ptr().cast(), recv: recv.as_mut_ptr().cast() }
}

/// Returns a call in place, whose buffers begin at elements `send` and `recv` of `data`.
fn in_place<T: Element>(
    operation: Operation<'static>,
    count: usize,
    data: &mut [T],
    (send, recv): (usize, usize),
) -> RawCall {
    let start = data.as_mut_ptr();
    let at = |element: usize| start.wrapping_add(element).cast::<u8>();
    RawCall { operation, dtype: T::DTYPE, count, send: at(send), recv: at(recv) }
}

fn call_raw(comm: &mut Communicator, call: &RawCall) -> Result<()> {
    // SAFETY: see the module.
    unsafe { comm.call_raw(call) }
}

fn call_group(comm: &mut Communicator, calls: &[RawCall]) -> Result<()> {
    // SAFETY: see the module.
    unsafe { comm.group_raw(calls) }
}

type Make<T> = fn(u8) -> T;

fn filled<T>(make: Make<T>, rank: u32, count: usize) -> Vec<T> {
    (0..count).map(|i| make(((i * 7 + rank as usize * 3) % 5) as u8)).collect()
}

#[test]
fn no_elements_may_be_anywhere() {
    on_each_rank(2, |comm| {
        let operations = [
            Operation::new(Collective::AllReduce).with_op(ReduceOp::Sum),
            Operation::new(Collective::AllGather),
            Operation::new(Collective::AllToAll),
            Operation::new(Collective::Barrier),
        ];
        for operation in operations {
            let call =
                RawCall { operation, dtype: DType::F64, count: 0, send: ptr::null(), recv: ptr::null_mut() };
            call_raw(comm, &call).expect("nothing to do");
            call_group(comm, &[call.clone(), call]).expect("nothing to do");
        }
    });
}

#[test]
fn bools_that_come_from_elsewhere_are_0_or_1() {
    on_each_rank(2, |comm| {
        let send = [if comm.rank() == Rank(0) { 255u8 } else { 0 }; 8];
        let mut recv = [7u8; 8];
        let operation = Operation::new(Collective::Broadcast).with_root(Rank(0));
        let call = RawCall { dtype: DType::Bool, ..raw(operation, 8, &send, &mut recv) };
        call_raw(comm, &call).expect("a broadcast");
        assert_eq!(recv, [1; 8]);
        recv = [7; 8];
        call_group(comm, &[RawCall { recv: recv.as_mut_ptr(), ..call }]).expect("a group");
        assert_eq!(recv, [1; 8]);
    });
}
