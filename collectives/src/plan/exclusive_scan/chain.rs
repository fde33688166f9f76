//! Exclusive scan down a chain.
//!
//! Chunks: 1. Every rank receives the sum of the lower ranks from its neighbor, adds its own block in
//! scratch, and sends the new sum on. In place the message is received into scratch as well, since the sum
//! needs the rank's own block. Contributions are added from rank 0 on, which is the canonical order of
//! prefixes.
//!
//! Stages: n-1. Bytes sent per rank: 1 block. Cost when cut into k segments: (n-2+k)(α + B/k·(β + γ)).
//!
//! Wins for large blocks, cut into segments: every link carries the data once.
//!
//! P. Sanders, J. L. Träff: "Parallel prefix (scan) algorithms for MPI", EuroPVM/MPI 2006 (the pipeline).

use crate::builder::Builder;
use crate::schedule::{ChunkRange, InPlace, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

const INPUT: ChunkRange = ChunkRange::input(0);
const OUTPUT: ChunkRange = ChunkRange::output(0);
const SUM: ChunkRange = ChunkRange::scratch(0);

/// Plans an exclusive scan down a chain.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, in_place) = (spec.ranks(), spec.in_place() == InPlace::Yes);
    let scratch_blocks = if n < 3 { 0 } else { 1 + u32::from(in_place) };
    let mut builder = Builder::new(spec, "chain", 1, scratch_blocks);
    for rank in spec.planned_ranks() {
        let passes_on = rank.0 + 1 < n;
        let mut sum = INPUT;
        if rank.0 > 0 {
            let destination = if in_place && passes_on { ChunkRange::scratch(1) } else { OUTPUT };
            builder.stage(rank.0 - 1);
            builder.recv(rank, Rank(rank.0 - 1), destination, 0);
            if passes_on {
                builder.reduce(rank, INPUT, destination, SUM);
                sum = SUM;
            }
            builder.copy(rank, destination, OUTPUT);
        }
        if passes_on {
            builder.stage(rank.0);
            builder.send(rank, Rank(rank.0 + 1), sum, 0);
        }
    }
    builder.finish()
}
