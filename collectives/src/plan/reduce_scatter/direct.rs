//! Reduce-scatter over direct links.
//!
//! Chunks: 1. Every rank sends each block to its owner, the next rank first, and adds the messages for its
//! own block, the previous rank's first.
//!
//! Stages: 1. Bytes sent per rank: n-1 blocks, which is the least possible. Cost: α + (n-1)B(β + γ), with one
//! send overhead per peer.
//!
//! Wins where every pair of ranks has a link of its own, at every size; and for small blocks everywhere.
//!
//! R. Thakur, R. Rabenseifner, W. Gropp: "Optimization of collective communication operations in MPICH",
//! International Journal of High Performance Computing Applications 19(1), 2005 (the pairwise exchange, all
//! at once).

use crate::builder::Builder;
use crate::plan::fold::{self, FoldBuffers};
use crate::schedule::{ChunkRange, Schedule};
use crate::{Numerics, PlanError, Spec};

/// Plans a reduce-scatter over direct links.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, canonical) = (spec.ranks(), spec.numerics() == Numerics::Reproducible);
    let partial_sums = if canonical { fold::scratch_blocks(n, spec.in_place()) } else { 0 };
    // Unequal blocks make scratch blocks unequal, too: every n-th one is as long as the rank's own block.
    let stride = if spec.uneven() { n } else { 1 };
    let mut builder = Builder::new(spec, "direct", 1, partial_sums * stride);
    for rank in spec.planned_ranks() {
        let (own, result) = (ChunkRange::input(rank.0), ChunkRange::output(0));
        for distance in 1..n {
            let owner = rank.ahead(distance, n);
            builder.send(rank, owner, ChunkRange::input(owner.0), 0);
        }
        if canonical || n == 1 {
            let scratch = (if spec.uneven() { rank.0 } else { 0 }, stride);
            let buffers = FoldBuffers { own, result, chunk: 0, chunks: 1, scratch };
            fold::receive_and_add(&mut builder, rank, n, buffers, 0);
            continue;
        }
        for distance in 1..n {
            let partial = if distance == 1 { own } else { result };
            builder.recv_reduce(rank, rank.behind(distance, n), partial, result, 0);
        }
        builder.mark_last(rank);
    }
    builder.finish()
}
