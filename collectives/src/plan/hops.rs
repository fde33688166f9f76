//! Messages that go from neighbor to neighbor along a spanning tree, or around a ring.
//!
//! A planner lists the messages of all ranks in one order, in which they could be sent one after the other.
//! All ranks list the same messages, so their order in each FIFO is the same at both ends, and each message
//! waits only for earlier ones of the list: no circle of waiting ranks is possible. From the list follow the
//! stages of the messages ([`Builder::stage`]). Of a plan for one rank only, that rank's steps are kept.
//!
//! Invariant: the stages of messages do not depend on [`InPlace`], in which ranks may differ. So a planner
//! receives into memory that no earlier message of the list still needs, even where input and output are the
//! same memory, or only after messages that depend on those.

use crate::builder::Builder;
use crate::numerics;
use crate::schedule::{Buffer, ChunkRange, InPlace, Schedule};
use crate::{PlanError, RingOrder, Spec};
use std::collections::HashMap;
use topology::Rank;

/// Memory for messages on their way, per rank, which they take in turns.
pub(super) const TRANSIT_SLOTS: u32 = 4;

/// The end of a message's way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Landing {
    /// The message is stored.
    At(ChunkRange),
    /// The message is added to `local`, into `dst`.
    Added { local: ChunkRange, dst: ChunkRange },
}

/// Returns the ranks from one to another, both included: the shorter way around a ring in another order than
/// that of the ranks ([`Spec::with_ring`]), or the way along the tree where there is no such ring.
pub(super) fn way(spec: &Spec, from: Rank, to: Rank) -> Vec<Rank> {
    let (ranks, ring) = (spec.ranks(), spec.ring());
    let ends = ring.position(from).zip(ring.position(to)).filter(|_| ring != RingOrder::default());
    let Some((mut at, end)) = ends else { return spec.tree().rooted(ranks, to).way_in(from) };
    let is_ahead = 2 * ((end.0 + ranks - at.0) % ranks) <= ranks;
    let mut way = vec![from];
    while at != end {
        at = if is_ahead { at.ahead(1, ranks) } else { at.behind(1, ranks) };
        way.push(ring.rank(at));
    }
    way
}

/// The messages of a plan so far.
#[derive(Debug)]
pub(super) struct Hops {
    builder: Builder,
    /// The only rank whose steps are kept, if the plan is for one.
    only: Option<Rank>,
    /// Stage of the latest message, by sender and receiver.
    fifos: HashMap<(Rank, Rank), u32>,
    /// Latest use of each rank's memory.
    cells: HashMap<(Rank, Buffer, u32), Cell>,
    /// Messages that each rank has relayed.
    relayed: HashMap<Rank, u32>,
    /// The latest stage in which a rank sends from its input.
    inputs: HashMap<Rank, u32>,
}

/// Stages of the latest use of a chunk of memory.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// The first stage in which the chunk's contents can be sent.
    ready: u32,
    /// The latest stage in which they are read.
    read: u32,
}

impl Hops {
    /// Begins a plan of one chunk per block.
    pub(super) fn new(spec: &Spec, scratch_blocks: u32) -> Hops {
        Hops {
            builder: Builder::new(spec, "spanning_tree", 1, scratch_blocks),
            only: spec.only(),
            fifos: HashMap::new(),
            cells: HashMap::new(),
            relayed: HashMap::new(),
            inputs: HashMap::new(),
        }
    }

    fn is_planned(&self, rank: Rank) -> bool {
        self.only.is_none_or(|only| only == rank)
    }

    fn cell(&mut self, rank: Rank, range: ChunkRange) -> &mut Cell {
        self.cells.entry((rank, range.buffer, range.first)).or_default()
    }

    /// Sends `src` from one rank to its neighbor.
    pub(super) fn send(&mut self, from: Rank, to: Rank, src: ChunkRange, landing: Landing) {
        let (dst, local) = match landing {
            Landing::At(dst) => (dst, None),
            Landing::Added { local, dst } => (dst, Some(local)),
        };
        let over = *self.cell(to, dst);
        // A sum is complete one message before its next operand's message may have to be.
        let mut stage = self.cell(from, src).ready.max(over.read).max(over.ready.saturating_sub(1));
        if let Some(local) = local {
            stage = stage.max(self.cell(to, local).ready.saturating_sub(1));
        }
        if let Some(latest) = self.fifos.get(&(from, to)) {
            stage = stage.max(latest + 1);
        }
        self.fifos.insert((from, to), stage);
        let source = self.cell(from, src);
        source.read = source.read.max(stage);
        *self.cell(to, dst) = Cell { ready: stage + 1, read: stage };
        if src.buffer == Buffer::Input {
            let latest = self.inputs.entry(from).or_default();
            *latest = stage.max(*latest);
        }
        self.builder.stage(stage);
        if self.is_planned(from) {
            self.builder.send(from, to, src, 0);
        }
        if self.is_planned(to) {
            match landing {
                Landing::At(dst) => self.builder.recv(to, from, dst, 0),
                Landing::Added { local, dst } => self.builder.recv_reduce(to, from, local, dst, 0),
            }
        }
    }

