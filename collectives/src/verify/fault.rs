//! Faults of schedules.

use crate::schedule::{ChunkRange, Schedule, Step};
use crate::{Collective, Numerics};
use std::fmt;
use thiserror::Error;
use topology::Rank;

/// A step and its position in the schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocatedStep {
    /// The rank.
    pub rank: Rank,
    /// The index in the rank's program.
    pub number: u32,
    /// The step itself.
    pub step: Box<Step>,
}

impl LocatedStep {
    pub(crate) fn new(schedule: &Schedule, rank: u32, number: u32) -> LocatedStep {
        let step = schedule.programs[rank as usize].steps[number as usize].clone();
        LocatedStep { rank: Rank(rank), number, step: Box::new(step) }
    }
}

impl fmt::Display for LocatedStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} step {} `{}`", self.rank, self.number, self.step)
    }
}

/// The first thing found to be wrong with a schedule.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// The schedule as a whole makes no sense.
    #[error("{0}")]
    Shape(String),
    /// A message to or from nobody, or to the rank itself.
    #[error("{at}: rank {} has no peer {peer}", at.rank)]
    Peer {
        /// The step.
        at: LocatedStep,
        /// The peer.
        peer: Rank,
    },
    /// A lane that the schedule does not have, or one on a step without a message.
    #[error("{at}: lane {} on a step that can use {lanes}", at.step.lane)]
    Lane {
        /// The step.
        at: LocatedStep,
        /// The lanes that there are for it.
        lanes: u8,
    },
    /// A dependency on the step itself, on a later one, or out of order.
    #[error("{at}: `after` and `following` must name earlier steps in ascending order, and {before} is not")]
    Dependency {
        /// The step.
        at: LocatedStep,
        /// The dependency.
        before: u32,
    },
    /// Chunks that the buffer does not have.
    #[error("{at}: {range} is outside of the buffer, whose chunks are {chunks}")]
    Bounds {
        /// The step.
        at: LocatedStep,
        /// The chunks.
        range: ChunkRange,
        /// The chunks that there are.
        chunks: u64,
    },
    /// Operands of one step have different lengths, for some element count at least.
    #[error("{at}: {a} and {b} differ in length, or may when the count is not a multiple of the chunks")]
    Lengths {
        /// The step.
        at: LocatedStep,
        /// One operand.
        a: ChunkRange,
        /// The other one.
        b: ChunkRange,
    },
    /// A packed chunk where elements should be, or the other way round, or several packed chunks at once.
    #[error(
        "{at}: {range} cannot stand here; packed chunks are encoded, sent, received and decoded, one by one"
    )]
    Packed {
        /// The step.
        at: LocatedStep,
        /// The misplaced range.
        range: ChunkRange,
    },
    /// A write to memory that belongs to the caller.
    #[error("{at}: {range} is input that is not part of the output, and may not be written")]
    InputWritten {
        /// The step.
        at: LocatedStep,
        /// The written range.
        range: ChunkRange,
    },
    /// A destination that overlaps an operand in a way that the step does not allow.
    #[error("{at}: the destination overlaps {operand}")]
    Overlap {
        /// The step.
        at: LocatedStep,
        /// The operand.
        operand: ChunkRange,
    },
    /// A send that nothing receives, or a receive that nothing sends.
    #[error("{at}: no step of rank {peer} meets it")]
    Unmatched {
        /// The step.
        at: LocatedStep,
        /// The rank that should have a step for it.
        peer: Rank,
    },
    /// A send and its receive whose lengths differ, for some element count at least.
    #[error("{send} meets {recv}: lengths differ, or may when the count is not a multiple of the chunks")]
    Unequal {
        /// The send.
        send: LocatedStep,
        /// The receive.
        recv: LocatedStep,
    },
    /// Steps that wait for each other.
    #[error("deadlock with {credits} credits:\n  {}", circle(chain))]
    Deadlock {
        /// The credits of each lane.
        credits: u32,
        /// Each waits for the next one, or meets it; the last waits for the first.
        chain: Vec<LocatedStep>,
    },
    /// Two steps that touch the same memory in no defined order.
    #[error("race on {chunk} of rank {}: {first} and {second} have no order", first.rank)]
    Race {
        /// The one listed first.
        first: LocatedStep,
        /// The other one.
        second: LocatedStep,
        /// A chunk that both touch, as the second one calls it.
        chunk: ChunkRange,
    },
    /// A send marked to follow a step that it cannot follow.
    #[error("{at}: it cannot follow step {followed}: {why}")]
    Follows {
        /// The step with the mark.
        at: LocatedStep,
        /// The step that it is to follow.
        followed: u32,
        /// Why it can't.
        why: &'static str,
    },
    /// A read of memory that nothing has been written to.
    #[error("{at}: {range} is read before anything is written there")]
    Undefined {
        /// The step.
        at: LocatedStep,
        /// The range that it reads.
        range: ChunkRange,
    },
    /// A reduction of chunks that do not belong together.
    #[error("{at}: combines chunk {a} of the input with chunk {b}")]
    Mixed {
        /// The step.
        at: LocatedStep,
        /// The chunk of the inputs that the first operand holds.
        a: u32,
        /// The chunk of the inputs that the second operand holds.
        b: u32,
    },
    /// A contribution that is added again.
    #[error("{at}: adds the contribution of rank {rank} a second time")]
    Twice {
        /// The step.
        at: LocatedStep,
        /// The rank that contributes twice.
        rank: Rank,
    },
    /// A `last` mark on a result that is not complete, or none on one that is.
    #[error("{at}: {}", mark(*.expected))]
    Last {
        /// The step.
        at: LocatedStep,
        /// The mark that the step should have.
        expected: bool,
    },
    /// A chunk of the result that has not been written.
    #[error("rank {rank} never gets chunk {chunk} of the result of {collective}")]
    Missing {
        /// The expected content.
        collective: Collective,
        /// The rank.
        rank: Rank,
        /// The chunk of its output.
        chunk: u32,
    },
    /// A chunk of the result that lacks a contribution.
    #[error("chunk {chunk} of rank {rank} lacks the contribution of rank {lacks}")]
    Incomplete {
        /// The rank.
        rank: Rank,
        /// The chunk of its output.
        chunk: u32,
        /// The rank whose contribution is missing.
        lacks: Rank,
    },
    /// A chunk of the result with a contribution that does not belong there.
    #[error(
        "chunk {chunk} of rank {rank} holds the contribution of rank {extra}, which does not belong there"
    )]
    Surplus {
        /// The rank.
        rank: Rank,
        /// The chunk of its output.
        chunk: u32,
        /// The rank that contributes.
        extra: Rank,
    },
    /// A result that two ranks add up in different orders, so that they may get different bits.
    #[error("chunk {chunk} is added up in one order on rank 0 and in another one on rank {rank}")]
    Disagreement {
        /// The chunk of the output.
        chunk: u32,
        /// The first rank that differs from rank 0.
        rank: Rank,
    },
    /// An order of additions that is not the one promised.
    #[error(
        "contributions are combined in an order of the algorithm's own, but {promised} results are promised"
    )]
    Order {
        /// The guarantee of the plan.
        promised: Numerics,
    },
    /// A step on blocks that need not have the same length, in a plan for uneven blocks.
    #[error("{at}: mixes blocks that may differ in length")]
    Shapes {
        /// The step.
        at: LocatedStep,
    },
    /// A chunk of the result that holds something else.
    #[error("chunk {chunk} of rank {rank} should be chunk {expected} of the input{}, but is chunk {found}{}",
        of_rank(*.expected_rank), of_rank(*.found_rank))]
    Contents {
        /// The rank.
        rank: Rank,
        /// The chunk of its output.
        chunk: u32,
        /// The chunk of the input that it should be made from.
        expected: u32,
        /// The rank whose input it is, where it is one rank's.
        expected_rank: Option<Rank>,
        /// The chunk of the input that it is made from.
        found: u32,
        /// The rank whose input it is, where it is one rank's.
        found_rank: Option<Rank>,
    },
    /// A message that the device cannot carry.
    #[error(
        "{at}: {bytes} bytes in one message, and the device takes {max}; cut chunks into {segments} segments"
    )]
    MessageTooLong {
        /// The send.
        at: LocatedStep,
        /// Its length.
        bytes: u64,
        /// The longest message.
        max: u64,
        /// Into how many pieces each of today's chunks must be cut.
        segments: u64,
    },
}

fn circle(chain: &[LocatedStep]) -> String {
    let mut text: Vec<String> = chain.iter().map(LocatedStep::to_string).collect();
    text.extend(chain.first().map(|at| format!("rank {} step {}", at.rank, at.number)));
    text.join("\n  waits for ")
}

const fn mark(expected: bool) -> &'static str {
    if expected {
        "the result is complete, so `last` is missing"
    } else {
        "`last`, but the result is not complete"
    }
}

fn of_rank(rank: Option<Rank>) -> String {
    rank.map(|rank| format!(" of rank {rank}")).unwrap_or_default()
}
