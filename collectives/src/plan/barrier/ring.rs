//! Barrier around a ring.
//!
//! Chunks: 1. In round `k`, every rank sends the next one the token of the ranks it has heard from, and waits
//! for the token of the previous one. After n-1 rounds it has heard from all ranks.
//!
//! As in [`dissemination`](super::dissemination), tokens record which ranks have entered: block `k` of
//! scratch is the token before round `k`. Each is the received token plus the rank's own one, block 0, so
//! that no token depends on an earlier one.
//!
//! Stages: n-1. Bytes: none. Cost: (n-1)α.
//!
//! For rings of cables; where ranks have direct links, `dissemination` takes fewer rounds.
//!
//! D. Hensgen, R. Finkel, U. Manber: "Two algorithms for barrier synchronization", International Journal of
//! Parallel Programming 17(1), 1988 (with one step at a time).

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

/// Plans a barrier around a ring.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
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
