//! Instructions of a small `all_reduce` by Rust, with a trace, and by C, and of a small message, between two
//! processes over shared memory.
//!
//! Rank 0 runs under Valgrind, rank 1 does not. So rank 1 is always ahead, and the counts contain no wait.
//! They depend on the compiler a little: a change of a few percent means nothing.
//!
//! # Safety
//! Arguments of C functions are valid and outlive the call; a handle is written before it is read.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::{
    ffi::c_void,
    mem::MaybeUninit,
    process::{Command, Stdio},
    ptr::null_mut,
};
use support::{fewest_instructions, missing};
use tbccl::{Communicator, Config, Rank, ReduceOp, Transport, UniqueId};
use tbccl_c::{
    collectives::tbcclAllReduce,
    comm::{tbcclCommDestroy, tbcclCommInitRank},
    comm_handle::tbcclComm_t,
    params::tbcclParamSet,
    unique_id::tbcclUniqueId,
};

/// Calls that are counted together, and how often.
const CALLS: u64 = 16;
const COUNTS: u64 = 100;

/// Runs of which the fewest instructions count. On a busy machine rank 1 may not get ahead, and rank 0 waits.
const ATTEMPTS: u32 = 4;

/// The way of a rank, and the unique id that rank 1 gets.
const WAY: &str = "WAY_OF_THE_TEST";
const ID: &str = "ID_OF_THE_TEST";

/// Most instructions of a call in the dev profile, and what they were when this was written. Raise them only
/// for a reason.
const MOST: [(&str, u64, u64); 4] =
    [("rust", 2250, 2110), ("traced", 5000, 4842), ("c", 2600, 2442), ("message", 1500, 1422)];

#[test]
fn small_calls_take_few_instructions() {
    for (way, most, before) in MOST {
        let mut program = Command::new(std::env::current_exe().expect("this program"));
        program.args(["--exact", "play", "--nocapture"]).env(WAY, way);
        let mut per_call = u64::MAX;
        for _ in 0..ATTEMPTS {
            let Some(all) = fewest_instructions(&program, "instructions::counted_calls") else {
                return missing("Valgrind is missing; tools/install-missing installs it");
            };
            per_call = per_call.min(all / CALLS);
            if per_call <= most {
                break;
            }
        }
        eprintln!("{way}: {per_call} instructions per call, {before} before");
        assert!(per_call <= most, "{way}: {per_call} instructions per call, {before} before");
    }
}

/// Plays rank 0 or rank 1, if this process is one; not a test.
#[test]
fn play() {
    let Ok(way) = std::env::var(WAY) else { return };
    let Ok(id) = std::env::var(ID) else {
        let id = UniqueId::create().expect("a rendezvous");
        let hex: String = id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let mut peer = Command::new(std::env::current_exe().expect("this program"));
        peer.args(["--exact", "play"]).env(ID, hex).stdout(Stdio::null());
        let mut peer = peer.spawn().expect("it starts");
        make_calls(&way, &id, 0);
        assert!(peer.wait().expect("our child").success());
        return;
    };
    let byte = |at: usize| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).expect("digits");
    let bytes: [u8; UniqueId::BYTES] = std::array::from_fn(byte);
    make_calls(&way, &UniqueId::from_bytes(bytes).expect("an id"), 1);
}

fn make_calls(way: &str, id: &UniqueId, rank: u32) {
    if way == "rust" || way == "traced" {
        let mut config = Config { transport: Transport::Shm, slab_bytes: Some(1 << 20), ..Config::default() };
        let folder = tempfile::tempdir().expect("a folder");
        config.trace.folder = (way == "traced").then(|| folder.path().to_owned());
        let mut comm = Communicator::from_unique_id(id, rank, 2, &config).expect("the other process");
        return repeat(|data| comm.all_reduce_in_place(data, ReduceOp::Sum).expect("a result"));
    }
    if way == "message" {
        return exchange_messages(id, rank);
    }
    for (name, value) in [(c"TRANSPORT", c"shm"), (c"SLAB_BYTES", c"1M")] {
        // SAFETY: both arguments are NUL-terminated strings.
        assert_eq!(unsafe { tbcclParamSet(name.as_ptr(), value.as_ptr()) }, 0);
    }
    let id = tbcclUniqueId { internal: id.as_bytes().map(|byte| byte as _) };
    let mut comm = MaybeUninit::<tbcclComm_t>::new(null_mut());
    // SAFETY: `comm` has room for a handle.
    assert_eq!(unsafe { tbcclCommInitRank(Some(&mut comm), 2, id, rank as i32) }, 0);
    // SAFETY: it was initialized with null, and has been overwritten since.
    let comm = unsafe { comm.assume_init() };
    repeat(|data| {
        let memory: *mut c_void = data.as_mut_ptr().cast();
        // DType 4 is int64, operation 0 is the sum. SAFETY: the memory has two elements, and nothing else
        // uses it until the call returns.
        let done = unsafe { tbcclAllReduce(memory, memory, 2, 4, 0, comm, None) };
        assert_eq!(done, 0);
    });
    // SAFETY: the handle is used no more.
    assert_eq!(unsafe { tbcclCommDestroy(comm) }, 0);
}

/// Lets each rank receive for half of the counted calls and send for the other half, so that rank 0 finds all
/// messages of rank 1.
fn exchange_messages(id: &UniqueId, rank: u32) {
    let config = Config { transport: Transport::Shm, slab_bytes: Some(1 << 20), ..Config::default() };
    let mut comm = Communicator::from_unique_id(id, rank, 2, &config).expect("the other process");
    let (peer, mut made) = (Rank(1 - rank), 0);
    repeat(|data| {
        let is_first_half = made % CALLS < CALLS / 2;
        made += 1;
        let done = if is_first_half == (rank == 0) { comm.recv(data, peer) } else { comm.send(data, peer) };
        done.expect("the other process");
    });
}

fn repeat(mut call: impl FnMut(&mut [i64; 2])) {
    let mut data = [1, 2];
    let mut call = || call(&mut data);
    // The first calls find plans, and fill caches.
    (0..CALLS).for_each(|_| call());
    for _ in 0..COUNTS {
        counted_calls(&mut call);
    }
    // So that rank 1 does not close before rank 0 has counted.
    call();
}

#[inline(never)]
fn counted_calls(call: &mut dyn FnMut()) {
    for _ in 0..CALLS {
        call();
    }
}
