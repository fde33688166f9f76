//! The intermediate representation: a collective as a program that is data.
//!
//! A [`Schedule`] holds, for every rank, a list of [`Step`]s over chunks of its buffers. Chunks are symbolic:
//! a buffer is `blocks x chunks` of them, and the number of elements is bound only when the schedule is
//! executed, so one schedule serves every element count.
//!
//! Order is explicit and there are no global rounds. A step may start when the steps it comes `after` are
//! complete, and in its turn: sends to the same (destination, lane) go in list order, and so do receives from
//! the same (source, lane), one by one: a receive leaves memory alone until the one before it is complete.
//! Sends of one (destination, lane) may overlap; they complete in order, and none begins before the whole one
//! before it has been handed on. The k-th send of rank `a` to rank `b` on a lane meets the k-th receive of
//! rank `b` from rank `a` on that lane, with the same length.
//!
//! A send may *follow* a receive that it comes after: it sends each byte on as soon as it is there
//! ([`crate::pass`] has the proof).
//!
//! A send is complete when its source may be overwritten; a receive when its destination may be read.
//!
//! Bytes, pointers and links are not known here.

mod action;
mod draft;
mod hash;
mod memory;
mod step_id;
mod text;
mod toml_form;

pub use action::Direction;
pub(crate) use draft::DraftStep;
pub(crate) use memory::Memory;
pub(crate) use step_id::StepId;
pub use text::ParseError;
pub use toml_form::TomlError;

use crate::{Collective, Packing};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use topology::{Rank, Reach};

/// One of the memories a rank's steps work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Buffer {
    /// The caller's input. Never written, except where an in-place call makes it part of the output.
    Input,
    /// The caller's output.
    Output,
    /// Memory of the library, alive for one call, contents undefined at its start.
    Scratch,
    /// Scratch memory for packed chunks: chunk `b * chunks + c` holds chunk `c` of a block as the schedule's
    /// codec packs it. It is only encoded, sent, received and decoded.
    Packed,
}

/// A run of chunks of one buffer.
///
/// Chunk `b * chunks + c` is chunk `c` of block `b`. A run may extend over block borders; it is contiguous in
/// memory because blocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkRange {
    /// The buffer.
    pub buffer: Buffer,
    /// The first chunk.
    pub first: u32,
    /// How many chunks; at least 1.
    pub len: u32,
}

/// The operation of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Sends `src` to `peer`.
    Send {
        /// Destination.
        peer: Rank,
        /// The source.
        src: ChunkRange,
    },
    /// Receives a message from `peer` into `dst`.
    Recv {
        /// Source.
        peer: Rank,
        /// The destination.
        dst: ChunkRange,
    },
    /// Receives from `peer` and reduces: `dst = local ⊕ message`. `dst` and `local` are the same chunks or
    /// disjoint.
    RecvReduce {
        /// Source of the message.
        peer: Rank,
        /// The operand that is here already.
        local: ChunkRange,
        /// The result.
        dst: ChunkRange,
        /// The result holds the contributions of all ranks; an average divides here.
        last: bool,
    },
    /// `dst = src`; disjoint.
    Copy {
        /// The source.
        src: ChunkRange,
        /// The destination.
        dst: ChunkRange,
    },
    /// `dst = a ⊕ b`. `dst` is the same chunks as `a` or as `b`, or disjoint from them.
    Reduce {
        /// Left operand.
        a: ChunkRange,
        /// Right operand.
        b: ChunkRange,
        /// The result.
        dst: ChunkRange,
        /// The result holds the contributions of all ranks; an average divides here.
        last: bool,
    },
    /// `dst = packed(src)`.
    Encode {
        /// Elements.
        src: ChunkRange,
        /// A packed chunk.
        dst: ChunkRange,
    },
    /// `dst = unpacked(src)`.
    Decode {
        /// A packed chunk.
        src: ChunkRange,
        /// Elements.
        dst: ChunkRange,
    },
    /// `dst = local ⊕ unpacked(src)`. `dst` and `local` are the same chunk or disjoint.
    DecodeReduce {
        /// The operand that is in memory.
        local: ChunkRange,
        /// The operand that is packed.
        src: ChunkRange,
        /// The result.
        dst: ChunkRange,
        /// The result holds the contributions of all ranks; an average divides here.
        last: bool,
    },
}

