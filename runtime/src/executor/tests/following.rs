//! Sends that follow receives: every plan with its marks, in messages of many pieces, against the same plan
//! without them.

use super::{
    ELEM_BYTES, Executor, Job, LANES, Links, Protocols, Start, executor, layout, links, outputs, over_local,
};
use crate::executor::Program;
use collectives::{Spec, pass, plan, schedule::InPlace};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};
use topology::Rank;
use transport::{
    Capabilities, Counters, Link, RecvProgress, RecvState, SendProgress, SendState, Sink, TransportError,
    WaitPolicy,
    driver::{Endpoint, local, strict::StrictEndpoint},
    memory::{ArenaLayout, Slab, Span, SpanMut},
    ring::{RingLayout, Stores},
};

const PIECE: usize = 4096;

/// Returns a layout with rings of few pieces, so that messages of several pieces wait for their receivers.
fn narrow(ranks: u32) -> ArenaLayout {
    let ring = RingLayout {
        cells: 16,
        staging_bytes: 4 * PIECE,
        piece_bytes: PIECE,
        buffers: 2,
        lap_bytes: 4 * PIECE,
        stores: Stores::Auto,
        fetches: false,
    };
    ArenaLayout { ring, ..layout(ranks) }
}

/// A link that counts how often part of a message was forwarded, and checks what links rely on.
#[derive(Debug)]
struct Counting {
    capabilities: Capabilities,
    inner: Box<dyn Link>,
    /// Bytes of the message in flight that were ready.
    ready: usize,
    sent_on: Arc<AtomicU32>,
}

impl Link for Counting {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn poll_send(&mut self, state: &mut SendState, src: Span<'_>) -> Result<SendProgress, TransportError> {
        self.ready = 0;
        self.inner.poll_send(state, src)
    }

    fn poll_send_prefix(
        &mut self,
        state: &mut SendState,
        src: Span<'_>,
        ready: usize,
    ) -> Result<SendProgress, TransportError> {
        assert!(0 < ready && ready < src.len(), "{ready} of {}", src.len());
        assert!(self.ready <= ready, "{} were there, and now {ready}", self.ready);
        let is_whole_part = ready.is_multiple_of(src.len() / 2);
        assert!(!self.capabilities.coarse_prefixes || is_whole_part, "{ready} of {}", src.len());
        self.ready = ready;
        let progress = self.inner.poll_send_prefix(state, src, ready)?;
        self.sent_on.fetch_add(u32::from(progress == SendProgress::Advanced), Relaxed);
        Ok(progress)
    }

    fn poll_recv(
        &mut self,
        state: &mut RecvState,
        sink: &mut dyn Sink,
    ) -> Result<RecvProgress, TransportError> {
        self.inner.poll_recv(state, sink)
    }

    fn peek_digest(&self) -> Option<u64> {
        self.inner.peek_digest()
    }

    fn announce(
        &mut self,
        state: &mut RecvState,
        destination: Option<SpanMut<'_>>,
    ) -> Result<bool, TransportError> {
        self.inner.announce(state, destination)
    }
}

fn counting(links: Links, sent_on: &Arc<AtomicU32>, coarse_prefixes: bool) -> Links {
    let count = |inner: Box<dyn Link>| {
        let capabilities = Capabilities { coarse_prefixes, ..inner.capabilities().clone() };
        let sent_on = Arc::<AtomicU32>::clone(sent_on);
        Box::new(Counting { capabilities, inner, ready: 0, sent_on }) as Box<dyn Link>
    };
    links.into_iter().map(|link| link.map(count)).collect()
}

/// Returns links between threads that copy all messages.
fn copying(ranks: u32, sent_on: &Arc<AtomicU32>, coarse_prefixes: bool) -> Vec<(Executor, Slab)> {
    let arenas = local::arenas(narrow(ranks)).expect("memory for a test");
    let one = |rank: u32| {
        let slab = Slab::new(&arenas[rank as usize], None);
        let links = links(rank, ranks, |p, lane| local::link(&arenas, rank, p, lane));
        let links = counting(links, sent_on, coarse_prefixes);
        let protocols = Protocols::with_minima(usize::MAX, u64::MAX);
        (Executor::new(links, slab.clone(), WaitPolicy::for_host(ranks, 1), protocols), slab)
    };
    (0..ranks).map(one).collect()
}

/// Returns links that take announcements, and spoil memory that they may write.
fn announcing(ranks: u32, sent_on: &Arc<AtomicU32>) -> Vec<(Executor, Slab)> {
    let mut endpoints = super::connected_endpoints(ranks, narrow(ranks));
    let one = |(rank, endpoint): (u32, &mut StrictEndpoint)| {
        let slab = endpoint.slab().clone();
        let links = counting(links(rank, ranks, |p, lane| endpoint.link(p, lane)), sent_on, false);
        (executor(links, &slab, ranks), slab)
    };
    (0..ranks).zip(&mut endpoints).map(one).collect()
}

