//! The least time of an exchange over a software device: `cargo bench -p benches --bench rdma_floor`, with
//! the latency in microseconds and the rate in Gb/s of a cable, or without for an ideal one:
//! `... --bench rdma_floor -- 5 75`.
//!
//! Two processes are the ranks. In each round both send a message, post the receive of the next round and
//! wait for the other's message. `untouched` does nothing else, `added` adds both messages, as an
//! `all_reduce` must. `half` is half a round trip. A library that takes as long as `untouched` would have no
//! protocol at all and copy nothing.
//!
//! Messages are not divided, so no parts of one overlap.

#![allow(clippy::print_stdout, reason = "a report is what this prints")]

mod plain_verbs;

use plain_verbs::{End, PATIENCE, in_fabric, library};
use std::{
    env,
    error::Error,
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};
use transport::verbs::{Gid, Library, RemoteAddress};

/// Two nodes with a cable, which is ideal unless arguments follow.
const FABRIC: &str = "
[[node]]
name = 'left'
device = [{ name = 'rdma_en2', profile = 'apple-tb5' }]
[[node]]
name = 'right'
device = [{ name = 'rdma_en2', profile = 'apple-tb5' }]
[[cable]]
ends = ['left/rdma_en2', 'right/rdma_en2']
";
const NODES: [&str; 2] = ["left", "right"];

const SIZES: [usize; 8] = [64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1 << 20];
const SAMPLES: usize = 201;
/// Bytes of the rounds of a sample, about, and most rounds.
const SAMPLE_BYTES: usize = 1 << 20;
const MOST_ROUNDS: usize = 50;

/// Work of a rank in a round.
#[derive(Clone, Copy)]
enum Round {
    Untouched,
    Added,
    PingPong,
}

impl Round {
    /// Makes a round, whose receive is posted already; the receive of the next one is posted while the
    /// message travels, unless this round is the last.
    fn run(self, rank: usize, end: &mut End, sum: &mut [f32], is_last: bool) {
        let len = size_of_val(sum);
        let answers = matches!(self, Round::PingPong) && rank == 1;
        if answers {
            end.take();
        }
        end.send(len);
        if !is_last {
            end.receive(len);
        }
        if !answers {
            end.take();
        }
        if matches!(self, Round::Added) {
            end.add_to(sum);
        }
    }
}

/// Returns the median of the microseconds that rounds take.
fn median(rank: usize, end: &mut End, len: usize, round: Round) -> f64 {
    let rounds = (SAMPLE_BYTES / len).clamp(1, MOST_ROUNDS);
    let mut sum = vec![0.0; len / 4];
    end.receive(len);
    let sample = |sample| {
        let began = Instant::now();
        for number in 1..=rounds {
            let is_last = sample + 1 == 2 * SAMPLES && number == rounds;
            round.run(rank, end, &mut sum, is_last);
        }
        began.elapsed().as_secs_f64() * 1e6 / rounds as f64
    };
    let mut samples: Vec<f64> = (0..2 * SAMPLES).map(sample).collect();
    // The first half is for caches and clocks.
    samples.drain(..SAMPLES);
    samples.sort_by(f64::total_cmp);
    samples[SAMPLES / 2]
}

/// Exchanges the addresses of both ends by files in the folder of the process.
fn exchange(rank: usize, end: &End) -> Result<RemoteAddress, Box<dyn Error>> {
    let own = end.address();
    let bytes = [&own.qp.to_ne_bytes()[..], &own.gid.0[..]].concat();
    let unfinished = format!("unfinished-{rank}");
    fs::write(&unfinished, bytes)?;
    fs::rename(unfinished, rank.to_string())?;
    let (began, theirs) = (Instant::now(), (1 - rank).to_string());
    while !Path::new(&theirs).exists() {
        if began.elapsed() > PATIENCE {
            return Err("the other process does not answer".into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    let bytes = fs::read(theirs)?;
    let (qp, gid) = bytes.split_first_chunk().ok_or("a short address")?;
    Ok(RemoteAddress { qp: u32::from_ne_bytes(*qp), gid: Gid(gid.try_into()?), ..own })
}

fn measure(library: &Path) -> Result<(), Box<dyn Error>> {
    let rank = NODES.iter().position(|node| env::var("SOFTRDMA_NODE").is_ok_and(|name| name == *node));
    let rank = rank.ok_or("no node")?;
    let mut end = End::new(&Library::load(Some(library))?, "rdma_en2")?;
    let other = exchange(rank, &end)?;
    end.connect(&other)?;
    if rank == 0 {
        println!("   bytes  untouched us   added us    half us");
    }
    for len in SIZES {
        let [untouched, added, trip] =
            [Round::Untouched, Round::Added, Round::PingPong].map(|round| median(rank, &mut end, len, round));
        if rank == 0 {
            println!("{len:>8} {untouched:>13.2} {added:>10.2} {:>10.2}", trip / 2.0);
        }
    }
    // The last message of this rank may be on its way.
    thread::sleep(Duration::from_millis(100));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(library) = library() {
        return measure(&library);
    }
    let cable: Vec<f64> = env::args().filter_map(|arg| arg.parse().ok()).collect();
    match cable[..] {
        [latency, rate] => {
            let link = format!("[link]\nlatency_us = {latency}\nbandwidth_gbps = {rate}\n");
            in_fabric(&(link + FABRIC), &NODES)
        }
        _ => in_fabric(FABRIC, &NODES),
    }
}
