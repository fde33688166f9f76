//! The builder: from a planner's steps to a schedule, with the dependencies derived.
//!
//! A planner gives each rank's steps, in an order in which it could run. The builder applies the passes that
//! the [`Spec`] asks for ([`crate::pass`]), and derives which steps must come `after` others because they
//! touch the same memory: a read after its write, a write after earlier reads and writes. It knows which
//! chunks are the same memory in place, and leaves out dependencies that others imply. So every dependency is
//! needed: without it there is a race, at least if messages of a FIFO could overtake each other. Sends that
//! may follow a receive are marked.
//!
//! A rank's dependencies follow from that rank's steps alone, so a plan for one rank ([`Spec::only_for`]) is
//! that rank's part of the plan for all.
//!
//! The builder does not check that the program is right; the verifier does.

use crate::analysis::{Flow, Matching, Order, Touched, Turn, Values};
use crate::pass::{Cuts, fuse, quantize::quantize};
use crate::schedule::{Action, After, ChunkRange, DraftStep, InPlace, Memory, RankProgram, Schedule, Step};
use crate::verify::structure;
use crate::{Codec, Packing, PlanError, Spec};
use topology::Rank;

/// Collects the steps of all ranks, or of one.
#[derive(Debug)]
pub struct Builder {
    /// The schedule without its steps.
    shape: Schedule,
    ranks: u32,
    /// The passes over the steps.
    cuts: Cuts,
    /// The codec of packed messages.
    codec: Option<Codec>,
    /// Whether ranks send the results that they complete.
    are_results_sent: bool,
    /// The stage of the steps that are added next.
    stage: u32,
    /// The first planned rank; `drafts` belong to it and the ranks that follow.
    first: u32,
    drafts: Vec<Draft>,
}

/// The steps of one rank as the planner gives them.
#[derive(Debug)]
struct Draft {
    memory: Memory,
    steps: Vec<DraftStep>,
}

impl Builder {
    /// Starts a schedule for `spec` whose blocks are split into `chunks`, with `scratch_blocks` blocks of
    /// scratch memory per rank.
    #[must_use]
    pub fn new(spec: &Spec, algorithm: &str, chunks: u32, scratch_blocks: u32) -> Builder {
        let shape = Schedule {
            collective: spec.collective(),
            algorithm: algorithm.to_owned(),
            root: spec.root(),
            in_place: spec.in_place(),
            chunks,
            scratch_blocks,
            lanes: 1,
            packing: None,
            programs: Vec::new(),
        };
        let builder = Builder::with_shape(shape, spec.ranks(), Cuts::of(spec));
        let builder = Builder { codec: spec.codec(), ..builder };
        match spec.only() {
            None => builder,
            Some(rank) => {
                let memory = Memory::new(&builder.shape, spec.ranks(), rank);
                Builder { first: rank.0, drafts: vec![Draft { memory, steps: Vec::new() }], ..builder }
            }
        }
    }

    /// Starts a schedule of the shape of `shape`, whose steps are ignored, and with these passes.
    pub(crate) fn with_shape(shape: Schedule, ranks: u32, cuts: Cuts) -> Builder {
        let draft = |rank| Draft { memory: Memory::new(&shape, ranks, Rank(rank)), steps: Vec::new() };
        let drafts = (0..ranks).map(draft).collect();
        let shape = Schedule { programs: Vec::new(), ..shape };
        Builder { shape, ranks, cuts, codec: None, are_results_sent: false, stage: 0, first: 0, drafts }
    }

    /// Whether input and output are the same memory.
    #[must_use]
    pub fn in_place(&self) -> InPlace {
        self.shape.in_place
    }

    /// Sets the stage of the following steps. Stages tell which steps of a segmented plan may overlap: those
    /// of stage `s` on one segment run beside those of stage `s + 1` on the segment before.
    ///
    /// Both ends of a message have the same stage, and no step has a lower one than those that it waits for
    /// or follows in its FIFO. The best stage is the number of messages that must come one after the other
    /// before the step.
    pub fn stage(&mut self, stage: u32) {
        self.stage = stage;
    }

    /// `rank` sends `src` to `peer`.
    pub fn send(&mut self, rank: Rank, peer: Rank, src: ChunkRange, lane: u8) {
        self.step(rank, Action::Send { peer, src }, lane);
    }

    /// `rank` receives from `peer` into `dst`.
    pub fn recv(&mut self, rank: Rank, peer: Rank, dst: ChunkRange, lane: u8) {
        self.step(rank, Action::Recv { peer, dst }, lane);
    }

    /// `rank` receives from `peer`: `dst = local ⊕ message`.
    pub fn recv_reduce(&mut self, rank: Rank, peer: Rank, local: ChunkRange, dst: ChunkRange, lane: u8) {
        self.step(rank, Action::RecvReduce { peer, local, dst, last: false }, lane);
    }

    /// `rank` copies `src` to `dst`; nothing to do when they are the same memory.
    pub fn copy(&mut self, rank: Rank, src: ChunkRange, dst: ChunkRange) {
        let memory = &self.draft(rank).memory;
        if memory.span(src) != memory.span(dst) {
            self.step(rank, Action::Copy { src, dst }, 0);
        }
    }

