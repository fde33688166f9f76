//! What the C interface costs over the Rust one: `cargo bench -p benches --bench c_calls`.
//!
//! An in-place `all_reduce` of 8 bytes, again and again:
//!
//! - `alone/rust`, `alone/c`: on a communicator of one rank, which has nobody to wait for. What C takes longer is what its
//!   interface costs.
//! - `shm/rust`, `shm/c`: with another process, over shared memory.
//!
//! All are tried by turns, a few calls each, so that what changes on the machine changes all. The aim is that C takes
//! less than 20 ns longer. Where the memory of a communicator lies makes a difference of that order, too, so that there are two
//! of Rust, one made before that of C and one after it: how much they differ is said beside what C takes longer.
//!
//! Those of Rust are for the one thread that has them (`Communicator`). What C calls is for any thread, as in Rust a
//! `SharedCommunicator` is; so what that takes is said, too.
//!
//! # Safety
//! What C functions are passed is there and lives longer than the call; a handle is read back that was written before.

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

/// Calls of one kind, before it is the other's turn.
const TURN: u64 = 64;

/// What a peer is told by the sum of a call.
const SWITCH: i64 = 1;
const STOP: i64 = 2;

/// By which the other process knows that it is one.
const IDS: &str = "IDS_OF_THE_BENCHMARK";

/// Communicators with the same ranks.
struct Four {
    rust: [Communicator; 2],
    c: tbcclComm_t,
    shared: SharedCommunicator,
    options: CallOptions,
}

/// The ways to call, in the order of turns: one Rust communicator, C, the other one, and that for any thread.
const WAYS: usize = 4;
const C: usize = 1;
const SHARED: usize = 3;

impl Four {
    fn call(&mut self, way: usize, word: i64) -> i64 {
        match way {
            C => self.call_c(word),
            SHARED => self.call_shared(word),
            _ => self.call_rust(way / 2, word),
        }
    }

    fn call_shared(&mut self, word: i64) -> i64 {
        let mut data = [word];
        let memory: *mut u8 = data.as_mut_ptr().cast();
        let operation = Operation::new(Collective::AllReduce).with_op(ReduceOp::Max);
        let call = RawCall { operation, dtype: DType::I64, count: 1, send: memory, recv: memory };
        // SAFETY: one element is there, and is nobody else's until this returns.
        unsafe { self.shared.call(&call, &self.options) }.expect("a result");
        data[0]
    }

    fn call_rust(&mut self, which: usize, word: i64) -> i64 {
        let mut data = [word];
        self.rust[which].all_reduce_in_place(&mut data, ReduceOp::Max).expect("a result");
        data[0]
    }

    fn call_c(&mut self, word: i64) -> i64 {
        let mut data = [word];
        let memory: *mut c_void = data.as_mut_ptr().cast();
        // An int64 has number 4, and the maximum 2.
        // SAFETY: one element is there, and is nobody else's until this returns.
        let done = unsafe { tbcclAllReduce(memory, memory, 1, 4, 2, self.c, None) };
        assert_eq!(done, 0);
        data[0]
    }

    /// The time that so many calls take each way, by turns.
    fn times(&mut self, calls: u64) -> [Duration; WAYS] {
        let mut times = [Duration::ZERO; WAYS];
        for _ in 0..calls.div_ceil(TURN) {
            // Each in a loop of its own, that nothing is decided between calls.
            let start = Instant::now();
            (0..TURN).for_each(|_| _ = self.call_rust(0, 0));
            times[0] += start.elapsed();
            self.call(0, SWITCH);
            let start = Instant::now();
            (0..TURN).for_each(|_| _ = self.call_c(0));
            times[C] += start.elapsed();
            self.call(C, SWITCH);
            let start = Instant::now();
            (0..TURN).for_each(|_| _ = self.call_rust(1, 0));
            times[2] += start.elapsed();
            self.call(2, SWITCH);
            let start = Instant::now();
            (0..TURN).for_each(|_| _ = self.call_shared(0));
            times[SHARED] += start.elapsed();
            self.call(SHARED, SWITCH);
        }
        times.map(|time| time.mul_f64(calls as f64 / calls.next_multiple_of(TURN) as f64))
    }
}

impl Drop for Four {
    fn drop(&mut self) {
        // SAFETY: handles may be anything.
        assert_eq!(unsafe { tbcclCommDestroy(self.c) }, 0);
    }
}

fn made(call: impl FnOnce(Option<&mut MaybeUninit<tbcclComm_t>>) -> i32) -> tbcclComm_t {
    let mut comm = MaybeUninit::new(std::ptr::null_mut());
    assert_eq!(call(Some(&mut comm)), 0, "a communicator");
    // SAFETY: it was written at the start, and perhaps again since.
    unsafe { comm.assume_init() }
}

