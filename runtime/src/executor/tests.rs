//! Every plan over strict links, which take announcements and spoil memory as soon as they may write it,
//! against links that do not. Also the sizes, confirmations and ends that links are given.

use super::{
    Binding, CallConstants, Executor, Program, Protocols, SizedStraight, Sizing, Stop, Waiting, Watch, Writes,
};
use crate::{Error, kernels::Reducer, kernels::Threads};
use collectives::{
    BlockLayout, Collective, DType, ReduceOp, Schedule, Spec, plan,
    schedule::{Action, Buffer, ChunkRange, InPlace, RankProgram, Step},
};
use std::{
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};
use topology::Rank;
use transport::{
    Link, SendProgress, SizeClass, WaitPolicy,
    driver::{Endpoint, local, strict::StrictEndpoint},
    memory::{ArenaLayout, Registered, Slab, Span, SpanMut},
    ring::RingLayout,
};

mod announcing;
mod brief;
mod following;
mod preparing;
mod stub_link;
mod waiting;

use stub_link::StubLink;

const LANES: u8 = 2;
const ELEM_BYTES: usize = 4;

/// Limits a run to two seconds without progress.
struct TimeoutWatch;

impl Watch for TimeoutWatch {
    fn look(&mut self, waiting: &Waiting<'_>) -> Result<(), Error> {
        if waiting.waited < Duration::from_secs(2) { Ok(()) } else { Err(Error::LauncherGone) }
    }
}

fn layout(ranks: u32) -> ArenaLayout {
    ArenaLayout { ranks, lanes: LANES, ring: RingLayout::default(), slab_bytes: 64 << 20 }
}

type Links = Vec<Option<Box<dyn Link>>>;

fn links(rank: u32, ranks: u32, mut make: impl FnMut(u32, u8) -> Box<dyn Link>) -> Links {
    let ends = (0..ranks).flat_map(|peer| (0..LANES).map(move |lane| (peer, lane)));
    ends.map(|(peer, lane)| (peer != rank).then(|| make(peer, lane))).collect()
}

fn executor(links: Links, slab: &Slab, ranks: u32) -> Executor {
    executor_on(1, links, slab, ranks)
}

/// Returns the executor of a rank on a host with this number of cores.
fn executor_on(cores: u32, links: Links, slab: &Slab, ranks: u32) -> Executor {
    let wait = WaitPolicy::for_host(ranks, cores);
    Executor::new(links, slab.clone(), wait, Protocols::with_minima(usize::MAX, 64))
}

fn over_local(ranks: u32) -> Vec<(Executor, Slab)> {
    over_local_on(1, ranks)
}

fn over_local_on(cores: u32, ranks: u32) -> Vec<(Executor, Slab)> {
    let arenas = local::arenas(layout(ranks)).expect("memory for a test");
    let one = |rank: u32| {
        let slab = Slab::new(&arenas[rank as usize], None);
        let links = links(rank, ranks, |p, lane| local::link(&arenas, rank, p, lane));
        (executor_on(cores, links, &slab, ranks), slab)
    };
    (0..ranks).map(one).collect()
}

/// Returns endpoints that have exchanged their addresses.
fn connected_endpoints(ranks: u32, layout: ArenaLayout) -> Vec<StrictEndpoint> {
    let open = |rank| StrictEndpoint::open(layout, rank).expect("memory for a test");
    let mut endpoints: Vec<StrictEndpoint> = (0..ranks).map(open).collect();
    let mut words = Vec::new();
    while let Some(said) = endpoints
        .iter_mut()
        .map(|endpoint| endpoint.exchange(&words).expect("the others are here"))
        .collect::<Option<Vec<_>>>()
    {
        words = said;
    }
    endpoints
}

