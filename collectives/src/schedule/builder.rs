//! Steps in, schedule out: the builder derives what planners should not have to think about.
//!
//! A planner says what each rank does, in an order in which it could run. The builder finds the steps that
//! must come `after` others because they touch the same memory: a read after the write it wants, a write
//! after the reads and the write it must not disturb. It knows which chunks are the same memory in place, and
//! leaves out what another dependency or the FIFO order of messages implies. So every dependency that it
//! writes down is needed: without it there is a race.
//!
//! It does not check that the program is right; the verifier does.

use super::{Action, ChunkRange, InPlace, RankProgram, Schedule, Step};
use crate::analysis::{Flow, Matching, Memory, Order, Values};
use crate::{Collective, Spec};
use topology::Rank;

/// Collects the steps of all ranks.
#[derive(Debug)]
pub struct Builder {
    /// The schedule without its steps.
    shape: Schedule,
    ranks: Vec<Program>,
}

/// The program of one rank so far.
#[derive(Debug)]
struct Program {
    memory: Memory,
    order: Order,
    steps: Vec<Step>,
    cells: Vec<Cell>,
}

/// Who has touched a chunk of memory.
#[derive(Clone, Debug, Default)]
struct Cell {
    writer: Option<u32>,
    /// Those who have read what the writer wrote.
    readers: Vec<u32>,
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
            programs: Vec::new(),
        };
        Builder::with_shape(shape, spec.ranks())
    }

    /// Starts a schedule of the same shape as `shape`, whose steps are ignored.
    pub(crate) fn with_shape(shape: Schedule, ranks: u32) -> Builder {
        let program = |rank| {
            let memory = Memory::new(&shape, ranks, Rank(rank));
            let cells = vec![Cell::default(); memory.cells()];
            Program { memory, order: Order::default(), steps: Vec::new(), cells }
        };
        let ranks = (0..ranks).map(program).collect();
        Builder { shape: Schedule { programs: Vec::new(), ..shape }, ranks }
    }

    /// Whether input and output are the same memory.
    #[must_use]
    pub fn in_place(&self) -> InPlace {
        self.shape.in_place
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
        let memory = &self.ranks[rank.index()].memory;
        if memory.span(src) != memory.span(dst) {
            self.step(rank, Action::Copy { src, dst }, 0);
        }
    }

    /// `rank` reduces: `dst = a ⊕ b`.
    pub fn reduce(&mut self, rank: Rank, a: ChunkRange, b: ChunkRange, dst: ChunkRange) {
        self.step(rank, Action::Reduce { a, b, dst, last: false }, 0);
    }

    /// Adds any step, its `last` mark as it is.
    pub(crate) fn step(&mut self, rank: Rank, action: Action, lane: u8) {
        debug_assert!(action.message().is_none_or(|(peer, _)| peer != rank), "rank {rank} talks to itself");
        self.shape.lanes = self.shape.lanes.max(lane + 1);
        self.ranks[rank.index()].push(action, lane);
    }

    /// The schedule, with the steps marked whose results are complete.
    #[must_use]
    pub fn finish(self) -> Schedule {
        let mut schedule = self.finish_unmarked();
        if schedule.collective.reduces() {
            mark_last(&mut schedule);
        }
        schedule
    }

    /// The schedule, with the marks that its steps came with.
    pub(crate) fn finish_unmarked(self) -> Schedule {
        let programs = self.ranks.into_iter().map(|program| RankProgram { steps: program.steps }).collect();
        Schedule { programs, ..self.shape }
    }
}

impl Program {
    fn push(&mut self, action: Action, lane: u8) {
        let mut hazards = Vec::new();
        for range in action.reads().into_iter().flatten() {
            hazards.extend(self.cells[self.memory.span(range)].iter().filter_map(|cell| cell.writer));
        }
        for cell in action.writes().map(|range| &self.cells[self.memory.span(range)]).into_iter().flatten() {
            hazards.extend(cell.writer);
            hazards.extend(&cell.readers);
        }
        let after = self.needed(hazards, self.order.fifo_tail(&action, lane));
        self.order.push(&action, lane, &after);
        self.touch(&action);
        self.steps.push(Step { action, lane, after });
    }

    /// Those of the hazards that neither each other nor the FIFO predecessor implies.
    fn needed(&self, mut hazards: Vec<u32>, fifo: Option<u32>) -> Vec<u32> {
        hazards.sort_unstable();
        hazards.dedup();
        let implied = |step: u32| {
            let by_fifo = fifo.is_some_and(|tail| tail == step || self.order.precedes(step, tail));
            by_fifo || hazards.iter().any(|other| self.order.precedes(step, *other))
        };
        hazards.iter().copied().filter(|step| !implied(*step)).collect()
    }

    fn touch(&mut self, action: &Action) {
        let step = self.steps.len() as u32;
        for range in action.reads().into_iter().flatten() {
            for cell in &mut self.cells[self.memory.span(range)] {
                cell.readers.push(step);
            }
        }
        for cell in
            action.writes().map(|range| &mut self.cells[self.memory.span(range)]).into_iter().flatten()
        {
            *cell = Cell { writer: Some(step), readers: Vec::new() };
        }
    }
}

/// Marks the reducing steps whose result has every rank's contribution. A schedule that cannot run stays
/// unmarked.
fn mark_last(schedule: &mut Schedule) {
    let Ok(matching) = Matching::new(schedule) else { return };
    let Ok(flow) = Flow::new(schedule, &matching, 0) else { return };
    let mut marks = Vec::new();
    Values::new(schedule, matching.total()).run(schedule, &matching, &flow, |id, outcome| {
        if outcome == Ok(Some(true)) {
            marks.push(id);
        }
        outcome.is_ok()
    });
    for id in marks {
        let step = &mut schedule.programs[id.rank as usize].steps[id.step as usize];
        step.action = step.action.with_last(true);
    }
    debug_assert!(schedule.collective != Collective::Barrier, "a barrier has no results to mark");
}
