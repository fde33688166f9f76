//! What the C interface costs over the Rust one: `cargo bench -p benches --bench c_calls`.
//!
//! An in-place `all_reduce` of 8 bytes, again and again:
//!
//! - `alone/rust`, `alone/c`: on a communicator of one rank, which has nobody to wait for. What C takes longer is what its
//!   interface costs.
//! - `shm/rust`, `shm/c`: with another process, over shared memory.
//!
//! Both ways are tried by turns, a few calls each, so that what changes on the machine changes both. The aim is that C takes
//! less than 20 ns longer.
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
use tbccl::{Communicator, Config, ReduceOp, Transport, UniqueId};
use tbccl_c::{
    collectives::tbcclAllReduce,
    comm::{tbcclComm_t, tbcclCommDestroy, tbcclCommInitAll, tbcclCommInitRank},
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

/// Two communicators with the same ranks.
struct Pair {
    rust: Communicator,
    c: tbcclComm_t,
}

impl Pair {
    fn call_rust(&mut self, word: i64) -> i64 {
        let mut data = [word];
        self.rust.all_reduce_in_place(&mut data, ReduceOp::Max).expect("a result");
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

    /// The time that so many calls take of each, by turns: by Rust and by C.
    fn times(&mut self, calls: u64) -> (Duration, Duration) {
        let (mut rust, mut c) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..calls.div_ceil(TURN) {
            let start = Instant::now();
            (0..TURN).for_each(|_| {
                self.call_rust(0);
            });
            rust += start.elapsed();
            self.call_rust(SWITCH);
            let start = Instant::now();
            (0..TURN).for_each(|_| {
                self.call_c(0);
            });
            c += start.elapsed();
            self.call_c(SWITCH);
        }
        let share = |time: Duration| time.mul_f64(calls as f64 / calls.next_multiple_of(TURN) as f64);
        (share(rust), share(c))
    }
}

impl Drop for Pair {
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

fn alone() -> Pair {
    let config = Config { slab_bytes: Some(1 << 20), reduce_threads: Some(1), ..Config::default() };
    let rust = Communicator::local(1, &config).expect("memory for a benchmark").remove(0);
    Pair {
        rust,
        c: made(|place| {
            let place = place.map_or(std::ptr::null_mut(), MaybeUninit::as_mut_ptr);
            // SAFETY: there is room for the handle of one rank.
            unsafe { tbcclCommInitAll(place, 1, null()) }
        }),
    }
}

fn meet(ids: &[UniqueId; 2], rank: u32) -> Pair {
    let config = Config { transport: Transport::Shm, ..Config::default() };
    let rust = Communicator::from_unique_id(&ids[0], rank, 2, &config).expect("the other process");
    // SAFETY: both are texts.
    let set = unsafe { tbcclParamSet(c"TRANSPORT".as_ptr(), c"shm".as_ptr()) };
    assert_eq!(set, 0);
    let id = tbcclUniqueId { internal: ids[1].as_bytes().map(|byte| byte as _) };
    // SAFETY: the place is there.
    Pair { rust, c: made(|place| unsafe { tbcclCommInitRank(place, 2, id, rank as i32) }) }
}

/// Starts the other process.
fn with_peer() -> (Pair, Child) {
    let ids = [UniqueId::create().expect("a rendezvous"), UniqueId::create().expect("a rendezvous")];
    let hex = |id: &UniqueId| id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    let peer = command.env(IDS, format!("{}{}", hex(&ids[0]), hex(&ids[1]))).stdout(Stdio::null());
    let peer = peer.spawn().expect("it starts");
    (meet(&ids, 0), peer)
}

/// The other process: calls whatever it is told to call.
fn peer(ids: &str) {
    let bytes: Vec<u8> = (0..ids.len() / 2)
        .map(|at| u8::from_str_radix(&ids[2 * at..2 * at + 2], 16).expect("digits"))
        .collect();
    let id = |at: usize| {
        let bytes = bytes[at * UniqueId::BYTES..][..UniqueId::BYTES].try_into().expect("two ids");
        UniqueId::from_bytes(bytes).expect("an id")
    };
    let mut pair = meet(&[id(0), id(1)], 1);
    let mut by_c = false;
    loop {
        match if by_c { pair.call_c(0) } else { pair.call_rust(0) } {
            SWITCH => by_c = !by_c,
            STOP => break,
            _ => {}
        }
    }
}

fn compare(c: &mut Criterion, name: &str, pair: &mut Pair) {
    let mut group = c.benchmark_group(name);
    group.bench_function("rust", |bencher| bencher.iter_custom(|calls| pair.times(calls).0));
    group.bench_function("c", |bencher| bencher.iter_custom(|calls| pair.times(calls).1));
    group.finish();
    let mut differences: Vec<f64> = (0..200)
        .map(|_| {
            let (rust, c) = pair.times(TURN * 8);
            (c.as_secs_f64() - rust.as_secs_f64()) * 1e9 / (TURN * 8) as f64
        })
        .collect();
    differences.sort_by(f64::total_cmp);
    let median = differences[differences.len() / 2];
    let _ = writeln!(std::io::stdout(), "{name}: C takes {median:.1} ns longer (median)\n");
}

fn interfaces(c: &mut Criterion) {
    compare(c, "alone", &mut alone());
    let (mut pair, mut peer) = with_peer();
    compare(c, "shm", &mut pair);
    pair.call_rust(STOP);
    drop(pair);
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
