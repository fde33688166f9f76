//! All-gather around a ring in both directions.
//!
//! Chunks: 1. Every block travels half of the ring forward, and the other half backward. In stage `s` rank
//! `r` forwards block `r - s` to `r + 1`, and block `r + s` to `r - 1`.
//!
//! Stages: ⌊n/2⌋. Bytes sent per rank: n-1 blocks, half of them in each direction. Cost: n/2·(α + Bβ) where
//! the cables to both neighbors work at the same time.
//!
//! Wins over `ring` on rings of cables at every size.
//!
//! E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn: "Collective communication: theory, practice, and
//! experience", Concurrency and Computation: Practice and Experience 19(13), 2007 (the bucket algorithm);
//! using both directions is folklore.

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

/// Plans an all-gather around a ring in both directions.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let mut builder = Builder::new(spec, "bidirectional_ring", 1, 0);
    for rank in spec.planned_ranks() {
        let (next, previous) = (rank.ahead(1, n), rank.behind(1, n));
        for stage in 0..n / 2 {
            let from = |block| if stage == 0 { ChunkRange::input(0) } else { ChunkRange::output(block) };
            builder.stage(stage);
            builder.send(rank, next, from(rank.behind(stage, n).0), 0);
            builder.recv(rank, previous, ChunkRange::output(rank.behind(stage + 1, n).0), 0);
            if stage < (n - 1) / 2 {
                builder.send(rank, previous, from(rank.ahead(stage, n).0), 0);
                builder.recv(rank, next, ChunkRange::output(rank.ahead(stage + 1, n).0), 0);
            }
        }
        builder.stage(0);
        builder.copy(rank, ChunkRange::input(0), ChunkRange::output(rank.0));
    }
    builder.finish()
}