fn alone() -> Four {
    // As those that C has, without options.
    let rust = || Communicator::local(1, &Config::default()).expect("memory for a benchmark").remove(0);
    let first = rust();
    let c = made(|place| {
        let place = place.map_or(std::ptr::null_mut(), MaybeUninit::as_mut_ptr);
        // SAFETY: there is room for the handle of one rank.
        unsafe { tbcclCommInitAll(place, 1, null()) }
    });
    Four {
        rust: [first, rust()],
        c,
        shared: SharedCommunicator::new(rust()),
        options: CallOptions::default(),
    }
}

fn meet(ids: &[UniqueId; WAYS], rank: u32) -> Four {
    let config = Config { transport: Transport::Shm, ..Config::default() };
    let rust = |id| Communicator::from_unique_id(id, rank, 2, &config).expect("the other process");
    let first = rust(&ids[0]);
    // SAFETY: both are texts.
    let set = unsafe { tbcclParamSet(c"TRANSPORT".as_ptr(), c"shm".as_ptr()) };
    assert_eq!(set, 0);
    let id = tbcclUniqueId { internal: ids[C].as_bytes().map(|byte| byte as _) };
    // SAFETY: the place is there.
    let c = made(|place| unsafe { tbcclCommInitRank(place, 2, id, rank as i32) });
    let (second, shared) = (rust(&ids[2]), SharedCommunicator::new(rust(&ids[SHARED])));
    Four { rust: [first, second], c, shared, options: CallOptions::default() }
}

/// Starts the other process.
fn with_peer() -> (Four, Child) {
    let ids = [(); WAYS].map(|()| UniqueId::create().expect("a rendezvous"));
    let hex = |id: &UniqueId| id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    let peer = command.env(IDS, ids.each_ref().map(hex).concat()).stdout(Stdio::null());
    let peer = peer.spawn().expect("it starts");
    (meet(&ids, 0), peer)
}

/// The other process: calls whatever it is told to call.
fn peer(ids: &str) {
    let bytes: Vec<u8> = (0..ids.len() / 2)
        .map(|at| u8::from_str_radix(&ids[2 * at..2 * at + 2], 16).expect("digits"))
        .collect();
    let id = |at: usize| {
        let bytes = bytes[at * UniqueId::BYTES..][..UniqueId::BYTES].try_into().expect("four ids");
        UniqueId::from_bytes(bytes).expect("an id")
    };
    let mut four = meet(&[id(0), id(1), id(2), id(3)], 1);
    let mut way = 0;
    loop {
        match four.call(way, 0) {
            SWITCH => way = (way + 1) % WAYS,
            STOP => break,
            _ => {}
        }
    }
}

fn compare(c: &mut Criterion, name: &str, four: &mut Four) {
    let mut group = c.benchmark_group(name);
    group.bench_function("rust", |bencher| bencher.iter_custom(|calls| four.times(calls)[0]));
    group.bench_function("c", |bencher| bencher.iter_custom(|calls| four.times(calls)[C]));
    group.finish();
    let samples: Vec<[f64; WAYS]> = (0..400)
        .map(|_| four.times(TURN * 8).map(|time| time.as_secs_f64() * 1e9 / (TURN * 8) as f64))
        .collect();
    let median = |of: fn(&[f64; WAYS]) -> f64| {
        let mut values: Vec<f64> = samples.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let longer = median(|[first, c, second, _]| c - (first + second) / 2.0);
    let shared = median(|[first, _, second, shared]| shared - (first + second) / 2.0);
    let apart = median(|[first, _, second, _]| second - first);
    let _ = writeln!(
        std::io::stdout(),
        "{name}: C takes {longer:.1} ns longer (median); Rust for any thread {shared:.1} ns longer; the second one of Rust \
         {apart:.1} ns longer than the first\n"
    );
}

fn interfaces(c: &mut Criterion) {
    compare(c, "alone", &mut alone());
    let (mut four, mut peer) = with_peer();
    compare(c, "shm", &mut four);
    four.call(0, STOP);
    drop(four);
    assert!(peer.wait().expect("our child").success());
}

fn quick() -> Criterion {
    let brief = Criterion::default().warm_up_time(Duration::from_millis(200));
    brief.measurement_time(Duration::from_secs(1)).sample_size(50).without_plots()
}

criterion_group! { name = c_calls; config = quick(); targets = interfaces }

fn main() {
    if let Ok(ids) = std::env::var(IDS) {
        return peer(&ids);
    }
    c_calls();
    Criterion::default().configure_from_args().final_summary();
}
