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
//!
//! # Safety
//! Memory of requests is leaked, so it outlives the queue pairs.

#![allow(clippy::print_stdout, reason = "a report is what this prints")]

use std::{env, error::Error, fs, path::Path, process::Command, time::Instant};
use transport::{
    Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, Sink, TransportError,
    driver::{
        Endpoint,
        verbs::{VerbsConfig, VerbsEndpoint},
    },
    memory::{Span, SpanMut},
    verbs::{
        Access, Completion, CompletionQueue, Context, Library, LocalAddress, LocalRun, Mtu, Operation,
        POLL_BATCH, PacketClass, QpType, QueuePair, QueuePairSpec, RemoteAddress, SendRequest,
    },
};

/// Marks the inner process, which has the fabric in its environment.
const INNER: &str = "TBCCL_BENCH_VERBS_LIBRARY";

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

/// One end of a connection by plain verbs.
struct End {
    queue_pair: QueuePair,
    sends: CompletionQueue,
    receives: CompletionQueue,
    run: LocalRun,
    _region: transport::verbs::Region,
    context: Context,
    posted: u64,
}

impl End {
    fn new(library: &Library, device: &str) -> Result<End, Box<dyn Error>> {
        let context = library.open(device)?;
        let domain = context.domain()?;
        let sends = context.completion_queue(256, None)?;
        let receives = context.completion_queue(256, None)?;
        let memory: &'static mut [u8] = Box::leak(vec![1; 256 << 10].into_boxed_slice());
        let access = Access::Local;
        // SAFETY: the memory is never freed.
        let region = unsafe { domain.register(memory.as_mut_ptr(), memory.len(), access) }?;
        let spec = QueuePairSpec { service: QpType::UC, send_depth: 256, recv_depth: 128, inline_bytes: 0 };
        let queue_pair = domain.queue_pair_on(&spec, &sends, &receives)?;
        queue_pair.initialize(access)?;
        let run = LocalRun { start: region.start(), len: 0, lkey: region.lkey() };
        Ok(End { queue_pair, sends, receives, run, _region: region, context, posted: 0 })
    }

    fn receive(&self, len: usize) {
        let run = LocalRun { len: len as u32, start: self.run.start.wrapping_add(128 << 10), ..self.run };
        // SAFETY: see the module.
        unsafe { self.queue_pair.post_receive(1, run) }.expect("room");
    }

    fn connect(&self, to: &End) -> Result<(), Box<dyn Error>> {
        let gid = |end: &End| {
            let gids = end.context.gids();
            *gids.iter().find(|(_, gid)| gid.is_ipv4_mapped()).unwrap_or(&gids[0])
        };
        let ours =
            LocalAddress { gid_index: gid(self).0, mtu: Mtu::B4096, psn: 7, class: PacketClass::default() };
        let qp = to.queue_pair.number();
        Ok(self.queue_pair.connect(&ours, &RemoteAddress { qp, gid: gid(to).1, lid: 0, psn: 7 })?)
    }

    /// Sends a message; every eighth asks for its completion.
    fn send(&mut self, len: usize) {
        self.posted += 1;
        let run = LocalRun { len: len as u32, ..self.run };
        let signaled = self.posted.is_multiple_of(8);
        let request = SendRequest { id: 0, run, operation: Operation::Send, signaled, inline: false };
        // SAFETY: see the module.
        unsafe { self.queue_pair.post_send(&request) }.expect("room");
        if signaled {
            let mut out = [Completion::default(); POLL_BATCH];
            self.sends.poll(&mut out).expect("a queue");
        }
    }

    fn take(&self, len: usize) {
        let mut out = [Completion::default(); POLL_BATCH];
        while self.receives.poll(&mut out).expect("a queue").is_empty() {}
        self.receive(len);
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
    ends[0].connect(&ends[1])?;
    ends[1].connect(&ends[0])?;
    for end in &ends {
        (0..16).for_each(|_| end.receive(len));
    }
    Ok(median(|| {
        ends.iter_mut().for_each(|end| end.send(len));
        ends.iter().for_each(|end| end.take(len));
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
    if let Some(library) = env::var_os(INNER) {
        return measure(Path::new(&library));
    }
    let this = env::current_exe()?;
    let folder = this.parent().and_then(Path::parent).ok_or("no folder")?;
    let library = folder.join("libsoftrdma.so");
    if !library.exists() {
        return Err("build the software device first: cargo build --release -p tbccl-softrdma".into());
    }
    let scratch = tempfile::tempdir()?;
    let fabric = scratch.path().join("fabric.toml");
    fs::write(&fabric, FABRIC)?;
    let status = Command::new(this)
        .args(env::args().skip(1))
        .env(INNER, &library)
        .env("SOFTRDMA_FABRIC", &fabric)
        .env("SOFTRDMA_DIR", scratch.path().join("shared"))
        .env_remove("SOFTRDMA_NODE")
        .status()?;
    status.success().then_some(()).ok_or_else(|| "the inner process failed".into())
}
