//! Reduce-scatter by parallel aggregated trees (PAT).
//!
//! Chunks: 1. The contributions to a block travel to its owner up a binomial tree, n trees at once. Partial
//! sums that travel the same way in a round form one message: they are in scratch in an order in which they
//! are one run (`plan/aggregated.rs`). The plan is the all-gather of this name backwards: neighbors exchange
//! first, with many blocks, and the furthest ranks last, with one.
//!
//! Stages: ⌈log2 n⌉. Bytes sent per rank: n-1 blocks, which is the least possible, for any n. Scratch: n
//! blocks, to which the input is copied. Cost: ⌈log2 n⌉·α + (n-1)·B(β + γ).
//!
//! Wins for small and medium blocks on many ranks, above all when their number is not a power of two; little
//! data goes far.
//!
//! S. Jeaugey: "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", arXiv
//! 2506.20252, 2025.

use crate::builder::Builder;
use crate::plan::aggregated::{Layout, Round};
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::{PlanError, Spec};
use std::ops::Range;

/// Plans a reduce-scatter by aggregated trees.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let layout = Layout::new(n);
    let mut builder = Builder::new(spec, "pat", 1, if n > 1 { n } else { 0 });
    let run =
        |run: &Range<u32>| ChunkRange { buffer: Buffer::Scratch, first: run.start, len: run.len() as u32 };
    for rank in spec.planned_ranks() {
        if n == 1 {
            builder.copy(rank, ChunkRange::input(0), ChunkRange::output(0));
            continue;
        }
        builder.stage(0);
        for (slot, offset) in (0..).zip(&layout.offsets) {
            builder.copy(rank, ChunkRange::input(rank.behind(*offset, n).0), ChunkRange::scratch(slot));
        }
        for (stage, Round { distance, sent, received }) in (0..).zip(layout.rounds.iter().rev()) {
            let last = stage as usize + 1 == layout.rounds.len();
            let result = if last { ChunkRange::output(0) } else { run(sent) };
            builder.stage(stage);
            builder.send(rank, rank.behind(*distance, n), run(received), 0);
            builder.recv_reduce(rank, rank.ahead(*distance, n), run(sent), result, 0);
        }
        builder.mark_last(rank);
    }
    builder.finish()
}
