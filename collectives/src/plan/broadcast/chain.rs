//! Broadcast down a chain.
//!
//! Chunks: 1. The root sends to the next rank, which forwards the block, and so on to the rank before the
//! root.
//!
//! Stages: n-1. Bytes sent per rank: 1 block. Cost when cut into k segments: (n-2+k)(α + B/k·β), so nearly Bβ
//! for large blocks.
//!
//! Wins for large blocks, cut into segments: every link carries the data once.
//!
//! J. Watts, R. van de Geijn: "A pipelined broadcast for multidimensional meshes", Parallel Processing
//! Letters 5(2), 1995.

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

/// Plans a broadcast down a chain.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, root) = (spec.ranks(), spec.root());
    let mut builder = Builder::new(spec, "chain", 1, 0);
    for rank in spec.planned_ranks() {
        let place = rank.behind(root.0, n).0;
        let from = if rank == root { ChunkRange::input(0) } else { ChunkRange::output(0) };
        if rank != root {
            builder.stage(place - 1);
            builder.recv(rank, rank.behind(1, n), ChunkRange::output(0), 0);
        }
        builder.stage(place);
        if place < n - 1 {
            builder.send(rank, rank.ahead(1, n), from, 0);
        }
        if rank == root {
            builder.copy(rank, ChunkRange::input(0), ChunkRange::output(0));
        }
    }
    builder.finish()
}
