//! Overhead of the C interface compared with the Rust one: `cargo bench -p benches --bench c_calls`.
//!
//! The benchmark repeats an in-place `all_reduce` of 8 bytes:
//!
//! - `alone/rust`, `alone/c`: on a communicator of one rank, which waits for nobody. The difference is the
//!   overhead of the C interface.
//! - `shm/rust`, `shm/c`: with another process, over shared memory.
//!
//! The variants take turns of a few calls, so that changes of the machine affect all of them. The aim is that
//! C takes less than 20 ns longer. The address of a communicator's memory has an effect of that order, too.
//! There are therefore two Rust communicators, one created before that of C and one after it, and the report
//! includes their difference.
//!
//! The Rust communicators belong to one thread (`Communicator`). Any thread may call the C communicator, like
//! a Rust `SharedCommunicator`; the report includes the time of that one, too.
//!
//! # Safety
//! Arguments of C functions are valid and outlive the call; a handle is written before it is read.

use criterion::{Criterion, criterion_group};
use std::{
    ffi::c_void,
    io::Write,
    mem::MaybeUninit,
    process::{Child, Command, Stdio},
    ptr::null,
    time::{Duration, Instant},
};
use tbccl::{
    CallOptions, Collective, Communicator, Config, DType, Operation, RawCall, ReduceOp, SharedCommunicator,
    Transport, UniqueId,
};
use tbccl_c::{
    collectives::tbcclAllReduce,
    comm::{tbcclCommDestroy, tbcclCommInitAll, tbcclCommInitRank},
    comm_handle::tbcclComm_t,
    params::tbcclParamSet,
    unique_id::tbcclUniqueId,
};

/// Consecutive calls of one variant.
const BATCH: u64 = 64;

/// Signals to the peer process, sent as the result of a call.
const SWITCH: i64 = 1;
const STOP: i64 = 2;

/// The environment variable that marks the peer process and carries the unique ids.
const IDS_VARIABLE: &str = "IDS_OF_THE_BENCHMARK";

/// The communicators of all variants, with the same ranks.
struct Communicators {
    rust: [Communicator; 2],
    c: tbcclComm_t,
    shared: SharedCommunicator,
    options: CallOptions,
}

/// The number of variants, in the order of turns: the first Rust communicator, C, the second Rust one, and
/// the shared one.
const VARIANTS: usize = 4;
const C: usize = 1;
const SHARED: usize = 3;

impl Communicators {
    fn call(&mut self, variant: usize, signal: i64) -> i64 {
        match variant {
            C => self.call_c(signal),
            SHARED => self.call_shared(signal),
            _ => self.call_rust(variant / 2, signal),
        }
    }

    fn call_shared(&mut self, signal: i64) -> i64 {
        let mut data = [signal];
        let memory: *mut u8 = data.as_mut_ptr().cast();
        let operation = Operation::new(Collective::AllReduce).with_op(ReduceOp::Max);
        let call = RawCall { operation, dtype: DType::I64, count: 1, send: memory, recv: memory };
        // SAFETY: the memory has one element, and nothing else uses it until the call returns.
        unsafe { self.shared.call(&call, &self.options) }.expect("a result");
        data[0]
    }

    fn call_rust(&mut self, which: usize, signal: i64) -> i64 {
        let mut data = [signal];
        self.rust[which].all_reduce_in_place(&mut data, ReduceOp::Max).expect("a result");
        data[0]
    }

    fn call_c(&mut self, signal: i64) -> i64 {
        let mut data = [signal];
        let memory: *mut c_void = data.as_mut_ptr().cast();
        // DType 4 is int64, operation 2 is the maximum. SAFETY: the memory has one element, and nothing else
        // uses it until the call returns.
        let done = unsafe { tbcclAllReduce(memory, memory, 1, 4, 2, self.c, None) };
        assert_eq!(done, 0);
        data[0]
    }

    /// Returns the time of `calls` calls for each variant, by turns.
    fn times(&mut self, calls: u64) -> [Duration; VARIANTS] {
        let mut times = [Duration::ZERO; VARIANTS];
        for _ in 0..calls.div_ceil(BATCH) {
            // Each variant has a loop of its own, so that no branch runs between calls.
            let start = Instant::now();
            (0..BATCH).for_each(|_| _ = self.call_rust(0, 0));
            times[0] += start.elapsed();
            self.call(0, SWITCH);
            let start = Instant::now();
            (0..BATCH).for_each(|_| _ = self.call_c(0));
            times[C] += start.elapsed();
            self.call(C, SWITCH);
            let start = Instant::now();
            (0..BATCH).for_each(|_| _ = self.call_rust(1, 0));
            times[2] += start.elapsed();
            self.call(2, SWITCH);
            let start = Instant::now();
            (0..BATCH).for_each(|_| _ = self.call_shared(0));
            times[SHARED] += start.elapsed();
            self.call(SHARED, SWITCH);
        }
        times.map(|time| time.mul_f64(calls as f64 / calls.next_multiple_of(BATCH) as f64))
    }
}

impl Drop for Communicators {
    fn drop(&mut self) {
        // SAFETY: `tbcclCommDestroy` accepts any handle value.
        assert_eq!(unsafe { tbcclCommDestroy(self.c) }, 0);
    }
}

