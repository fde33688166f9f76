//! Cost of a message over a software device, without any wait: `cargo bench -p benches --bench
//! rdma_messages`.
//!
//! Both ends are in one thread, which sends a message in each direction and receives both. So the time of a
//! round is processor time of both ends, without the latency between cores. `device` does the same with
//! nothing but verbs: a post of each send, a poll that finds each receive, and a new receive for each. The
//! difference is the cost of tbccl's protocol. Each number is the median of the samples, in nanoseconds per
//! message.
//!
//! `cargo bench -p benches --bench rdma_messages -- 8 100000` makes 100,000 rounds of 8 bytes by links only,
//! for a profiler.

#![allow(clippy::print_stdout, reason = "a report is what this prints")]

mod plain_verbs;

use plain_verbs::{End, in_fabric, library};
use std::{env, error::Error, path::Path, time::Instant};
use transport::{
    Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, Sink, TransportError,
    driver::{
        Endpoint,
        verbs::{VerbsConfig, VerbsEndpoint},
    },
    memory::{Span, SpanMut},
    verbs::Library,
};

/// A device of each kind, connected to itself.
const FABRIC: &str = "
[[node]]
name = 'a'
device = [{ name = 'apple-tb5', profile = 'apple-tb5' }, { name = 'ib', profile = 'ib' }]
[[cable]]
ends = ['a/apple-tb5', 'a/apple-tb5']
[[cable]]
ends = ['a/ib', 'a/ib']
";

const SIZES: [usize; 6] = [8, 64, 1024, 4032, 16_384, 65_536];
const SAMPLES: usize = 41;
const ROUNDS: usize = 500;

struct CopySink<'a>(&'a mut [u8]);

impl Sink for CopySink<'_> {
    fn write(&mut self, offset: usize, data: Span<'_>) {
        SpanMut::from(&mut *self.0).sub(offset, data.len()).copy_from(data);
    }

    fn destination(&mut self) -> Option<SpanMut<'_>> {
        Some(SpanMut::from(&mut *self.0))
    }
}

/// A link, and the endpoint that it belongs to.
type OpenLink = (Box<dyn Link>, VerbsEndpoint);

/// Two links that are connected to each other.
fn links(library: &Path, device: &str) -> Result<[OpenLink; 2], TransportError> {
    let to = vec![device.to_owned()];
    let config = VerbsConfig {
        library: Some(library.to_owned()),
        matrix: Some(vec![vec![vec![], to.clone()], vec![to, vec![]]]),
        slab_bytes: Some(64 << 20),
        ..VerbsConfig::default()
    };
    let mut ends = [0, 1].map(|rank| VerbsEndpoint::new(&config, rank, 2, Box::new(|_| ())));
    let mut messages = Vec::new();
    loop {
        let [first, second] = &mut ends;
        match (first.exchange(&messages)?, second.exchange(&messages)?) {
            (Some(first), Some(second)) => messages = vec![first, second],
            _ => break,
        }
    }
    Ok(ends.map(|mut end| (end.link(1 - end.rank(), 0), end)))
}

/// Sends a message each way and receives both.
fn exchange(links: &mut [OpenLink; 2], src: &[u8], dst: &mut [u8]) {
    for (link, _) in links.iter_mut() {
        let mut state = SendState::new(1, Protocol::Copy);
        while link.poll_send(&mut state, Span::from(src)).expect("a link") != SendProgress::Complete {}
    }
    for (link, _) in links.iter_mut() {
        let mut state = RecvState::new(1, dst.len());
        while link.poll_recv(&mut state, &mut CopySink(dst)).expect("a link") != RecvProgress::Complete {}
    }
}

/// Returns the nanoseconds per message of rounds of two messages.
fn median(mut round: impl FnMut()) -> f64 {
    let sample = |_| {
        let began = Instant::now();
        (0..ROUNDS).for_each(|_| round());
        began.elapsed().as_nanos() as f64 / (2 * ROUNDS) as f64
    };
    let mut samples: Vec<f64> = (0..SAMPLES).map(sample).collect();
    samples.sort_by(f64::total_cmp);
    samples[SAMPLES / 2]
}

/// Measures messages by plain verbs.
fn device_alone(library: &Library, device: &str, len: usize) -> Result<f64, Box<dyn Error>> {
    let mut ends = [End::new(library, device)?, End::new(library, device)?];
    ends[0].connect(&ends[1].address())?;
    ends[1].connect(&ends[0].address())?;
    for end in &mut ends {
        (0..16).for_each(|_| end.receive(len));
    }
    Ok(median(|| {
        ends.iter_mut().for_each(|end| end.send(len));
        for end in &mut ends {
            end.take();
            end.receive(len);
        }
    }))
}

fn measure(path: &Path) -> Result<(), Box<dyn Error>> {
    let numbers: Vec<usize> = env::args().filter_map(|arg| arg.parse().ok()).collect();
    if let [len, rounds] = numbers[..] {
        let (src, mut dst) = (vec![1; len], vec![0; len]);
        let mut links = links(path, "apple-tb5")?;
        (0..rounds).for_each(|_| exchange(&mut links, &src, &mut dst));
        return Ok(());
    }
    let library = Library::load(Some(path))?;
    println!("device        bytes   link ns  device ns  difference ns");
    for device in ["apple-tb5", "ib"] {
        let mut links = links(path, device)?;
        for len in SIZES {
            let (src, mut dst) = (vec![1; len], vec![0; len]);
            let by_links = median(|| exchange(&mut links, &src, &mut dst));
            let alone = device_alone(&library, device, len)?;
            println!("{device:<10} {len:>8} {by_links:>9.0} {alone:>10.0} {:>14.0}", by_links - alone);
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    library().map_or_else(|| in_fabric(FABRIC, &[]), |library| measure(&library))
}