    /// Sends `src` along a way of two ranks or more; `transit` is the memory of a rank on the way.
    pub(super) fn relay(
        &mut self,
        way: &[Rank],
        src: ChunkRange,
        landing: Landing,
        mut transit: impl FnMut(&mut Hops, Rank) -> ChunkRange,
    ) {
        let mut src = src;
        for hop in way.windows(2) {
            let [from, to] = [hop[0], hop[1]];
            if Some(&to) == way.last() {
                self.send(from, to, src, landing);
            } else {
                let slot = transit(self, to);
                self.send(from, to, src, Landing::At(slot));
                src = slot;
            }
        }
    }

    /// Returns the next of the transit slots of a rank, numbered from 0.
    pub(super) fn next_slot(&mut self, rank: Rank) -> u32 {
        let relayed = self.relayed.entry(rank).or_default();
        *relayed += 1;
        (*relayed - 1) % TRANSIT_SLOTS
    }

    /// Returns the latest stage in which the memory of a chunk is read, which in place may be an input's.
    ///
    /// Steps within a rank may have other stages in place, since no other rank sees them.
    fn latest_read(&mut self, rank: Rank, dst: ChunkRange) -> u32 {
        let is_input = dst.buffer == Buffer::Output && self.builder.in_place() == InPlace::Yes;
        let inputs = if is_input { self.inputs.get(&rank).copied() } else { None };
        self.cell(rank, dst).read.max(inputs.unwrap_or_default())
    }

    /// Copies within a rank.
    pub(super) fn copy(&mut self, rank: Rank, src: ChunkRange, dst: ChunkRange) {
        let stage = self.cell(rank, src).ready.max(self.latest_read(rank, dst));
        *self.cell(rank, dst) = Cell { ready: stage, read: stage };
        if self.is_planned(rank) {
            self.builder.stage(stage);
            self.builder.copy(rank, src, dst);
        }
    }

    /// Adds two chunks of a rank.
    pub(super) fn reduce(&mut self, rank: Rank, a: ChunkRange, b: ChunkRange, dst: ChunkRange) {
        let operands = self.cell(rank, a).ready.max(self.cell(rank, b).ready);
        let over = *self.cell(rank, dst);
        let stage = operands.max(over.ready).max(self.latest_read(rank, dst));
        *self.cell(rank, dst) = Cell { ready: stage, read: stage };
        if self.is_planned(rank) {
            self.builder.stage(stage);
            self.builder.reduce(rank, a, b, dst);
        }
    }

    /// Marks the newest step of a rank as the one that completes its result.
    pub(super) fn mark_last(&mut self, rank: Rank) {
        if self.is_planned(rank) {
            self.builder.mark_last(rank);
        }
    }

    /// Adds the contributions of all ranks in canonical order. `own` is the rank's own one, which is not
    /// written; `others` has those of the others, and room for partial sums.
    pub(super) fn fold(
        &mut self,
        (rank, ranks): (Rank, u32),
        own: ChunkRange,
        others: impl Fn(Rank) -> ChunkRange,
        result: ChunkRange,
    ) {
        let mut additions = 0;
        let leaf = &mut |of: Rank| if of == rank { own } else { others(of) };
        let whole = numerics::fold(ranks, leaf, &mut |a, b| {
            additions += 1;
            let partial = if a == own { b } else { a };
            let dst = if additions == ranks - 1 { result } else { partial };
            self.reduce(rank, a, b, dst);
            dst
        });
        if ranks == 1 {
            self.copy(rank, whole, result);
        } else {
            self.mark_last(rank);
        }
    }

    /// Returns the schedule.
    pub(super) fn finish(self) -> Result<Schedule, PlanError> {
        self.builder.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::{Case, cases};
    use crate::verify::Credits;
    use topology::Reach;

    fn tree_cases(ranks: u32, segments: &[u32]) -> impl Iterator<Item = Case> {
        cases(ranks, segments).filter(|case| case.algorithm.name == "spanning_tree")
    }

    #[test]
    fn plans_along_trees_are_right_in_pieces_too_and_use_edges_only() {
        for ranks in 1..=9 {
            for case in tree_cases(ranks, &[1, 2, 3]) {
                case.verify(Credits(0)).unwrap_or_else(|error| panic!("{error}"));
                let tree = case.spec.tree().rooted(ranks, Rank(0));
                let edges = Reach::new(ranks, |a, b| tree.parent(a) == Some(b) || tree.parent(b) == Some(a));
                let schedule = case.plan().expect("verified");
                assert_eq!(schedule.first_unconnected(&edges), None, "{case}");
            }
        }
    }
}
