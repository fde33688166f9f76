//! Packing of every message of an `all_reduce`.
//!
//! A rank's steps become steps that do the same through packed chunks: data is encoded before it is sent, and
//! received data lands packed. Four rules give the same bits on every rank:
//!
//! * A value that has been packed and sent is from then on the value of its receivers: the sender itself goes
//!   on with the packed value, not with the original.
//! * A packed value that has not changed is never packed again: it is sent on as it is.
//! * A packed value is decoded where it is added, or where it is a result; not before.
//! * Where ranks that complete results send them ([`Builder::declare_results_sent`]), each of them packs its
//!   result, whether or not it has to send it.
//!
//! A packed chunk has the length of the chunk of the same index, so it always keeps its index. Sent data is
//! not received over: a receive never waits for a send that it did not wait for before, and a plan that was
//! safe with zero credits stays so. Two chunks of packed memory take turns in receiving.
//!
//! A rank's steps are rewritten by themselves, so that a rank can plan for itself alone; the verifier proves
//! for all together that the results are the same.
//!
//! [`Builder::declare_results_sent`]: crate::builder::Builder::declare_results_sent

use crate::schedule::Memory;
use crate::schedule::{Action, Buffer, ChunkRange, DraftStep};
use std::collections::{HashMap, VecDeque};

/// A block of packed memory; with the index of a chunk, a packed chunk.
type Block = u32;

/// Free chunks of packed memory that make a receive take one of them rather than a new one.
const TAKE_TURNS: usize = 2;

/// The steps of one rank, rewritten; and the blocks of packed memory that they need.
pub(crate) fn quantize(
    memory: &Memory,
    chunks: u32,
    steps: &[DraftStep],
    are_results_sent: bool,
) -> (Vec<DraftStep>, u32) {
    let steps: Vec<DraftStep> = steps.iter().flat_map(single_chunks).collect();
    let mut last_writes = HashMap::new();
    for (at, step) in steps.iter().enumerate() {
        last_writes.extend(step.action.writes().map(|dst| (memory.span(dst).start, at)));
    }
    let mut rewriter = Rewriter {
        memory,
        chunks,
        are_results_sent,
        last_writes,
        cells: HashMap::new(),
        pools: HashMap::new(),
        blocks: 0,
        steps: Vec::new(),
    };
    for (at, step) in steps.iter().enumerate() {
        rewriter.rewrite(at, step);
    }
    (rewriter.steps, rewriter.blocks)
}

/// A step over several chunks as steps over one.
fn single_chunks(step: &DraftStep) -> impl Iterator<Item = DraftStep> {
    let step = *step;
    let len = step.action.ranges().next().map_or(1, |range| range.len);
    (0..len).map(move |nth| {
        let one = |range: ChunkRange| ChunkRange::one(range.buffer, range.first + nth);
        DraftStep { action: step.action.map_ranges(one), ..step }
    })
}

/// The state of a chunk of memory that is related to packed ones.
#[derive(Clone, Copy, Debug)]
struct Cell {
    /// The packed chunk with its value.
    block: Block,
    /// Whether the memory itself holds the value as well.
    decoded: bool,
}

/// Packed chunks of one index.
#[derive(Debug, Default)]
struct Pool {
    /// How many there are.
    total: u32,
    /// Unused packed chunks, the one that was returned first in front.
    free: VecDeque<Block>,
    /// The same of those that have been sent: only what is packed here is written there.
    free_sent: VecDeque<Block>,
    /// How many cells' values are in each, and whether it has been sent.
    uses: HashMap<Block, (u32, bool)>,
}

struct Rewriter<'a> {
    memory: &'a Memory,
    chunks: u32,
    are_results_sent: bool,
    /// The last step that writes to a cell.
    last_writes: HashMap<usize, usize>,
    cells: HashMap<usize, Cell>,
    /// By the chunk's index in its block.
    pools: HashMap<u32, Pool>,
    blocks: u32,
    steps: Vec<DraftStep>,
}