fn created(call: impl FnOnce(Option<&mut MaybeUninit<tbcclComm_t>>) -> i32) -> tbcclComm_t {
    let mut comm = MaybeUninit::new(std::ptr::null_mut());
    assert_eq!(call(Some(&mut comm)), 0, "a communicator");
    // SAFETY: the handle was initialized with null, and perhaps overwritten since.
    unsafe { comm.assume_init() }
}

fn single_rank() -> Communicators {
    // Default options, as for the C communicator.
    let rust = || Communicator::local(1, &Config::default()).expect("memory for a benchmark").remove(0);
    let first = rust();
    let c = created(|place| {
        let place = place.map_or(std::ptr::null_mut(), MaybeUninit::as_mut_ptr);
        // SAFETY: `place` has room for the handle of one rank.
        unsafe { tbcclCommInitAll(place, 1, null()) }
    });
    Communicators {
        rust: [first, rust()],
        c,
        shared: SharedCommunicator::new(rust()),
        options: CallOptions::default(),
    }
}

fn connect(ids: &[UniqueId; VARIANTS], rank: u32) -> Communicators {
    let config = Config { transport: Transport::Shm, ..Config::default() };
    let rust = |id| Communicator::from_unique_id(id, rank, 2, &config).expect("the other process");
    let first = rust(&ids[0]);
    // SAFETY: both arguments are NUL-terminated strings.
    let set = unsafe { tbcclParamSet(c"TRANSPORT".as_ptr(), c"shm".as_ptr()) };
    assert_eq!(set, 0);
    let id = tbcclUniqueId { internal: ids[C].as_bytes().map(|byte| byte as _) };
    // SAFETY: `place` is valid for the duration of the call.
    let c = created(|place| unsafe { tbcclCommInitRank(place, 2, id, rank as i32) });
    let (second, shared) = (rust(&ids[2]), SharedCommunicator::new(rust(&ids[SHARED])));
    Communicators { rust: [first, second], c, shared, options: CallOptions::default() }
}

/// Starts the peer process.
fn with_peer() -> (Communicators, Child) {
    let ids = [(); VARIANTS].map(|()| UniqueId::create().expect("a rendezvous"));
    let hex = |id: &UniqueId| id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    let peer = command.env(IDS_VARIABLE, ids.each_ref().map(hex).concat()).stdout(Stdio::null());
    let peer = peer.spawn().expect("it starts");
    (connect(&ids, 0), peer)
}

/// Runs the peer process, which repeats the calls of the first one.
fn peer(ids: &str) {
    let bytes: Vec<u8> = (0..ids.len() / 2)
        .map(|at| u8::from_str_radix(&ids[2 * at..2 * at + 2], 16).expect("digits"))
        .collect();
    let id = |at: usize| {
        let bytes = bytes[at * UniqueId::BYTES..][..UniqueId::BYTES].try_into().expect("four ids");
        UniqueId::from_bytes(bytes).expect("an id")
    };
    let mut comms = connect(&[id(0), id(1), id(2), id(3)], 1);
    let mut variant = 0;
    loop {
        match comms.call(variant, 0) {
            SWITCH => variant = (variant + 1) % VARIANTS,
            STOP => break,
            _ => {}
        }
    }
}

fn compare(c: &mut Criterion, name: &str, comms: &mut Communicators) {
    let mut group = c.benchmark_group(name);
    group.bench_function("rust", |bencher| bencher.iter_custom(|calls| comms.times(calls)[0]));
    group.bench_function("c", |bencher| bencher.iter_custom(|calls| comms.times(calls)[C]));
    group.finish();
    let samples: Vec<[f64; VARIANTS]> = (0..400)
        .map(|_| comms.times(BATCH * 8).map(|time| time.as_secs_f64() * 1e9 / (BATCH * 8) as f64))
        .collect();
    let median = |of: fn(&[f64; VARIANTS]) -> f64| {
        let mut values: Vec<f64> = samples.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let c_extra = median(|[first, c, second, _]| c - (first + second) / 2.0);
    let shared = median(|[first, _, second, shared]| shared - (first + second) / 2.0);
    let difference = median(|[first, _, second, _]| second - first);
    let _ = writeln!(
        std::io::stdout(),
        "{name}: C takes {c_extra:.1} ns longer (median); Rust for any thread {shared:.1} ns longer; the \
        second one of Rust \
         {difference:.1} ns longer than the first\n"
    );
}

fn interfaces(c: &mut Criterion) {
    compare(c, "alone", &mut single_rank());
    let (mut comms, mut peer) = with_peer();
    compare(c, "shm", &mut comms);
    comms.call(0, STOP);
    drop(comms);
    assert!(peer.wait().expect("our child").success());
}

fn quick() -> Criterion {
    let brief = Criterion::default().warm_up_time(Duration::from_millis(200));
    brief.measurement_time(Duration::from_secs(1)).sample_size(50).without_plots()
}

criterion_group! { name = c_calls; config = quick(); targets = interfaces }

fn main() {
    if let Ok(ids) = std::env::var(IDS_VARIABLE) {
        return peer(&ids);
    }
    c_calls();
    Criterion::default().configure_from_args().final_summary();
}