fn over_strict_driver(ranks: u32) -> Vec<(Executor, Slab)> {
    let mut endpoints = connected_endpoints(ranks, layout(ranks));
    let one = |(rank, endpoint): (u32, &mut StrictEndpoint)| {
        let slab = endpoint.slab().clone();
        (executor(links(rank, ranks, |p, lane| endpoint.link(p, lane)), &slab, ranks), slab)
    };
    (0..ranks).zip(&mut endpoints).map(one).collect()
}

/// One collective call, the same on all ranks.
struct Job {
    schedule: Schedule,
    count: u64,
    /// Delay of rank 0 after the others.
    late: Duration,
    start: Start,
}

/// How straight programs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// As all others.
    StepByStep,
    /// By states of messages.
    AtOnce,
    /// By brief messages as far as they go, and then as above.
    Brief,
}

impl Job {
    fn bytes(&self, blocks: u32) -> usize {
        blocks as usize * self.count as usize * ELEM_BYTES
    }

    /// Runs as one rank, and returns its output.
    fn run(&self, executor: &mut Executor, slab: &Slab, rank: u32) -> Vec<u8> {
        let (collective, ranks) = (self.schedule.collective, self.schedule.ranks());
        let program = Program::compile(&self.schedule, Rank(rank), LANES);
        let (inputs, outputs) = (collective.input_blocks(ranks), collective.output_blocks(ranks));
        let mut input = slab.allocate(self.bytes(inputs.max(outputs))).expect("room");
        let mut output = slab.allocate(self.bytes(outputs)).expect("room");
        let mut scratch = slab.allocate(self.bytes(program.scratch_blocks)).expect("room");
        for (i, byte) in input.as_mut_slice().iter_mut().enumerate() {
            *byte = (i * 31 + rank as usize * 17 + i / 251) as u8;
        }
        let (given, got) = self.ends(&mut input, &mut output, rank);
        let blocks = inputs.max(outputs).max(program.scratch_blocks);
        let constants = CallConstants {
            reducer: Some(Reducer::new(DType::U32, ReduceOp::Sum).expect("legal")),
            ranks,
            sizing: Sizing::ByCall(executor.protocols().size_class(self.count * 4)),
            gathers: false,
            ..constants(self.count, ELEM_BYTES, (program.chunks, blocks))
        };
        let straight = SizedStraight::new(&program, &constants, executor.protocols());
        let binding = Binding {
            straight: straight.as_ref().filter(|_| self.start != Start::StepByStep),
            input: given,
            output: got,
            scratch: scratch.span_mut(),
            digest: self.count * 2 + 2,
            confirmed: !program.unheard.is_empty(),
            ..without_memory(&constants)
        };
        if rank == 0 {
            thread::sleep(self.late);
        }
        let ran = match self.start {
            Start::Brief => executor
                .run_brief(&program, &binding, || {})
                .map_or(Ok(()), |done| executor.run_call(&program, &binding, done, &mut TimeoutWatch)),
            _ => executor.run(&program, &[binding], &mut TimeoutWatch),
        };
        ran.unwrap_or_else(|stop| panic!("rank {rank} of {}: {stop:?}", self.schedule));
        let mut result = vec![0; got.len()];
        SpanMut::from(result.as_mut_slice()).copy_from(got.as_span());
        result
    }

    /// Returns the input and the output of a call; in place they overlap.
    fn ends<'b>(
        &self,
        input: &'b mut Registered,
        output: &'b mut Registered,
        rank: u32,
    ) -> (Span<'b>, SpanMut<'b>) {
        let (collective, ranks) = (self.schedule.collective, self.schedule.ranks());
        let block = self.bytes(1);
        let all = input.span_mut();
        let given = all.as_span().sub(0, self.bytes(collective.input_blocks(ranks)));
        let own = rank as usize * block;
        match (self.schedule.in_place, collective) {
            (InPlace::No, _) => (given, output.span_mut()),
            (InPlace::Yes, Collective::AllGather) => (all.as_span().sub(own, block), all),
            (InPlace::Yes, Collective::ReduceScatter) => (given, all.sub(own, block)),
            (InPlace::Yes, Collective::Gather) if rank == self.schedule.root.0 => {
                (all.as_span().sub(own, block), all)
            }
            (InPlace::Yes, Collective::Scatter) if rank == self.schedule.root.0 => {
                (given, all.sub(own, block))
            }
            (InPlace::Yes, _) => (given, all.sub(0, self.bytes(collective.output_blocks(ranks)))),
        }
    }
}

