//! Barrier round a ring.
//!
//! Chunks: 1. In round `k`, every rank tells the next one of whom it has heard so far, and waits to hear the same from
//! the one before. After n-1 rounds it has heard of everyone.
//!
//! What is heard is written down as `dissemination` does: block `k` of scratch is the token before round `k`. Each adds
//! our own token, block 0, to what has come, so that no token needs an earlier one.
//!
//! Stages: n-1. Bytes: none. Cost: (n-1)α.
//!
//! For rings of cables; wherever ranks have direct links, `dissemination` takes fewer rounds.
//!
//! D. Hensgen, R. Finkel, U. Manber: "Two algorithms for barrier synchronization", International Journal of Parallel
//! Programming 17(1), 1988 (with one step at a time).

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

/// Plans a barrier round a ring.
///
/// # Errors
/// None: a [`Spec`] always makes sense here.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let mut builder = Builder::new(spec, "ring", 1, n);
    for rank in spec.planned_ranks() {
        for round in 0..n - 1 {
            let (own, after) = (ChunkRange::scratch(0), ChunkRange::scratch(round + 1));
            builder.stage(round);
            builder.send(rank, rank.ahead(1, n), ChunkRange::scratch(round), 0);
            builder.recv_reduce(rank, rank.behind(1, n), own, after, 0);
        }
    }
    builder.finish()
}
