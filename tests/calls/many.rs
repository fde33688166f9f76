//! A thousand ranks as threads of one process, whose memory stays proportional to their number.

use std::{fs, thread};
use tbccl::{Communicator, Config};

/// Returns the resident bytes of this process.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("on Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line of it");
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse().expect("a number");
    kilobytes << 10
}

/// Returns the resident bytes per rank of a job of `ranks` threads, after two barriers and before the threads
/// end.
fn bytes_per_rank(ranks: u32) -> u64 {
    let before = resident();
    let communicators = Communicator::local(ranks, &Config::default()).expect("address space");
    let barrier = std::sync::Barrier::new(ranks as usize + 1);
    let after = thread::scope(|scope| {
        for mut comm in communicators {
            let barrier = &barrier;
            let run = move || {
                comm.barrier().expect("all take part");
                comm.barrier().expect("all take part");
                barrier.wait();
                barrier.wait();
            };
            thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, run).expect("a thread");
        }
        barrier.wait();
        let after = resident();
        barrier.wait();
        after
    });
    let each = after.saturating_sub(before) / u64::from(ranks);
    eprintln!("{ranks} ranks: {} KiB each, threads and all", each >> 10);
    each
}

#[test]
fn a_thousand_ranks_take_memory_in_proportion() {
    bytes_per_rank(16);
    let each = bytes_per_rank(1024);
    // A rank stores about 200 bytes per other rank, mainly its name; links and rings are created on first
    // use. If each rank stored all pairs, it would take tens of megabytes; with links to all others, one.
    assert!(each < 512 << 10, "{each} bytes per rank");
}
