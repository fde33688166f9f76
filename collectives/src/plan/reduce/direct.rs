//! Reduce over direct links.
//!
//! Chunks: 1. Every rank sends its block to the root, which adds the blocks in canonical order, with partial
//! sums in log2(n) blocks of scratch.
//!
//! Stages: 1. Bytes received by the root: n-1 blocks. Cost: α + (n-1)B(β + γ), with one receive overhead per
//! peer.
//!
//! Wins for small blocks on few ranks. Results are reproducible.
//!
//! The "linear" reduce of MPI libraries.

use crate::builder::Builder;
use crate::plan::fold::{self, FoldBuffers};
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

/// Plans a reduce over direct links.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, root) = (spec.ranks(), spec.root());
    let mut builder = Builder::new(spec, "direct", 1, fold::scratch_blocks(n, spec.in_place()));
    for rank in spec.planned_ranks() {
        let own = ChunkRange::input(0);
        if rank == root {
            let buffers =
                FoldBuffers { own, result: ChunkRange::output(0), chunk: 0, chunks: 1, scratch: (0, 1) };
            fold::receive_and_add(&mut builder, rank, n, buffers, 0);
        } else {
            builder.send(rank, root, own, 0);
        }
    }
    builder.finish()
}
