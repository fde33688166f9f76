//! The measurements of docs/softrdma.md: Debian's perftest on the software device, compared with a plain copy
//! by one core.
//!
//! A message can't be faster than the transfer of a cache line between two cores. On virtual machines that
//! time may change fivefold within a minute, so it is measured too.
//!
//! Each round measures everything once, so that other load affects all measurements alike; the program prints
//! medians over the rounds. The two processes get a core each. Run as root with `nice -n -20` to keep other
//! processes off these cores.

#[path = "../tests/common/mod.rs"]
mod common;

use common::Fabric;
use rustix::{
    process::{getpriority_process, setsid},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use std::{
    fs,
    hint::black_box,
    io::{self, Write},
    process::ExitCode,
    sync::atomic::{
        AtomicU32,
        Ordering::{Acquire, Release},
    },
    thread,
    time::Instant,
};

/// perftest programs, their arguments, and the column of the result.
const RUNS: [(&str, &[&str], Column); 5] = [
    ("ib_write_lat", &["-s", "2", "-n", "20000"], Column::MedianLatency),
    ("ib_send_lat", &["-s", "2", "-n", "20000"], Column::MedianLatency),
    ("ib_read_lat", &["-s", "2", "-n", "20000"], Column::MedianLatency),
    ("ib_write_bw", &["-s", "65536", "-n", "50000", "--report_gbits"], Column::Bandwidth),
    ("ib_send_bw", &["-s", "65536", "-n", "50000", "--report_gbits"], Column::Bandwidth),
];

/// Ways to move pages between processes.
const METHODS: [&str; 2] = ["shared pages", "process_vm"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    /// Median latency in microseconds.
    MedianLatency,
    /// Average bandwidth in gigabits per second.
    Bandwidth,
}

impl Column {
    fn read(self, text: &str) -> Option<f64> {
        let is_result = |line: &&str| {
            line.split_ascii_whitespace().count() >= 5
                && line.split_ascii_whitespace().all(|word| word.parse::<f64>().is_ok())
        };
        let line = text.lines().find(is_result)?;
        let column = |index| line.split_ascii_whitespace().nth(index)?.parse::<f64>().ok();
        match self {
            Column::MedianLatency => column(4),
            Column::Bandwidth => Some(column(3)? / 8.0),
        }
    }

    fn unit(self) -> &'static str {
        if self == Column::MedianLatency { "us" } else { "GB/s" }
    }
}

/// Returns the CPUs that this process may use.
fn allowed_cpus() -> CpuSet {
    sched_getaffinity(None).expect("the kernel tells")
}

/// Pins the thread to CPU number `which` of a set, or to the whole set if it has fewer CPUs.
fn pin_to(all: &CpuSet, which: usize) {
    let mut one = CpuSet::new();
    let number = (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu)).nth(which);
    number.into_iter().for_each(|cpu| one.set(cpu));
    sched_setaffinity(None, if number.is_some() { &one } else { all }).expect("it is allowed");
}

/// Moves this process to a session of its own, with the priority of this process.
///
/// Linux may schedule sessions first (autogroup); a priority then counts only within a session. Fails only
/// without permission.
fn raise_session_priority() {
    if let (Ok(_), Ok(nice)) = (setsid(), getpriority_process(None)) {
        let _ = fs::write("/proc/self/autogroup", nice.to_string());
    }
}

/// Returns the bandwidth of repeated copies of 64 KiB, the message size of the bandwidth tests, in GB/s.
fn copy_bandwidth() -> f64 {
    const BYTES: usize = 64 * 1024;
    const TIMES: u32 = 50_000;
    /// Page-aligned like perftest's buffers; an unaligned copy may take 50 % longer.
    #[repr(align(4096))]
    struct Buffer([u8; BYTES]);
    let (from, mut to) = (Box::new(Buffer([1; BYTES])), Box::new(Buffer([0; BYTES])));
    let mut copy = || black_box(&mut to.0).copy_from_slice(black_box(&from.0));
    (0..TIMES / 10).for_each(|_| copy());
    let start = Instant::now();
    (0..TIMES).for_each(|_| copy());
    BYTES as f64 * f64::from(TIMES) / start.elapsed().as_secs_f64() / 1e9
}

