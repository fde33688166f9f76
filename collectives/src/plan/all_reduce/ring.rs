//! All-reduce around a ring: a reduce-scatter, then an all-gather.
//!
//! Chunks: n. In stage `s` of the first half, rank `r` sends its partial result of chunk `r - s` to `r + 1`,
//! and adds its own contribution to the partial result of chunk `r - s - 1` from `r - 1`. After n-1 stages
//! chunk `r + 1` is complete on rank `r`; in the second half the complete chunks travel around the ring once
//! more.
//!
//! Stages: 2(n-1). Bytes sent per rank: 2(n-1)/n of the block, which is the least possible. Cost: 2(n-1)α +
//! 2(n-1)/n·Bβ + (n-1)/n·Bγ.
//!
//! Wins for large blocks where each rank has fast links to two neighbors only, such as a ring of cables. A
//! chunk is reduced along one path, so every rank gets the same bits.
//!
//! P. Patarasuk, X. Yuan: "Bandwidth optimal all-reduce algorithms for clusters of workstations", Journal of
//! Parallel and Distributed Computing 69(2), 2009.

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans an all-reduce around a ring.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let mut builder = Builder::new(spec, "ring", n, 0);
    if n == 1 {
        builder.copy(Rank(0), ChunkRange::input(0), ChunkRange::output(0));
        return builder.finish();
    }
    for rank in spec.planned_ranks() {
        for stage in 0..2 * (n - 1) {
            ring_stage(&mut builder, Ring { ranks: n, forward: true, first_chunk: 0, lane: 0 }, rank, stage);
        }
    }
    builder.finish()
}

/// A ring for `ranks` chunks from `first_chunk` on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    pub(super) ranks: u32,
    /// Whether messages go to higher ranks.
    pub(super) forward: bool,
    pub(super) first_chunk: u32,
    pub(super) lane: u8,
}

impl Ring {
    fn next(self, rank: Rank) -> Rank {
        if self.forward { rank.ahead(1, self.ranks) } else { rank.behind(1, self.ranks) }
    }

    fn previous(self, rank: Rank) -> Rank {
        if self.forward { rank.behind(1, self.ranks) } else { rank.ahead(1, self.ranks) }
    }

    /// Returns the chunk that `rank` sends in `stage`; it receives the chunk that the previous rank sends.
    fn sent(self, rank: Rank, stage: u32) -> u32 {
        let place = if self.forward { rank } else { Rank(self.ranks - 1 - rank.0) };
        self.first_chunk + place.behind(stage, self.ranks).0
    }
}

/// Adds the steps of `rank` in one of the `2(n-1)` stages of a ring.
pub(super) fn ring_stage(builder: &mut Builder, ring: Ring, rank: Rank, stage: u32) {
    let (next, previous) = (ring.next(rank), ring.previous(rank));
    let (sent, received) = (ring.sent(rank, stage), ring.sent(previous, stage));
    let from = if stage == 0 { ChunkRange::input(sent) } else { ChunkRange::output(sent) };
    builder.stage(stage);
    builder.send(rank, next, from, ring.lane);
    if stage < ring.ranks - 1 {
        builder.recv_reduce(
            rank,
            previous,
            ChunkRange::input(received),
            ChunkRange::output(received),
            ring.lane,
        );
        if stage == ring.ranks - 2 {
            builder.mark_last(rank);
        }
    } else {
        builder.recv(rank, previous, ChunkRange::output(received), ring.lane);
    }
}