/// Returns the outputs of all ranks, one call after the other over the same links.
fn outputs(ranks: Vec<(Executor, Slab)>, jobs: &[Job]) -> Vec<Vec<Vec<u8>>> {
    thread::scope(|scope| {
        let one = |((mut executor, slab), rank): ((Executor, Slab), u32)| {
            scope
                .spawn(move || jobs.iter().map(|job| job.run(&mut executor, &slab, rank)).collect::<Vec<_>>())
        };
        let threads: Vec<_> = ranks.into_iter().zip(0..).map(one).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

fn jobs(ranks: u32) -> Vec<Job> {
    let mut jobs = Vec::new();
    for algorithm in plan::ALGORITHMS.iter().filter(|a| a.check_ranks(ranks).is_ok()) {
        for in_place in [InPlace::No, InPlace::Yes] {
            for (segments, count) in [(1, 1), (1, 331), (24, 5000)] {
                let spec = Spec::new(algorithm.collective, ranks)
                    .map(|spec| spec.with_in_place(in_place))
                    .and_then(|spec| spec.with_segments(segments));
                let schedule = spec.and_then(|spec| plan::plan(&spec, algorithm.name));
                jobs.extend(schedule.map(|schedule| Job {
                    schedule,
                    count,
                    late: Duration::ZERO,
                    start: Start::AtOnce,
                }));
            }
        }
    }
    jobs
}

/// Asserts that both kinds of links give the same results.
fn compare(ranks: u32, jobs: &[Job]) {
    let (expected, got) = (outputs(over_local(ranks), jobs), outputs(over_strict_driver(ranks), jobs));
    for (at, job) in jobs.iter().enumerate() {
        for rank in 0..ranks as usize {
            let Job { schedule, count, .. } = job;
            assert!(got[rank][at] == expected[rank][at], "rank {rank}, {count} elements: {schedule}");
        }
    }
}

#[test]
fn every_plan_leaves_memory_to_links_only_when_nobody_needs_it() {
    for ranks in 2..=5 {
        let jobs = jobs(ranks);
        assert!(jobs.len() > 40, "only {}", jobs.len());
        compare(ranks, &jobs);
    }
}

#[test]
fn straight_programs_give_what_their_steps_give() {
    for ranks in 2..=4 {
        let at_once = jobs(ranks);
        let is_straight = |job: &&Job| Program::compile(&job.schedule, Rank(0), LANES).straight.is_some();
        assert!(at_once.iter().filter(is_straight).count() > 20, "few of {}", at_once.len());
        let by = |start| jobs(ranks).into_iter().map(|job| Job { start, ..job }).collect::<Vec<_>>();
        let expected = outputs(over_local(ranks), &by(Start::StepByStep));
        assert!(outputs(over_local(ranks), &at_once) == expected, "{ranks} ranks");
        for cores in [1, ranks] {
            let brief = outputs(over_local_on(cores, ranks), &by(Start::Brief));
            assert!(brief == expected, "{ranks} ranks on {cores} cores");
        }
    }
}

/// The two receives of rank 1 are ordered by their FIFO alone: the second one's destination is read by the
/// first.
#[test]
fn a_landing_waits_for_an_earlier_receive_that_uses_its_memory() {
    let chunk = |buffer| ChunkRange { buffer, first: 0, len: 1 };
    let (input, output, scratch) = (chunk(Buffer::Input), chunk(Buffer::Output), chunk(Buffer::Scratch));
    let step = |action, after: &[u32]| Step { action, lane: 0, after: after.into(), follows: None };
    let send = |peer, src| Action::Send { peer: Rank(peer), src };
    let recv = |dst| Action::Recv { peer: Rank(1), dst };
    let (local, last) = (input, true);
    let first = RankProgram {
        steps: vec![step(send(1, input), &[]), step(send(1, input), &[]), step(recv(output), &[1])],
    };
    let second = RankProgram {
        steps: vec![
            step(Action::RecvReduce { peer: Rank(0), local, dst: scratch, last }, &[]),
            step(Action::Recv { peer: Rank(0), dst: output }, &[]),
            step(send(0, scratch), &[0]),
        ],
    };
    let schedule = Schedule {
        collective: Collective::AllReduce,
        algorithm: "by_hand".into(),
        root: Rank(0),
        in_place: InPlace::Yes,
        chunks: 1,
        scratch_blocks: 1,
        lanes: 1,
        packing: None,
        programs: vec![first, second],
    };
    compare(2, &[Job { schedule, count: 5000, late: Duration::from_millis(100), start: Start::AtOnce }]);
}

/// Runs a message's program; `confirmed` is for sends.
fn message(executor: &mut Executor, peer: u32, data: &mut Registered, way: Way) -> Result<(), Stop> {
    let sends = way != Way::Recv;
    let program = Program::message(Rank(peer), sends, LANES);
    let count = data.len() as u64;
    let memory = data.span_mut();
    let constants = CallConstants {
        sizing: Sizing::ByCall(SizeClass::Bulk),
        gathers: false,
        ..constants(count, 1, (1, 1))
    };
    let straight = SizedStraight::new(&program, &constants, executor.protocols());
    let binding = Binding {
        straight: straight.as_ref(),
        input: if sends { memory.as_span() } else { Span::empty() },
        output: if sends { SpanMut::empty() } else { memory },
        confirmed: way == Way::ConfirmedSend,
        ..without_memory(&constants)
    };
    executor.run(&program, &[binding], &mut TimeoutWatch)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Send,
    ConfirmedSend,
    Recv,
}

#[test]
fn a_confirmed_send_is_complete_when_it_is_matched_and_others_before() {
    let mut ranks = over_strict_driver(2);
    let (mut receiver, theirs) = ranks.pop().expect("two");
    let (mut sender, ours) = ranks.pop().expect("two");
    let mut data = ours.allocate(100).expect("room");
    message(&mut sender, 1, &mut data, Way::Send).expect("complete once it is staged");
    thread::scope(|scope| {
        let late = Duration::from_millis(200);
        // Takes the time before the receiver waits: on a busy machine it may run first.
        let started = std::time::Instant::now();
        scope.spawn(move || {
            let mut data = theirs.allocate(100).expect("room");
            thread::sleep(late);
            for _ in 0..2 {
                message(&mut receiver, 0, &mut data, Way::Recv).expect("both come");
            }
        });
        message(&mut sender, 1, &mut data, Way::ConfirmedSend).expect("received");
        assert!(started.elapsed() >= late, "after {:?}", started.elapsed());
    });
}

#[test]
fn a_run_that_fails_ends_the_use_of_its_memory() {
    let (mut executor, slab) = over_strict_driver(2).remove(0);
    let mut data = slab.allocate(100).expect("room");
    let stop = message(&mut executor, 1, &mut data, Way::Recv).expect_err("nobody sends");
    assert!(matches!(stop, Stop::Watch(Error::LauncherGone)), "{stop:?}");
    // The link panics.
    let again = std::panic::AssertUnwindSafe(|| message(&mut executor, 1, &mut data, Way::Recv).is_ok());
    assert!(std::panic::catch_unwind(again).is_err(), "the link was not ended");
}

/// Returns a link that completes the second of two messages at once, and the first one much later, and
/// records the bytes of the first one then.
fn overtaking(sent: Arc<Mutex<Vec<u8>>>) -> impl Link + 'static {
    // The address of the first message, once known.
    let mut first = None;
    let mut polls = 0;
    let send = move |src: Span<'_>| {
        if *first.get_or_insert(src.as_ptr() as usize) != src.as_ptr() as usize {
            return SendProgress::Complete;
        }
        polls += 1;
        if polls < 10 {
            return SendProgress::Posted;
        }
        let mut bytes = vec![0; src.len()];
        SpanMut::from(&mut bytes[..]).copy_from(src);
        *sent.lock().expect("one thread") = bytes;
        SendProgress::Complete
    };
    StubLink {
        capabilities: &stub_link::CAPABILITIES,
        send,
        announced: Arc::default(),
        prepared: Arc::default(),
    }
}

/// Returns the constants of calls of two ranks that gather `blocks` blocks of `count` elements.
fn constants(count: u64, elem_bytes: usize, (chunks, blocks): (u32, u32)) -> CallConstants {
    CallConstants {
        layout: BlockLayout::new(count, elem_bytes, chunks, blocks).expect("small"),
        uneven: None,
        packed: None,
        elem_bytes,
        reducer: None,
        ranks: 2,
        threads: Threads::ONE,
        results: Writes::Cached,
        sizing: Sizing::ByCall(SizeClass::Small),
        gathers: true,
        segments: 1,
    }
}

/// Returns the binding of a call that has no memory.
fn without_memory(constants: &CallConstants) -> Binding<'_> {
    Binding {
        constants,
        straight: None,
        digest: 8,
        input: Span::empty(),
        output: SpanMut::empty(),
        scratch: SpanMut::empty(),
        confirmed: false,
    }
}

