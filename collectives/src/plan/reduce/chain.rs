//! Reduce down a chain.
//!
//! Chunks: 1. The rank after the root sends its block to the next one, which adds its own and sends the sum
//! on, up to the root.
//!
//! Stages: n-1. Bytes sent per rank: 1 block, the root none. Cost when cut into k segments: (n-2+k)(α +
//! B/k·(β + γ)), so nearly B(β + γ) for large blocks.
//!
//! Wins for large blocks, cut into segments: every link carries the data once. The order of additions depends
//! on the root, and is not the canonical one.
//!
//! J. Watts, R. van de Geijn: "A pipelined broadcast for multidimensional meshes", Parallel Processing
//! Letters 5(2), 1995 (in the opposite direction).

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

/// Plans a reduce down a chain.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, root) = (spec.ranks(), spec.root());
    let mut builder = Builder::new(spec, "chain", 1, u32::from(n > 2));
    for rank in spec.planned_ranks() {
        let input = ChunkRange::input(0);
        // The position in the chain; the root is last.
        let place = rank.behind(root.ahead(1, n).0, n).0;
        let result = if rank == root { ChunkRange::output(0) } else { ChunkRange::scratch(0) };
        let mut sum = input;
        if n == 1 {
            builder.copy(rank, input, result);
        }
        if place > 0 {
            builder.stage(place - 1);
            builder.recv_reduce(rank, rank.behind(1, n), input, result, 0);
            sum = result;
        }
        if rank == root && n > 1 {
            builder.mark_last(rank);
        } else if rank != root {
            builder.stage(place);
            builder.send(rank, rank.ahead(1, n), sum, 0);
        }
    }
    builder.finish()
}
