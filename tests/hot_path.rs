//! A call whose plan is known allocates no memory, however long it waits.
//!
//! # Safety
//! The counting allocator passes every request on to the system's, unchanged.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    thread,
    time::Duration,
};
use tbccl::{Communicator, Config, Rank, ReduceOp};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: all requests go to the system's allocator unchanged; the counter is a thread-local cell without a
// destructor, so counting neither allocates nor outlives the thread.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One call of each kind, on memory of the caller and of the library.
fn every_call(comm: &mut Communicator, data: &mut [Vec<f32>; 3], registered: &mut [tbccl::Buffer<f32>; 2]) {
    let [block, other, blocks] = data;
    let [input, output] = registered;
    comm.all_reduce(block, other, ReduceOp::Sum).expect("all_reduce");
    comm.all_reduce_in_place(other, ReduceOp::Max).expect("all_reduce in place");
    comm.all_reduce(input, output, ReduceOp::Avg).expect("all_reduce of registered memory");
    comm.all_reduce(&block[..1], &mut other[..1], ReduceOp::Sum).expect("all_reduce of one element");
    comm.all_gather(block, blocks).expect("all_gather");
    comm.reduce_scatter(blocks, other, ReduceOp::Sum).expect("reduce_scatter");
    comm.broadcast(block, Rank(1)).expect("broadcast");
    comm.send_recv(block, other).expect("send_recv");
    comm.barrier().expect("barrier");
    match comm.rank() {
        Rank(0) => comm.send(block, Rank(1)).expect("send"),
        Rank(1) => comm.recv(other, Rank(0)).expect("recv"),
        _ => {}
    }
}

/// Runs `role` on three ranks, which are threads.
fn on_three_ranks(config: &Config, role: impl Fn(Communicator) + Sync) {
    let communicators = Communicator::local(3, config).expect("memory for a test");
    thread::scope(|scope| {
        for comm in communicators {
            scope.spawn(|| role(comm));
        }
    });
}

/// Asserts that a call after a known one allocates nothing although rank 2 comes late.
fn waits_without_allocating(call: impl Fn(&mut Communicator) + Sync) {
    on_three_ranks(&Config::default(), |mut comm| {
        call(&mut comm);
        let before = ALLOCATIONS.get();
        if comm.rank() == Rank(2) {
            thread::sleep(Duration::from_millis(100));
        }
        call(&mut comm);
        assert_eq!(ALLOCATIONS.get() - before, 0, "rank {}", comm.rank());
    });
}

#[test]
fn calls_of_a_known_kind_do_not_allocate() {
    const COUNT: usize = 70_000;
    let config = Config { slab_bytes: Some(64 << 20), ..Config::default() };
    on_three_ranks(&config, |mut comm| {
        let mut data = [vec![1.0; COUNT], vec![0.0; COUNT], vec![1.0; COUNT * 3]];
        let mut registered = [0, 1].map(|_| comm.alloc::<f32>(COUNT).expect("memory for a test"));
        every_call(&mut comm, &mut data, &mut registered);
        let before = ALLOCATIONS.get();
        for _ in 0..20 {
            every_call(&mut comm, &mut data, &mut registered);
        }
        assert_eq!(ALLOCATIONS.get() - before, 0, "rank {}", comm.rank());
    });
}

/// A rank whose messages have all found room waited for a late one with a copy of all boards.
#[test]
fn a_wait_for_a_rank_that_has_not_entered_the_call_does_not_allocate() {
    waits_without_allocating(|comm| {
        comm.broadcast(&mut [1.0_f32; 1000], Rank(0)).expect("broadcast");
    });
}

#[test]
fn a_long_wait_does_not_allocate() {
    waits_without_allocating(|comm| {
        comm.all_reduce_in_place(&mut [1.0_f32], ReduceOp::Sum).expect("all_reduce");
    });
}