/// Returns the program of rank 0 of two, which takes these steps on blocks of `chunks` chunks.
fn by_hand(chunks: u32, steps: Vec<Step>) -> Program {
    let schedule = Schedule {
        collective: Collective::AllReduce,
        algorithm: "by_hand".into(),
        root: Rank(0),
        in_place: InPlace::No,
        chunks,
        scratch_blocks: 0,
        lanes: 1,
        packing: None,
        programs: vec![RankProgram { steps }, RankProgram::default()],
    };
    Program::compile(&schedule, Rank(0), LANES)
}

#[test]
fn sends_of_a_stream_are_ticked_off_in_order_though_a_later_one_completes_first() {
    let chunk = |buffer, first| ChunkRange { buffer, first, len: 1 };
    let step = |action, after: &[u32]| Step { action, lane: 0, after: after.into(), follows: None };
    let send = |first| Action::Send { peer: Rank(1), src: chunk(Buffer::Output, first) };
    // The copy relies on the order of sends: it comes after the second one, and writes to the source of the
    // first one.
    let overwrite = Action::Copy { src: chunk(Buffer::Input, 0), dst: chunk(Buffer::Output, 0) };
    let steps = vec![step(send(0), &[]), step(send(1), &[]), step(overwrite, &[1])];
    let program = by_hand(2, steps);
    let (_, slab) = over_local(1).remove(0);
    let sent: Arc<Mutex<Vec<u8>>> = Arc::default();
    let link = overtaking(Arc::clone(&sent));
    let mut executor = executor(vec![None, None, Some(Box::new(link)), None], &slab, 2);
    let (input, mut output) = (vec![9u8; 1024], vec![1u8; 1024]);
    let constants = CallConstants { gathers: false, ..constants(1024, 1, (2, 1)) };
    let binding = Binding {
        input: Span::from(&input[..]),
        output: SpanMut::from(&mut output[..]),
        ..without_memory(&constants)
    };
    executor.run(&program, &[binding], &mut TimeoutWatch).expect("both are sent");
    assert_eq!(*sent.lock().expect("one thread"), [1; 512], "the first message was overwritten under way");
    assert_eq!(output, [[9; 512], [1; 512]].concat());
}