impl Rewriter<'_> {
    fn rewrite(&mut self, at: usize, step: &DraftStep) {
        match step.action {
            Action::Send { peer, src } => {
                let block = self.packed(at, step, src);
                self.pool(src).uses.entry(block).or_default().1 = true;
                self.push(step, Action::Send { peer, src: self.place(block, src) });
            }
            Action::Recv { peer, dst } => {
                let block = self.take_to_receive(dst);
                self.push(step, Action::Recv { peer, dst: self.place(block, dst) });
                self.hold(dst, Cell { block, decoded: false });
                self.decode_if_result(at, step, dst);
            }
            Action::RecvReduce { peer, local, dst, last } => {
                let block = self.take_to_receive(dst);
                self.push(step, Action::Recv { peer, dst: self.place(block, dst) });
                let local = self.in_memory(step, local, dst);
                let src = self.place(block, dst);
                self.push(step, Action::DecodeReduce { local, src, dst, last });
                self.forget(dst);
                self.give_back(block, dst);
                self.pack_if_complete(at, step, dst, last);
            }
            Action::Reduce { a, b, dst, last } => {
                self.reduce(step, [a, b], dst, last);
                self.forget(dst);
                self.pack_if_complete(at, step, dst, last);
            }
            Action::Copy { src, dst } => {
                let known = self.cell(src);
                match known {
                    Some(Cell { block, decoded: false }) => {
                        self.push(step, Action::Decode { src: self.place(block, src), dst });
                    }
                    _ => self.push(step, step.action),
                }
                match known {
                    Some(Cell { block, .. }) => self.hold(dst, Cell { block, decoded: true }),
                    None => self.forget(dst),
                }
            }
            // Planners know nothing of packed chunks.
            Action::Encode { .. } | Action::Decode { .. } | Action::DecodeReduce { .. } => {
                self.push(step, step.action);
            }
        }
    }

    /// `dst = a ⊕ b`, each from memory or from where it is packed.
    fn reduce(&mut self, step: &DraftStep, [a, b]: [ChunkRange; 2], dst: ChunkRange, last: bool) {
        let packed = |cell: Option<Cell>| cell.filter(|cell| !cell.decoded).map(|cell| cell.block);
        let action = match (packed(self.cell(a)), packed(self.cell(b))) {
            (None, None) => step.action,
            (None, Some(block)) => Action::DecodeReduce { local: a, src: self.place(block, b), dst, last },
            (Some(block), None) => Action::DecodeReduce { local: b, src: self.place(block, a), dst, last },
            (Some(_), Some(block)) => {
                let local = self.in_memory(step, a, dst);
                Action::DecodeReduce { local, src: self.place(block, b), dst, last }
            }
        };
        self.push(step, action);
    }

    /// Returns a range of memory with the value of a range; decodes to `spare` if the value is only packed.
    fn in_memory(&mut self, step: &DraftStep, range: ChunkRange, spare: ChunkRange) -> ChunkRange {
        match self.cell(range) {
            Some(Cell { block, decoded: false }) => {
                self.push(step, Action::Decode { src: self.place(block, range), dst: spare });
                spare
            }
            _ => range,
        }
    }

    /// Returns the packed chunk with the value of a range; from now on that is its value.
    fn packed(&mut self, at: usize, step: &DraftStep, range: ChunkRange) -> Block {
        if let Some(cell) = self.cell(range) {
            return cell.block;
        }
        let block = self.take_to_encode(range);
        self.push(step, Action::Encode { src: range, dst: self.place(block, range) });
        self.hold(range, Cell { block, decoded: false });
        self.decode_if_result(at, step, range);
        block
    }

    /// A result that goes to others is packed at once.
    fn pack_if_complete(&mut self, at: usize, step: &DraftStep, range: ChunkRange, last: bool) {
        if last && self.are_results_sent {
            self.packed(at, step, range);
        }
    }

    /// A value that stays in the output is decoded.
    fn decode_if_result(&mut self, at: usize, step: &DraftStep, range: ChunkRange) {
        let cell = self.memory.span(range).start;
        let stays = self.last_writes.get(&cell).is_none_or(|last| *last <= at);
        if !(stays && self.memory.whole(Buffer::Output).contains(&cell)) {
            return;
        }
        if let Some(Cell { block, .. }) = self.cell(range) {
            self.push(step, Action::Decode { src: self.place(block, range), dst: range });
            self.cells.insert(cell, Cell { block, decoded: true });
        }
    }

    fn push(&mut self, step: &DraftStep, action: Action) {
        let lane = if action.message().is_some() { step.lane } else { 0 };
        self.steps.push(DraftStep { action, lane, ..*step });
    }

    fn cell(&self, range: ChunkRange) -> Option<Cell> {
        self.cells.get(&self.memory.span(range).start).copied()
    }

    /// The cell has another value than before, which is packed.
    fn hold(&mut self, range: ChunkRange, cell: Cell) {
        self.pool(range).uses.entry(cell.block).or_default().0 += 1;
        self.forget(range);
        self.cells.insert(self.memory.span(range).start, cell);
    }

    /// The cell has another value than before, which is not packed.
    fn forget(&mut self, range: ChunkRange) {
        if let Some(Cell { block, .. }) = self.cells.remove(&self.memory.span(range).start) {
            if let Some((cells, _)) = self.pool(range).uses.get_mut(&block) {
                *cells -= 1;
            }
            self.give_back(block, range);
        }
    }

    fn pool(&mut self, range: ChunkRange) -> &mut Pool {
        self.pools.entry(range.first % self.chunks).or_default()
    }

    fn place(&self, block: Block, range: ChunkRange) -> ChunkRange {
        ChunkRange::one(Buffer::Packed, block * self.chunks + range.first % self.chunks)
    }

    fn take_to_receive(&mut self, range: ChunkRange) -> Block {
        let pool = self.pool(range);
        let again = if pool.free.len() >= TAKE_TURNS { pool.free.pop_front() } else { None };
        again.unwrap_or_else(|| self.take_new(range))
    }

    fn take_to_encode(&mut self, range: ChunkRange) -> Block {
        let pool = self.pool(range);
        let again = pool.free.pop_front().or_else(|| pool.free_sent.pop_front());
        again.unwrap_or_else(|| self.take_new(range))
    }

    fn take_new(&mut self, range: ChunkRange) -> Block {
        let pool = self.pool(range);
        pool.total += 1;
        let block = pool.total - 1;
        self.blocks = self.blocks.max(block + 1);
        block
    }

    /// Returns a packed chunk for reuse, if no cell's value is there.
    fn give_back(&mut self, block: Block, range: ChunkRange) {
        let pool = self.pool(range);
        match pool.uses.get(&block) {
            Some((cells, _)) if *cells > 0 => {}
            Some((_, true)) => pool.free_sent.push_back(block),
            _ => pool.free.push_back(block),
        }
    }
}
