//! Plans around a ring in another order than the ranks' numbers.
//!
//! Such a plan is made for the positions of the ring, and then renumbered: rank and block `p` become the rank
//! at position `p` and its block. Every step of a plan around a ring works within one block, so its chunks
//! stay side by side.

use crate::schedule::{Action, Buffer, ChunkRange, RankProgram, Schedule};
use crate::{Collective, RingOrder, Spec};
use topology::Rank;

/// Returns a plan for the positions of the spec's ring as a plan for its ranks.
pub(super) fn renumber(schedule: Schedule, spec: &Spec) -> Schedule {
    let (ring, chunks) = (spec.ring(), schedule.chunks);
    let blocks = NumberedBlocks::of(spec, &schedule);
    let range = |range: ChunkRange| {
        if !blocks.has(range.buffer) {
            return range;
        }
        let (block, chunk) = (range.first / chunks, range.first % chunks);
        debug_assert!(chunk + range.len <= chunks, "a run of chunks extends over blocks");
        ChunkRange { first: ring.rank(Rank(block)).0 * chunks + chunk, ..range }
    };
    let mut programs = vec![RankProgram::default(); schedule.programs.len()];
    for (position, mut program) in (0..).map(Rank).zip(schedule.programs) {
        for step in &mut program.steps {
            step.action = with_peer(step.action.map_ranges(range), ring);
        }
        programs[ring.rank(position).index()] = program;
    }
    Schedule { programs, root: spec.root(), ..schedule }
}

/// Returns an action whose peer is the rank at the position that was its peer.
fn with_peer(mut action: Action, ring: RingOrder) -> Action {
    if let Action::Send { peer, .. } | Action::Recv { peer, .. } | Action::RecvReduce { peer, .. } =
        &mut action
    {
        *peer = ring.rank(*peer);
    }
    action
}

/// The buffers of a plan whose block `b` belongs to rank `b`.
#[derive(Clone, Copy, Debug)]
struct NumberedBlocks {
    input: bool,
    output: bool,
    scratch: bool,
}

impl NumberedBlocks {
    fn of(spec: &Spec, schedule: &Schedule) -> NumberedBlocks {
        let (collective, ranks) = (spec.collective(), spec.ranks());
        let is_one_each = |blocks: u32| blocks == ranks && ranks > 1;
        NumberedBlocks {
            input: is_one_each(collective.input_blocks(ranks)),
            output: is_one_each(collective.output_blocks(ranks)),
            // Only blocks of unequal lengths have scratch blocks of their own length, by rank.
            scratch: spec.uneven()
                && collective != Collective::AllToAll
                && is_one_each(schedule.scratch_blocks),
        }
    }

    fn has(self, buffer: Buffer) -> bool {
        match buffer {
            Buffer::Input => self.input,
            Buffer::Output => self.output,
            Buffer::Scratch => self.scratch,
            Buffer::Packed => false,
        }
    }
}
