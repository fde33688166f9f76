//! Reduce-scatter by parallel aggregated trees (PAT).
//!
//! Chunks: 1. Everyone's contribution to a block travels to its owner up a binomial tree, n trees at once, and what
//! travels the same way in a round is one message: partial sums lie in scratch in an order in which it is one run
//! (`plan/aggregated.rs`). It is the all-gather of this name backwards: neighbours come first, with many blocks, and the
//! furthest ranks last, with one.
//!
//! Stages: ⌈log2 n⌉. Bytes sent per rank: n-1 blocks, which is the least possible, for any n. Scratch: n blocks, which
//! the input is copied to. Cost: ⌈log2 n⌉·α + (n-1)·B(β + γ).
//!
//! Wins for small and medium blocks on many ranks, above all when their number is not a power of two; little goes far.
//!
//! S. Jeaugey: "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", arXiv 2506.20252, 2025.

use crate::builder::Builder;
use crate::plan::aggregated::{Layout, Round};
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::{PlanError, Spec};
use std::ops::Range;

/// Plans a reduce-scatter by aggregated trees.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments.
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
        for (place, offset) in (0..).zip(&layout.offsets) {
            builder.copy(rank, ChunkRange::input(rank.behind(*offset, n).0), ChunkRange::scratch(place));
        }
        for (stage, Round { distance, sent, came }) in (0..).zip(layout.rounds.iter().rev()) {
            let last = stage as usize + 1 == layout.rounds.len();
            let result = if last { ChunkRange::output(0) } else { run(sent) };
            builder.stage(stage);
            builder.send(rank, rank.behind(*distance, n), run(came), 0);
            builder.recv_reduce(rank, rank.ahead(*distance, n), run(sent), result, 0);
        }
        builder.mark_last(rank);
    }
    builder.finish()
}
