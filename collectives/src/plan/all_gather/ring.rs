//! All-gather around a ring.
//!
//! Chunks: 1. Every rank copies its block to its place in the output; in stage `s` it forwards block `r - s`
//! to `r + 1`.
//!
//! Stages: n-1. Bytes sent per rank: n-1 blocks, which is the least possible. Cost: (n-1)(α + Bβ).
//!
//! Wins for large blocks where each rank has fast links to two neighbors only.
//!
//! E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn: "Collective communication: theory, practice, and
//! experience", Concurrency and Computation: Practice and Experience 19(13), 2007 (the bucket algorithm).

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans an all-gather around a ring.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let mut builder = Builder::new(spec, "ring", 1, 0);
    for rank in spec.planned_ranks() {
        steps(&mut builder, rank, spec.ranks());
    }
    builder.finish()
}

/// Adds the steps of `rank` among `n` ranks.
pub(super) fn steps(builder: &mut Builder, rank: Rank, n: u32) {
    for stage in 0..n - 1 {
        let passed_on = ChunkRange::output(rank.behind(stage, n).0);
        let from = if stage == 0 { ChunkRange::input(0) } else { passed_on };
        builder.stage(stage);
        builder.send(rank, rank.ahead(1, n), from, 0);
        builder.recv(rank, rank.behind(1, n), ChunkRange::output(rank.behind(stage + 1, n).0), 0);
    }
    builder.stage(0);
    builder.copy(rank, ChunkRange::input(0), ChunkRange::output(rank.0));
}
