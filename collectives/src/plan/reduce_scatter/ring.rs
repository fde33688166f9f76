//! Reduce-scatter around a ring.
//!
//! Chunks: 1. Block `b` starts at rank `b + 1` and travels to `b`, and every rank on its way adds its
//! contribution. In stage `s`, rank `r` sends its partial result of block `r - s - 1`, and receives that of
//! block `r - s - 2`.
//!
//! The input must not be written, so partial results are kept in scratch. A rank receives into one block
//! while it sends the other, or neighbors would wait for each other around the ring.
//!
//! Stages: n-1. Bytes sent per rank: n-1 blocks, which is the least possible. Cost: (n-1)(α + Bβ + Bγ).
//!
//! Wins for large blocks where each rank has fast links to two neighbors only.
//!
//! E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn: "Collective communication: theory, practice, and
//! experience", Concurrency and Computation: Practice and Experience 19(13), 2007 (the bucket algorithm).

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

/// Plans a reduce-scatter around a ring.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    // Unequal blocks need scratch blocks of their own length.
    let scratch_blocks = if spec.uneven() { n } else { n.saturating_sub(2).min(2) };
    let mut builder = Builder::new(spec, "ring", 1, scratch_blocks);
    for rank in spec.planned_ranks() {
        if n == 1 {
            builder.copy(rank, ChunkRange::input(0), ChunkRange::output(0));
        }
        let mut partial = ChunkRange::input(rank.behind(1, n).0);
        for stage in 0..n - 1 {
            let block = rank.behind(stage + 2, n).0;
            let own = ChunkRange::input(block);
            let scratch = ChunkRange::scratch(if spec.uneven() { block } else { stage % 2 });
            let sum = if stage == n - 2 { ChunkRange::output(0) } else { scratch };
            builder.stage(stage);
            builder.send(rank, rank.ahead(1, n), partial, 0);
            builder.recv_reduce(rank, rank.behind(1, n), own, sum, 0);
            partial = sum;
        }
        builder.mark_last(rank);
    }
    builder.finish()
}
