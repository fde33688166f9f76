//! Scan down a chain.
//!
//! Chunks: 1. Every rank adds its block to the sum of the previous rank, and sends the new sum on.
//! Contributions are added from rank 0 on, which is the canonical order of prefixes.
//!
//! Stages: n-1. Bytes sent per rank: 1 block. Cost when cut into k segments: (n-2+k)(α + B/k·(β + γ)).
//!
//! Wins for large blocks, cut into segments: every link carries the data once.
//!
//! P. Sanders, J. L. Träff: "Parallel prefix (scan) algorithms for MPI", EuroPVM/MPI 2006 (the pipeline).

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

const INPUT: ChunkRange = ChunkRange::input(0);
const OUTPUT: ChunkRange = ChunkRange::output(0);

/// Plans a scan down a chain.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let mut builder = Builder::new(spec, "chain", 1, 0);
    for rank in spec.planned_ranks() {
        let mut sum = INPUT;
        if rank.0 == 0 {
            builder.stage(0);
            builder.copy(rank, INPUT, OUTPUT);
        } else {
            builder.stage(rank.0 - 1);
            builder.recv_reduce(rank, Rank(rank.0 - 1), INPUT, OUTPUT, 0);
            sum = OUTPUT;
        }
        if rank.0 + 1 < n {
            builder.stage(rank.0);
            builder.send(rank, Rank(rank.0 + 1), sum, 0);
        }
    }
    builder.finish()
}
