//! Reduction of messages from all other ranks in canonical order.
//!
//! The order of [`crate::numerics`] becomes steps: a message is received, or added as it arrives, when its
//! turn comes. Partial sums are kept in buffers that are reused. `log2(n)` buffers are enough; out of place
//! the output is one of them.

use crate::builder::Builder;
use crate::numerics;
use crate::schedule::{ChunkRange, InPlace};
use topology::Rank;

/// An operand of the sum.
#[derive(Clone, Copy, Debug)]
enum Term {
    /// The rank's own contribution.
    Own,
    /// The contribution of another rank, in a message that is not received yet.
    Incoming(Rank),
    /// A partial sum or contribution in a buffer.
    At(ChunkRange),
}

/// The buffers of a sum.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoldBuffers {
    /// The rank's own contribution, which is not written.
    pub(super) own: ChunkRange,
    /// The destination of the result. In place it is the memory of the rank's own contribution.
    pub(super) result: ChunkRange,
    /// The chunk of every scratch block that partial sums may use; it is as long as the result.
    pub(super) chunk: u32,
    /// Chunks per block.
    pub(super) chunks: u32,
    /// The scratch block of the first partial sum, and the distance in blocks to the next one.
    pub(super) scratch: (u32, u32),
}

/// Returns the scratch blocks that a sum over `ranks` ranks needs.
pub(super) fn scratch_blocks(ranks: u32, in_place: InPlace) -> u32 {
    if ranks == 1 {
        return 0;
    }
    let buffers = if ranks > 2 { ranks.next_power_of_two().ilog2() } else { 0 };
    // In place the last message cannot be added as it arrives, since the destination is still being sent.
    if in_place == InPlace::Yes { buffers + 1 } else { buffers.saturating_sub(1) }
}

/// Receives one message from each other rank and adds all contributions, `rank`'s own included, in canonical
/// order.
pub(super) fn receive_and_add(builder: &mut Builder, rank: Rank, ranks: u32, buffers: FoldBuffers, lane: u8) {
    let in_place = builder.in_place() == InPlace::Yes;
    let (first, stride) = buffers.scratch;
    let scratch =
        (0..scratch_blocks(ranks, builder.in_place())).rev().map(|addition| first + addition * stride);
    let mut free: Vec<ChunkRange> =
        scratch.map(|block| ChunkRange::scratch(block * buffers.chunks + buffers.chunk)).collect();
    free.extend((!in_place).then_some(buffers.result));
    let mut additions = 0;
    let leaf = &mut |of| if of == rank { Term::Own } else { Term::Incoming(of) };
    let whole = numerics::fold(ranks, leaf, &mut |a, b| {
        additions += 1;
        let last = additions == ranks - 1;
        let mut addition = Addition { builder: &mut *builder, rank, lane, own: buffers.own, free: &mut free };
        let dst = addition.add(a, b, last.then_some(buffers.result), last && in_place);
        if last {
            builder.mark_last(rank);
        }
        Term::At(dst)
    });
    if let Term::Own = whole {
        builder.copy(rank, buffers.own, buffers.result);
    }
}

/// The addition of two operands.
struct Addition<'a> {
    builder: &'a mut Builder,
    rank: Rank,
    lane: u8,
    own: ChunkRange,
    free: &'a mut Vec<ChunkRange>,
}

impl Addition<'_> {
    /// Adds two operands and returns the location of the sum.
    fn add(&mut self, a: Term, b: Term, result: Option<ChunkRange>, separate: bool) -> ChunkRange {
        let (a, b) = match (a, b) {
            // One operand must be local, so that the other can be added as it arrives.
            (Term::Incoming(from), Term::Incoming(other)) => {
                let buffer = self.take_buffer();
                self.builder.recv(self.rank, from, buffer, self.lane);
                (Term::At(buffer), Term::Incoming(other))
            }
            (Term::Incoming(from), here) => (here, Term::Incoming(from)),
            operands => operands,
        };
        let b = match b {
            Term::Incoming(from) if separate => {
                let buffer = self.take_buffer();
                self.builder.recv(self.rank, from, buffer, self.lane);
                Term::At(buffer)
            }
            b => b,
        };
        for buffer in [a, b] {
            if let Term::At(buffer) = buffer {
                self.free.push(buffer);
            }
        }
        let dst = result.unwrap_or_else(|| match (a, b) {
            (Term::At(buffer), _) | (_, Term::At(buffer)) => {
                self.free.retain(|free| *free != buffer);
                buffer
            }
            _ => self.take_buffer(),
        });
        let local = self.buffer(a);
        match b {
            Term::Incoming(from) => self.builder.recv_reduce(self.rank, from, local, dst, self.lane),
            here => self.builder.reduce(self.rank, local, self.buffer(here), dst),
        }
        dst
    }

    fn take_buffer(&mut self) -> ChunkRange {
        self.free.pop().expect("places for as many partial sums as there can be")
    }

    fn buffer(&self, term: Term) -> ChunkRange {
        match term {
            Term::At(buffer) => buffer,
            _ => self.own,
        }
    }
}
