//! A thousand ranks as threads of one process: they come together, and take no more memory than they should.
//!
//! In a program of its own, since it looks at the memory of the whole process.

use std::{fs, thread};
use tbccl::{Communicator, Config};

/// Bytes of memory that this process has in use.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("on Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line of it");
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse().expect("a number");
    kilobytes << 10
}

/// Bytes that each of so many ranks has in use, after two barriers, when its thread is still there.
fn bytes_per_rank(ranks: u32) -> u64 {
    let before = resident();
    let communicators = Communicator::local(ranks, &Config::default()).expect("address space");
    let all_through = std::sync::Barrier::new(ranks as usize + 1);
    let after = thread::scope(|scope| {
        for mut comm in communicators {
            let all_through = &all_through;
            let run = move || {
                comm.barrier().expect("all take part");
                comm.barrier().expect("all take part");
                all_through.wait();
                all_through.wait();
            };
            thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, run).expect("a thread");
        }
        all_through.wait();
        let after = resident();
        all_through.wait();
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
    // What a rank knows of each other rank, its name above all, is some 200 bytes; links and rings are made when they are
    // used. If each rank held all pairs, or links to all others, it would be tens of megabytes, or one.
    assert!(each < 512 << 10, "{each} bytes per rank");
}
