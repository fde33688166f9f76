//! Time and memory for ranks to join a communicator: `cargo bench -p benches --bench start_up`.
//!
//! The ranks are threads of this process and join over TCP as separate processes would: through the
//! rendezvous, with handshakes, and connected to their neighbor before any rank proceeds. The time runs from
//! the first call until all calls have returned. The memory is the growth of this process's resident set,
//! including the rendezvous, divided by the number of ranks. The benchmark needs ten descriptors per rank
//! (`ulimit -n`).
//!
//! `RANKS="16 64"` sets the numbers of ranks; `ROUNDS` sets the repetitions of each (3).

#![allow(clippy::print_stdout, reason = "a report is what this prints")]

use std::{
    env, fs,
    sync::{Barrier, Mutex},
    thread,
    time::{Duration, Instant},
};
use tbccl::{Communicator, Config, TcpOptions, Transport, UniqueId};

/// The measurements of one start.
struct Start {
    duration: Duration,
    /// Bytes per rank, on systems that report it.
    memory: Option<u64>,
}

/// Returns the resident bytes of this process, on systems that report them.
fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Has `ranks` ranks join and leave.
fn start(ranks: u32) -> Result<Start, String> {
    let config = Config {
        transport: Transport::Tcp,
        timeout: Duration::from_secs(120),
        tcp: TcpOptions {
            interface: Some("127.0.0.1".parse().expect("an address")),
            ..TcpOptions::default()
        },
        slab_bytes: Some(1 << 20),
        reduce_threads: Some(1),
        ..Config::default()
    };
    let before = resident();
    let id = UniqueId::create().map_err(|error| error.to_string())?;
    let (all_joined, measured) = (Barrier::new(ranks as usize + 1), Barrier::new(ranks as usize + 1));
    let failed = Mutex::new(None);
    let began = Instant::now();
    let start = thread::scope(|scope| {
        for rank in 0..ranks {
            let (id, config, all_joined, measured, failed) = (&id, &config, &all_joined, &measured, &failed);
            let run = move || {
                let made = Communicator::from_unique_id(id, rank, ranks, config);
                all_joined.wait();
                measured.wait();
                if let Err(error) = made {
                    failed.lock().expect("no panics").get_or_insert(error.to_string());
                }
            };
            thread::Builder::new().stack_size(512 << 10).spawn_scoped(scope, run).expect("a thread");
        }
        all_joined.wait();
        let duration = began.elapsed();
        let memory = resident().zip(before).map(|(now, then)| now.saturating_sub(then) / u64::from(ranks));
        measured.wait();
        Start { duration, memory }
    });
    failed.into_inner().expect("no panics").map_or(Ok(start), Err)
}

fn main() {
    let numbers = env::var("RANKS").unwrap_or_else(|_| "16 64 256 1024".to_owned());
    let rounds = env::var("ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3usize).max(1);
    println!(
        "{:>6}  {:>10}  {:>10}  {:>10}  {:>12}",
        "ranks", "median", "shortest", "longest", "memory/rank"
    );
    println!("{:>6}  {:>10}  {:>10}  {:>10}  {:>12}", "", "(ms)", "(ms)", "(ms)", "(KiB)");
    for ranks in numbers.split_whitespace().filter_map(|word| word.parse::<u32>().ok()) {
        let starts: Result<Vec<Start>, String> = (0..rounds).map(|_| start(ranks)).collect();
        let mut starts = match starts {
            Ok(starts) => starts,
            Err(why) => {
                println!("{ranks:>6}  not measured: {why}");
                continue;
            }
        };
        // Only the first start allocates memory: later ones reuse it.
        let memory = starts[0].memory.map_or_else(|| "unknown".to_owned(), |bytes| (bytes >> 10).to_string());
        starts.sort_by_key(|start| start.duration);
        let millis = |at: usize| format!("{:.1}", starts[at].duration.as_secs_f64() * 1e3);
        let (median, shortest, longest) = (millis(rounds / 2), millis(0), millis(rounds - 1));
        println!("{ranks:>6}  {median:>10}  {shortest:>10}  {longest:>10}  {memory:>12}");
    }
    println!("# of {rounds} starts; all ranks are threads of one process and share its cores");
}