/// The predecessors of a step. Most steps have few, which are stored in the step itself: plans of a million
/// steps are cheap to make, to copy and to drop.
pub type After = SmallVec<[u32; 4]>;

/// One step of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// The operation.
    pub action: Action,
    /// The lane its message travels on; 0 for local steps. Lanes between the same two ranks are independent
    /// FIFOs.
    pub lane: u8,
    /// Indices of the steps of the same rank that must be complete first. All are smaller than this step's
    /// own index, ascending, and none is implied by the others.
    pub after: After,
    /// For a send, the receive among `after` whose bytes it forwards as they arrive.
    pub follows: Option<u32>,
}

/// The steps of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RankProgram {
    /// The steps, in an order in which they could run one by one, as far as this rank alone can tell.
    pub steps: Vec<Step>,
}

/// Whether input and output of a call are the same memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InPlace {
    /// Input and output do not overlap.
    #[default]
    No,
    /// Input and output overlap as NCCL and MPI define it: the smaller one is the rank's own block of the
    /// larger one.
    Yes,
}

/// A whole-world program for one collective.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    /// The collective.
    pub collective: Collective,
    /// The name of the algorithm that planned it, e.g. `ring`.
    pub algorithm: String,
    /// The root, for collectives that have one; else rank 0.
    pub root: Rank,
    /// Whether input and output overlap.
    pub in_place: InPlace,
    /// Chunks that a block is split into; at least 1.
    pub chunks: u32,
    /// Blocks of scratch memory that each rank needs.
    pub scratch_blocks: u32,
    /// Lanes in use: every step's lane is smaller.
    pub lanes: u8,
    /// Codec of packed chunks and the memory for them; `None` where no chunk is packed.
    pub packing: Option<Packing>,
    /// `programs[r]` is the program of rank `r`.
    pub programs: Vec<RankProgram>,
}

impl Schedule {
    /// Returns the number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.programs.len() as u32
    }

    /// Returns every step of every rank.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (StepId, &Step)> {
        (0..).zip(&self.programs).flat_map(|(rank, program)| {
            (0..).zip(&program.steps).map(move |(step, s)| (StepId { rank, step }, s))
        })
    }

    /// Returns the first two ranks that a message travels between although nothing connects them.
    #[must_use]
    pub fn first_unconnected(&self, reach: &Reach) -> Option<(Rank, Rank)> {
        let ranks = (0..).map(Rank).zip(&self.programs);
        let mut pairs = ranks.flat_map(|(rank, program)| {
            program.steps.iter().filter_map(move |step| step.action.message().map(|(peer, _)| (rank, peer)))
        });
        pairs.find(|(rank, peer)| !reach.connects(*rank, *peer))
    }

    /// Whether two ranges of a rank's buffers share memory. In place, input and output may.
    #[must_use]
    pub fn overlap(&self, rank: Rank, a: ChunkRange, b: ChunkRange) -> bool {
        Memory::new(self, self.ranks(), rank).overlap(a, b)
    }

    /// Returns, for each step of a rank, whether all that it writes are parts of the output that no step
    /// reads.
    ///
    /// # Panics
    /// If a range lies outside of its buffer, which the verifier refuses.
    #[must_use]
    pub fn writes_results(&self, rank: Rank) -> Vec<bool> {
        let memory = Memory::new(self, self.ranks(), rank);
        let steps = &self.programs[rank.index()].steps;
        let mut is_read = vec![false; memory.cells()];
        for range in steps.iter().flat_map(|step| step.action.reads()).flatten() {
            is_read[memory.span(range)].fill(true);
        }
        let is_result = |range: ChunkRange| {
            range.buffer == Buffer::Output && !is_read[memory.span(range)].contains(&true)
        };
        steps.iter().map(|step| step.action.writes().is_some_and(is_result)).collect()
    }
}