fn jobs(algorithm: &plan::Algorithm, ranks: u32) -> Vec<Job> {
    let mut jobs = Vec::new();
    for in_place in [InPlace::No, InPlace::Yes] {
        for (segments, count) in [(1, 12_003), (3, 12_000)] {
            let spec = Spec::new(algorithm.collective, ranks)
                .map(|spec| spec.with_in_place(in_place))
                .and_then(|spec| spec.with_segments(segments));
            let schedule = spec.and_then(|spec| algorithm.plan(&spec));
            jobs.extend(schedule.map(|schedule| Job {
                schedule,
                count,
                late: Duration::ZERO,
                start: Start::AtOnce,
            }));
        }
    }
    jobs
}

fn marks(job: &Job) -> usize {
    let steps = job.schedule.programs.iter().flat_map(|program| &program.steps);
    steps.filter(|step| step.follows.is_some()).count()
}

#[test]
fn plans_whose_sends_follow_give_what_they_give_when_sends_wait() {
    // By algorithm: whether it had marks, and how often part of a message was forwarded.
    let mut seen: BTreeMap<String, (bool, u32)> = BTreeMap::new();
    for ranks in [2, 3, 5] {
        for algorithm in plan::ALGORITHMS.iter().filter(|a| a.check_ranks(ranks).is_ok()) {
            let fused = jobs(algorithm, ranks);
            let wait = |job: &Job| Job { schedule: pass::unfuse(job.schedule.clone()), ..*job };
            let waiting: Vec<Job> = fused.iter().map(wait).collect();
            let expected = outputs(over_local(ranks), &waiting);
            let sent_on = Arc::new(AtomicU32::new(0));
            for world in [copying(ranks, &sent_on, false), announcing(ranks, &sent_on)] {
                let got = outputs(world, &fused);
                for (at, job) in fused.iter().enumerate() {
                    let same = (0..ranks as usize).all(|rank| got[rank][at] == expected[rank][at]);
                    assert!(same, "{} elements of {ELEM_BYTES} bytes: {}", job.count, job.schedule);
                }
            }
            let name = format!("{} {}", algorithm.collective, algorithm.name);
            let (marked, times) = seen.entry(name).or_default();
            *marked |= fused.iter().any(|job| marks(job) > 0);
            *times += sent_on.load(Relaxed);
        }
    }
    // Whether a mark has an effect depends on which rank is first: a late rank finds its message complete.
    let unmarked: Vec<_> = seen.iter().filter(|(_, (marked, times))| !marked && *times > 0).collect();
    assert!(unmarked.is_empty(), "parts were sent on without a mark: {unmarked:?}");
    for name in ["all_reduce ring", "all_gather ring", "broadcast chain", "reduce chain", "scan chain"] {
        assert!(seen[name].1 > 0, "{name} sends nothing on");
    }
    assert!(seen.values().filter(|(_, times)| *times > 0).count() > 25, "{seen:?}");
}

/// A system call for every 64 KiB of a later message made an `all_reduce` of 1 MiB over TCP a fifth slower.
#[test]
fn later_messages_of_a_stream_are_sent_on_in_halves_where_that_costs_a_system_call() {
    const RANKS: u32 = 3;
    let spec = Spec::new(collectives::Collective::AllReduce, RANKS).expect("three");
    let schedule = plan::plan(&spec, "ring").expect("a plan");
    let count = u64::from(RANKS) << 17;
    let job = || Job { schedule: schedule.clone(), count, late: Duration::ZERO, start: Start::AtOnce };
    let jobs = [job(), Job { late: Duration::from_millis(1), ..job() }];
    let sent_on = Arc::new(AtomicU32::new(0));
    let got = outputs(copying(RANKS, &sent_on, true), &jobs);
    assert!(got == outputs(over_local(RANKS), &jobs));
    assert!(sent_on.load(Relaxed) > 0, "nothing was sent on");
}

#[test]
fn a_group_of_calls_follows_the_receives_of_each() {
    let spec = Spec::new(collectives::Collective::AllReduce, 4).expect("four");
    let [ring, tree] = ["ring", "double_binary_tree"]
        .map(|name| Program::compile(&plan::plan(&spec, name).expect("a plan"), Rank(1), LANES));
    let group = Program::concat(&[&ring, &tree, &ring]);
    let followed = |program: &Program, step: usize| {
        program.followed[step].map(|one| {
            let stream = &program.streams[one.stream as usize];
            assert!(!stream.sends && (stream.first..stream.end).contains(&one.position));
            program.order[one.position as usize] as usize
        })
    };
    let mut first = 0;
    for part in [&ring, &tree, &ring] {
        assert!(part.followed.iter().any(Option::is_some));
        for step in 0..part.ops.len() {
            let expected = followed(part, step).map(|step| step + first);
            assert_eq!(followed(&group, first + step), expected);
        }
        first += part.ops.len();
    }
    assert_eq!(group.followed.len(), first);
}
