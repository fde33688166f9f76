//! All-reduce around two rings at once, in opposite directions, each with half of the data.
//!
//! Chunks: 2n. The first n chunks travel as in [`ring`](super::ring); the others travel in the opposite
//! direction. With 2 ranks both neighbors are the same rank, and a second lane keeps the two rings apart.
//! With more ranks all is on lane 0, as in other plans: over RDMA the queues to a peer change from one lane
//! to another by messages that are copied.
//!
//! Stages: 2(n-1). Bytes sent per rank: 2(n-1)/n of the block, half of them in each direction. Cost: 2(n-1)α
//! + (n-1)/n·Bβ + (n-1)/n·Bγ where the cables to both neighbors work at the same time.
//!
//! Wins over `ring` for large blocks where the links to the two neighbors do not share a port: in a plain
//! ring each rank sends on one cable only.
//!
//! The ring is that of P. Patarasuk, X. Yuan: "Bandwidth optimal all-reduce algorithms for clusters of
//! workstations", Journal of Parallel and Distributed Computing 69(2), 2009; using both directions is
//! folklore.

use super::ring::{Ring, ring_stage};
use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans an all-reduce around two rings.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    if n == 1 {
        let mut builder = Builder::new(spec, "bidirectional_ring", 1, 0);
        builder.copy(Rank(0), ChunkRange::input(0), ChunkRange::output(0));
        return builder.finish();
    }
    let mut builder = Builder::new(spec, "bidirectional_ring", 2 * n, 0);
    let second_lane = u8::from(n == 2);
    let rings = [
        Ring { ranks: n, forward: true, first_chunk: 0, lane: 0 },
        Ring { ranks: n, forward: false, first_chunk: n, lane: second_lane },
    ];
    for rank in spec.planned_ranks() {
        for stage in 0..2 * (n - 1) {
            for ring in rings {
                ring_stage(&mut builder, ring, rank, stage);
            }
        }
    }
    builder.finish()
}
