//! Latency of messages of 8 bytes between two threads: `cargo bench -p benches --bench messages`.
//!
//! Compares tagged messages (`p2p`) with blocking calls (`send`, `recv`). Each row is a run: the medians of
//! half a round trip.
//!
//! # Safety
//! A message's memory is borrowed until its request is complete; a wait that exceeds its time limit ends the
//! process.

#![allow(clippy::print_stdout, reason = "a report is what this prints")]

use std::{
    process, thread,
    time::{Duration, Instant},
};
use tbccl::{Communicator, Config, P2p, P2pRequest, Rank};

/// Runs of both measurements.
const RUNS: usize = 5;

/// Samples of a run, each of `ROUNDS` round trips.
const SAMPLES: usize = 100;
const ROUNDS: u32 = 100;

/// Far longer than any wait.
const TIMEOUT: Duration = Duration::from_secs(60);

fn finish(request: &P2pRequest) {
    request.wait(Some(TIMEOUT)).unwrap_or_else(|| process::abort()).expect("a message");
}

/// Sends 8 bytes and receives 8 bytes by tagged messages; rank 1 in the opposite order.
fn by_p2p(p2p: &P2p, word: &mut [u8; 8]) {
    let me = p2p.rank().0;
    let peer = Rank(1 - me);
    for sends in [me == 0, me != 0] {
        // SAFETY: see the module.
        let request = unsafe {
            if sends {
                p2p.send(peer, 0, 0, word.as_ptr(), word.len())
            } else {
                p2p.recv(Some(peer), 0, Some(0), word.as_mut_ptr(), word.len())
            }
        };
        finish(&request.expect("a request"));
    }
}

/// Sends 8 bytes and receives 8 bytes by blocking calls; rank 1 in the opposite order.
fn by_calls(comm: &mut Communicator, word: &mut [u8; 8]) {
    let me = comm.rank().0;
    let peer = Rank(1 - me);
    for sends in [me == 0, me != 0] {
        let result = if sends { comm.send(&word[..], peer) } else { comm.recv(&mut word[..], peer) };
        result.expect("a message");
    }
}

/// Returns the median of half a round trip, in nanoseconds.
fn median(mut round_trip: impl FnMut()) -> f64 {
    let sample = |_| {
        let began = Instant::now();
        (0..ROUNDS).for_each(|_| round_trip());
        began.elapsed().as_nanos() as f64 / f64::from(2 * ROUNDS)
    };
    let mut samples: Vec<f64> = (0..SAMPLES).map(sample).collect();
    samples.sort_by(f64::total_cmp);
    samples[SAMPLES / 2]
}

fn run_rank(mut comm: Communicator, config: &Config) {
    let (is_first, mut word) = (comm.rank() == Rank(0), [0; 8]);
    let parent = comm.split(Some(0), 0, config).expect("both ranks").expect("a communicator");
    let p2p = P2p::new(parent).expect("tagged messages");
    for _ in 0..RUNS {
        let tagged = median(|| by_p2p(&p2p, &mut word));
        let blocking = median(|| by_calls(&mut comm, &mut word));
        if is_first {
            println!("{tagged:>10.0}  {blocking:>10.0}  {:>6.2}", tagged / blocking);
        }
    }
}

fn main() {
    let config = Config { slab_bytes: Some(64 << 20), ..Config::default() };
    println!("{:>10}  {:>10}  {:>6}", "p2p (ns)", "calls (ns)", "ratio");
    thread::scope(|scope| {
        for comm in Communicator::local(2, &config).expect("memory for a benchmark") {
            let config = &config;
            scope.spawn(move || run_rank(comm, config));
        }
    });
}
