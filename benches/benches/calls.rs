//! Overhead of a repeated call, without data movement: `cargo bench -p benches --bench calls`.
//!
//! A communicator of one rank waits for nobody, and its in-place `all_reduce` has no steps. The remaining
//! time is that of the library: it checks the arguments, finds the plan in its cache, binds it to the
//! caller's memory and runs it.
//!
//! - `known/same`: one kind of call repeatedly.
//! - `known/turns`: as many kinds of calls in turn as a model has gradients. Their plans are cached, too.
//! - `known/barrier`: a call without elements.
//! - `known/raw`: like `same`, by address.
//! - `known/shared`: like `raw`, on a communicator that threads could share: the cost of an uncontended lock.
//! - `known/at_hand` and `known/at_hand_turns`: the cache lookup of such calls alone.
//! - `known/choose`: the cost of selection, which only the first call of a kind has.
//!
//! The aim is that a cache lookup takes less than 50 ns. The difference between `shared` and `same` is part
//! of the 20 ns that the C ABI may add.
//!
//! # Safety
//! Addresses are those of an array that outlives the calls, of as many elements as the calls state.

use criterion::{Criterion, criterion_group, criterion_main};
use std::{hint::black_box, time::Duration};
use tbccl::{
    CallOptions, Collective, Communicator, Config, DType, Operation, Rank, RawCall, ReduceOp,
    SharedCommunicator,
};

/// Number of kinds of calls that take turns.
const KINDS: usize = 32;

fn known(c: &mut Criterion) {
    let config = Config { slab_bytes: Some(1 << 20), reduce_threads: Some(1), ..Config::default() };
    let mut comm = Communicator::local(1, &config).expect("memory for a benchmark").remove(0);
    let mut data = [1.0f32; KINDS];
    let mut group = c.benchmark_group("known");
    group.bench_function("same", |bencher| {
        bencher
            .iter(|| comm.all_reduce_in_place(black_box(&mut data[..8]), ReduceOp::Sum).expect("a result"));
    });
    group.bench_function("turns", |bencher| {
        let mut counts = (1..=KINDS).cycle();
        bencher.iter(|| {
            let count = counts.next().expect("it has no end");
            comm.all_reduce_in_place(black_box(&mut data[..count]), ReduceOp::Sum).expect("a result");
        });
    });
    group.bench_function("barrier", |bencher| bencher.iter(|| comm.barrier().expect("nobody else")));
    let find = |comm: &mut Communicator, count| {
        comm.plan_ahead(Collective::AllReduce, black_box(count), DType::F32, Rank(0), true).expect("a plan");
    };
    group.bench_function("at_hand", |bencher| bencher.iter(|| find(&mut comm, 8)));
    group.bench_function("at_hand_turns", |bencher| {
        let mut counts = (1..=KINDS as u64).cycle();
        bencher.iter(|| find(&mut comm, counts.next().expect("it has no end")));
    });
    group.bench_function("choose", |bencher| {
        bencher
            .iter(|| comm.plan_of(Collective::AllReduce, black_box(8), DType::F32, Rank(0)).expect("a plan"));
    });
    let start = data.as_mut_ptr().cast::<u8>();
    let call = RawCall {
        operation: Operation::new(Collective::AllReduce).with_op(ReduceOp::Sum),
        dtype: DType::F32,
        count: 8,
        send: start,
        recv: start,
    };
    group.bench_function("raw", |bencher| {
        // SAFETY: see the module.
        bencher.iter(|| unsafe { comm.call_raw(black_box(&call)) }.expect("a result"));
    });
    let (shared, options) = (SharedCommunicator::new(comm), CallOptions::default());
    group.bench_function("shared", |bencher| {
        // SAFETY: see the module.
        bencher.iter(|| unsafe { shared.call(black_box(&call), &options) }.expect("a result"));
    });
    group.finish();
}

fn quick() -> Criterion {
    let brief = Criterion::default().warm_up_time(Duration::from_millis(100));
    brief.measurement_time(Duration::from_millis(500)).sample_size(50).without_plots()
}

criterion_group! { name = calls; config = quick(); targets = known }
criterion_main!(calls);
