//! A ring through some of the ranks, for planners that use more than one ring.
//!
//! The data has one part per position of the ring. In the reduce-scatter, part `p` starts at position `p` and
//! travels forward; after `size - 1` stages position `p` has the whole sum of part `p + 1`. The all-gather
//! then forwards the results in the same direction.

use crate::builder::Builder;
use crate::schedule::{Buffer, ChunkRange};
use topology::Rank;

/// A ring, as seen from one of its positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct SubRing {
    /// The number of positions.
    pub(super) size: u32,
    /// The position of the rank itself.
    pub(super) place: u32,
    /// The next rank.
    pub(super) next: Rank,
    /// The previous rank.
    pub(super) previous: Rank,
    /// The lane of the ring's messages.
    pub(super) lane: u8,
}

impl SubRing {
    /// Creates the ring through `member(0)`, `member(1)` and so on, on lane 0.
    pub(super) fn through(size: u32, place: u32, member: impl Fn(u32) -> Rank) -> SubRing {
        let (next, previous) = (member((place + 1) % size), member((place + size - 1) % size));
        SubRing { size, place, next, previous, lane: 0 }
    }

    /// Returns the part with the index `back` positions behind this one.
    const fn behind(&self, back: u32) -> u32 {
        (self.place + self.size - back % self.size) % self.size
    }

    /// Returns the part that is complete at this position after the reduce-scatter.
    pub(super) const fn owned(&self) -> u32 {
        (self.place + 1) % self.size
    }

    /// Returns the part that this position sends in a stage of the all-gather; it receives the part behind
    /// that one.
    pub(super) const fn forwarded(&self, stage: u32) -> u32 {
        self.behind(stage + self.size - 1)
    }

    /// Adds one of the `size - 1` stages of the reduce-scatter. Contributions are in `from`, sums in the
    /// output.
    pub(super) fn reduce_scatter_stage(
        &self,
        builder: &mut Builder,
        rank: Rank,
        stage: u32,
        from: Buffer,
        part: &impl Fn(Buffer, u32) -> ChunkRange,
    ) {
        let (sent, received) = (self.behind(stage), self.behind(stage + 1));
        let partial = if stage == 0 { from } else { Buffer::Output };
        builder.send(rank, self.next, part(partial, sent), self.lane);
        builder.recv_reduce(
            rank,
            self.previous,
            part(from, received),
            part(Buffer::Output, received),
            self.lane,
        );
    }

    /// Adds one of the `size - 1` stages of the all-gather.
    pub(super) fn all_gather_stage(
        &self,
        builder: &mut Builder,
        rank: Rank,
        stage: u32,
        part: &impl Fn(Buffer, u32) -> ChunkRange,
    ) {
        let (sent, received) = (self.forwarded(stage), self.forwarded(stage + 1));
        builder.send(rank, self.next, part(Buffer::Output, sent), self.lane);
        builder.recv(rank, self.previous, part(Buffer::Output, received), self.lane);
    }
}
