//! A ring through some of the ranks, for planners that have more than one.
//!
//! The data is as many parts as the ring has places. While they are added up, part `p` starts at place `p` and travels
//! forward; after `size - 1` stages place `p` has all of part `p + 1`. Then the results go round in the same way.

use crate::builder::Builder;
use crate::schedule::{Buffer, ChunkRange};
use topology::Rank;

/// A ring, as one of its places sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Circle {
    /// How many places it has.
    pub(super) size: u32,
    /// The own one.
    pub(super) place: u32,
    /// Who comes next.
    pub(super) next: Rank,
    /// Who comes before.
    pub(super) previous: Rank,
    /// The lane of its messages.
    pub(super) lane: u8,
}

impl Circle {
    /// The ring through `member(0)`, `member(1)` and so on, on lane 0.
    pub(super) fn through(size: u32, place: u32, member: impl Fn(u32) -> Rank) -> Circle {
        let (next, previous) = (member((place + 1) % size), member((place + size - 1) % size));
        Circle { size, place, next, previous, lane: 0 }
    }

    /// The part that is `back` places behind the own one.
    const fn behind(&self, back: u32) -> u32 {
        (self.place + self.size - back % self.size) % self.size
    }

    /// The part that is complete here once all are added up.
    pub(super) const fn owned(&self) -> u32 {
        (self.place + 1) % self.size
    }

    /// The part that is sent on in a stage while results go round; what comes is the one behind it.
    pub(super) const fn passed(&self, stage: u32) -> u32 {
        self.behind(stage + self.size - 1)
    }

    /// Adds up: one of `size - 1` stages. Contributions are in `from`, sums in the output.
    pub(super) fn add(
        &self,
        builder: &mut Builder,
        rank: Rank,
        stage: u32,
        from: Buffer,
        part: &impl Fn(Buffer, u32) -> ChunkRange,
    ) {
        let (sent, came) = (self.behind(stage), self.behind(stage + 1));
        let partial = if stage == 0 { from } else { Buffer::Output };
        builder.send(rank, self.next, part(partial, sent), self.lane);
        builder.recv_reduce(rank, self.previous, part(from, came), part(Buffer::Output, came), self.lane);
    }

    /// Passes results on: one of `size - 1` stages.
    pub(super) fn pass(
        &self,
        builder: &mut Builder,
        rank: Rank,
        stage: u32,
        part: &impl Fn(Buffer, u32) -> ChunkRange,
    ) {
        let (sent, came) = (self.passed(stage), self.passed(stage + 1));
        builder.send(rank, self.next, part(Buffer::Output, sent), self.lane);
        builder.recv(rank, self.previous, part(Buffer::Output, came), self.lane);
    }
}
