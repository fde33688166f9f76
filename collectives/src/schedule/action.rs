//! The accesses of a step: the reads, the write and the message of an [`Action`].
//!
//! Everything that reasons about schedules (builder, verifier, passes, executor) uses this, so that a new
//! kind of step is described once.

use super::{Action, Buffer, ChunkRange};
use topology::Rank;

/// The direction of a message, seen from the rank that has the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// The rank sends it.
    Out,
    /// The rank receives it.
    In,
}

impl ChunkRange {
    /// One chunk.
    #[must_use]
    pub const fn one(buffer: Buffer, chunk: u32) -> ChunkRange {
        ChunkRange { buffer, first: chunk, len: 1 }
    }

    /// One chunk of the input.
    #[must_use]
    pub const fn input(chunk: u32) -> ChunkRange {
        ChunkRange::one(Buffer::Input, chunk)
    }

    /// One chunk of the output.
    #[must_use]
    pub const fn output(chunk: u32) -> ChunkRange {
        ChunkRange::one(Buffer::Output, chunk)
    }

    /// One chunk of the scratch memory.
    #[must_use]
    pub const fn scratch(chunk: u32) -> ChunkRange {
        ChunkRange::one(Buffer::Scratch, chunk)
    }

    /// Whether the range is packed.
    #[must_use]
    pub const fn is_packed(self) -> bool {
        matches!(self.buffer, Buffer::Packed)
    }
}

impl Action {
    /// Returns the chunks that the action receives into.
    pub(crate) const fn received(&self) -> Option<ChunkRange> {
        match *self {
            Action::Recv { dst, .. } | Action::RecvReduce { dst, .. } => Some(dst),
            _ => None,
        }
    }

    /// Returns the rank at the other end of the message, and the message's direction; `None` for local steps.
    #[must_use]
    pub const fn message(&self) -> Option<(Rank, Direction)> {
        match *self {
            Action::Send { peer, .. } => Some((peer, Direction::Out)),
            Action::Recv { peer, .. } | Action::RecvReduce { peer, .. } => Some((peer, Direction::In)),
            _ => None,
        }
    }

    /// Returns the local memory that the action reads: at most two ranges.
    #[must_use]
    pub const fn reads(&self) -> [Option<ChunkRange>; 2] {
        match *self {
            Action::Send { src, .. }
            | Action::Copy { src, .. }
            | Action::Encode { src, .. }
            | Action::Decode { src, .. } => [Some(src), None],
            Action::Recv { .. } => [None, None],
            Action::RecvReduce { local, .. } => [Some(local), None],
            Action::Reduce { a, b, .. } => [Some(a), Some(b)],
            Action::DecodeReduce { local, src, .. } => [Some(local), Some(src)],
        }
    }

    /// Returns the local memory that the action writes.
    #[must_use]
    pub const fn writes(&self) -> Option<ChunkRange> {
        match *self {
            Action::Send { .. } => None,
            Action::Recv { dst, .. }
            | Action::RecvReduce { dst, .. }
            | Action::Copy { dst, .. }
            | Action::Reduce { dst, .. }
            | Action::Encode { dst, .. }
            | Action::Decode { dst, .. }
            | Action::DecodeReduce { dst, .. } => Some(dst),
        }
    }

    /// Returns every range of the action.
    pub fn ranges(&self) -> impl Iterator<Item = ChunkRange> + use<> {
        let [a, b] = self.reads();
        [self.writes(), a, b].into_iter().flatten()
    }

    /// Returns the chunks of the message: its source, or its destination.
    #[must_use]
    pub const fn payload(&self) -> Option<ChunkRange> {
        match *self {
            Action::Send { src, .. } => Some(src),
            Action::Recv { dst, .. } | Action::RecvReduce { dst, .. } => Some(dst),
            _ => None,
        }
    }

    /// Returns the "this result is complete" mark of a reducing step; `None` for other steps.
    #[must_use]
    pub const fn last(&self) -> Option<bool> {
        match *self {
            Action::RecvReduce { last, .. }
            | Action::Reduce { last, .. }
            | Action::DecodeReduce { last, .. } => Some(last),
            _ => None,
        }
    }

    /// Returns the same action with this mark; actions that do not reduce stay as they are.
    #[must_use]
    pub const fn with_last(mut self, mark: bool) -> Action {
        if let Action::RecvReduce { last, .. }
        | Action::Reduce { last, .. }
        | Action::DecodeReduce { last, .. } = &mut self
        {
            *last = mark;
        }
        self
    }

    /// Returns the same action on other memory: every range goes through `map`.
    #[must_use]
    pub fn map_ranges(self, mut map: impl FnMut(ChunkRange) -> ChunkRange) -> Action {
        match self {
            Action::Send { peer, src } => Action::Send { peer, src: map(src) },
            Action::Recv { peer, dst } => Action::Recv { peer, dst: map(dst) },
            Action::RecvReduce { peer, local, dst, last } => {
                Action::RecvReduce { peer, local: map(local), dst: map(dst), last }
            }
            Action::Copy { src, dst } => Action::Copy { src: map(src), dst: map(dst) },
            Action::Reduce { a, b, dst, last } => {
                Action::Reduce { a: map(a), b: map(b), dst: map(dst), last }
            }
            Action::Encode { src, dst } => Action::Encode { src: map(src), dst: map(dst) },
            Action::Decode { src, dst } => Action::Decode { src: map(src), dst: map(dst) },
            Action::DecodeReduce { local, src, dst, last } => {
                Action::DecodeReduce { local: map(local), src: map(src), dst: map(dst), last }
            }
        }
    }
}