/// Returns the one-way latency of a cache line between two CPUs, in microseconds: half a round trip.
fn cache_line_latency(all: &CpuSet) -> f64 {
    const TIMES: u32 = 50_000;
    #[derive(Default)]
    #[repr(align(128))]
    struct Line(AtomicU32);
    let [there, back] = [Line::default(), Line::default()];
    let await_turn = |line: &Line, turn| {
        let mut polls = 0u32;
        while line.0.load(Acquire) != turn {
            polls += 1;
            // Lets the other thread run on machines with one CPU.
            if polls.is_multiple_of(10_000) {
                thread::yield_now();
            }
        }
    };
    let took = thread::scope(|scope| {
        scope.spawn(|| {
            pin_to(all, 0);
            (1..=TIMES).for_each(|turn| {
                await_turn(&there, turn);
                back.0.store(turn, Release);
            });
        });
        pin_to(all, 1);
        let start = Instant::now();
        (1..=TIMES).for_each(|turn| {
            there.0.store(turn, Release);
            await_turn(&back, turn);
        });
        start.elapsed()
    });
    took.as_secs_f64() * 1e6 / f64::from(2 * TIMES)
}

/// Runs perftest once, with each end on a CPU of its own.
fn perftest(fabric: &Fabric, all: &CpuSet, (program, arguments, column): (&str, &[&str], Column)) -> f64 {
    let arguments = [&["-F"], arguments].concat();
    let [_, client] = fabric.pair_with_setup(program, &arguments, |end| pin_to(all, end));
    sched_setaffinity(None, all).expect("they are ours");
    let result = client.succeeded.then(|| column.read(&client.text)).flatten();
    result.unwrap_or_else(|| panic!("{program} {arguments:?} failed\n{}", client.text))
}

fn median(results: &mut [f64]) -> f64 {
    results.sort_by(f64::total_cmp);
    results[results.len() / 2]
}

/// Returns the number of rounds from the command line, to which cargo adds `--bench`.
fn rounds() -> Option<usize> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Some(7),
        ["--rounds", number] => number.parse().ok().filter(|&number| number > 0),
        _ => None,
    }
}

fn main() -> ExitCode {
    let Some(rounds) = rounds() else {
        let _ = writeln!(io::stderr(), "usage: cargo bench -p tbccl-softrdma [-- --rounds N]");
        return ExitCode::from(2);
    };
    raise_session_priority();
    let all = allowed_cpus();
    let fabrics = [Fabric::new(None).with_shared_pages(), Fabric::new(None)];
    let (mut copies, mut lines) = (Vec::new(), Vec::new());
    let mut results = vec![[Vec::new(), Vec::new()]; RUNS.len()];
    for _ in 0..rounds {
        lines.push(cache_line_latency(&all));
        copies.push(copy_bandwidth());
        for (run, results) in RUNS.into_iter().zip(&mut results) {
            for (fabric, results) in fabrics.iter().zip(results) {
                results.push(perftest(fabric, &all, run));
            }
        }
    }
    let mut out = io::stdout().lock();
    let references = (median(&mut lines), median(&mut copies));
    let _ = report(&mut out, rounds, references, &mut results);
    ExitCode::SUCCESS
}

fn report(
    out: &mut impl Write,
    rounds: usize,
    (line, copy): (f64, f64),
    results: &mut [[Vec<f64>; 2]],
) -> io::Result<()> {
    writeln!(out, "medians of {rounds} rounds; bandwidths also as a percentage of a copy by one core")?;
    writeln!(out, "{:<24} {:>20} {:>20}", "", METHODS[0], METHODS[1])?;
    for ((program, arguments, column), results) in RUNS.into_iter().zip(results) {
        write!(out, "{:<24}", format!("{program} {} B", arguments[1]))?;
        for results in results {
            let result = median(results);
            let part = match column {
                Column::MedianLatency => String::new(),
                Column::Bandwidth => format!(" {:3.0} %", result / copy * 100.0),
            };
            write!(out, " {:>20}", format!("{result:.2} {}{part}", column.unit()))?;
        }
        writeln!(out)?;
    }
    writeln!(out, "{:<24} {:>20}", "cache line, one way", format!("{line:.2} us"))?;
    writeln!(out, "{:<24} {:>20}", "copy 65536 B, one core", format!("{copy:.2} GB/s"))
}