    /// `rank` reduces: `dst = a ⊕ b`.
    pub fn reduce(&mut self, rank: Rank, a: ChunkRange, b: ChunkRange, dst: ChunkRange) {
        self.step(rank, Action::Reduce { a, b, dst, last: false }, 0);
    }

    /// Marks the newest step of `rank`, a reduction, as one whose result has every rank's contribution: an
    /// average divides there. Collectives without an average have no such marks.
    pub fn mark_last(&mut self, rank: Rank) {
        let averages = self.shape.collective.averages();
        if let Some(step) = self.draft(rank).steps.last_mut().filter(|_| averages) {
            step.action = step.action.with_last(true);
        }
    }

    /// States that some ranks which complete results send them. With packed messages all of them then go on
    /// with the packed result, so that all have the same bits.
    pub fn declare_results_sent(&mut self) {
        self.are_results_sent = true;
    }

    /// Adds any step, its `last` mark as it is.
    pub(crate) fn step(&mut self, rank: Rank, action: Action, lane: u8) {
        debug_assert!(action.message().is_none_or(|(peer, _)| peer != rank), "rank {rank} talks to itself");
        self.shape.lanes = self.shape.lanes.max(lane + 1);
        let stage = self.stage;
        self.draft(rank).steps.push(DraftStep { action, lane, stage });
    }

    fn draft(&mut self, rank: Rank) -> &mut Draft {
        &mut self.drafts[(rank.0 - self.first) as usize]
    }

    /// Returns the schedule.
    ///
    /// # Errors
    /// [`PlanError::TooLarge`] when it would have too many steps to list.
    pub fn finish(self) -> Result<Schedule, PlanError> {
        let Builder { mut shape, ranks, cuts, first, mut drafts, .. } = self;
        if let Some(codec) = self.codec {
            let mut most = 0;
            for draft in &mut drafts {
                let blocks;
                (draft.steps, blocks) =
                    quantize(&draft.memory, shape.chunks, &draft.steps, self.are_results_sent);
                most = most.max(blocks);
            }
            shape.packing = Some(Packing { codec, blocks: most });
        }
        let steps = drafts.iter().map(|draft| draft.steps.len() as u64).sum();
        shape = cuts.shape(shape, ranks, steps)?;
        let mut programs = vec![RankProgram::default(); ranks as usize];
        let mut past = Past::default();
        for (rank, draft) in (first..).zip(drafts) {
            let steps = cuts.steps(draft.steps);
            programs[rank as usize] = past.derive(&Memory::new(&shape, ranks, Rank(rank)), &steps);
        }
        let schedule = Schedule { programs, ..shape };
        Ok(if fuse::is_worth_it(schedule.collective) { schedule } else { fuse::unfuse(schedule) })
    }
}

impl Schedule {
    /// Returns the schedule with marks exactly at the steps whose results have every rank's contribution, for
    /// plans made by hand. A schedule that cannot run is returned as it is.
    #[must_use]
    pub fn marked(mut self) -> Schedule {
        let mut marks = Vec::new();
        if structure::check(&self).is_ok()
            && let Ok(matching) = Matching::new(&self)
            && let Ok(flow) = Flow::new(&self, &matching, 0)
        {
            Values::new(&self, matching.total()).run(&self, &matching, &flow, |id, outcome| {
                marks.extend(outcome.ok().flatten().map(|complete| (id, complete)));
                outcome.is_ok()
            });
        }
        for (id, complete) in marks {
            let step = &mut self.programs[id.rank as usize].steps[id.step as usize];
            step.action = step.action.with_last(complete);
        }
        self
    }
}

/// The steps of a rank so far.
#[derive(Default)]
struct Past {
    order: Order,
    touched: Touched,
    /// Steps that the next step must come after.
    hazards: Vec<u32>,
}

impl Past {
    /// Returns the steps of a rank, each after those that it must come after.
    fn derive(&mut self, memory: &Memory, steps: &[DraftStep]) -> RankProgram {
        self.order.clear();
        self.touched.start(memory);
        let derived = (0..).zip(steps).map(|(number, DraftStep { action, lane, .. })| {
            self.find_hazards(memory, action);
            self.order.push(Turn::Local, &self.hazards);
            let earlier = |before: u32| &steps[before as usize].action;
            let follows = fuse::followed(memory, &self.touched, action, &self.hazards, earlier);
            self.touched.touch(memory, action, number);
            Step { action: *action, lane: *lane, after: After::from_slice(&self.hazards), follows }
        });
        RankProgram { steps: derived.collect() }
    }

    fn find_hazards(&mut self, memory: &Memory, action: &Action) {
        let Past { order, touched, hazards } = self;
        hazards.clear();
        for range in action.reads().into_iter().flatten() {
            hazards.extend(memory.span(range).filter_map(|cell| touched.writer(cell)));
        }
        if let Some(range) = action.writes() {
            hazards.extend(memory.span(range).flat_map(|cell| touched.writer_and_readers(cell)));
        }
        hazards.sort_unstable();
        hazards.dedup();
        // Dependencies that others among them imply are left out.
        order.keep_latest(hazards);
    }
}
