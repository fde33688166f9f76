//! All-gather by Bruck's algorithm.
//!
//! Chunks: 1. In round `k` rank `r` has the blocks of the 2^k ranks from itself on, and sends them to rank
//! `r - 2^k`; the last round sends only the blocks that the receiver lacks. Blocks arrive at their final
//! place in the output, so no rotation follows. A run that wraps around to rank 0 takes two messages.
//!
//! Stages: ⌈log2 n⌉. Bytes sent per rank: n-1 blocks, which is the least possible. Cost: ⌈log2 n⌉·α +
//! (n-1)·Bβ.
//!
//! Wins for small blocks on many ranks, for any n.
//!
//! J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby: "Efficient algorithms for all-to-all
//! communications in multiport message-passing systems", IEEE Transactions on Parallel and Distributed
//! Systems 8(11), 1997.

use crate::builder::Builder;
use crate::plan::trees::runs;
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans an all-gather by Bruck's algorithm.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let mut builder = Builder::new(spec, "bruck", 1, 0);
    for rank in spec.planned_ranks() {
        steps(&mut builder, rank, spec.ranks());
    }
    builder.finish()
}

/// Adds the steps of `rank` among `n` ranks.
pub(super) fn steps(builder: &mut Builder, rank: Rank, n: u32) {
    builder.stage(0);
    builder.copy(rank, ChunkRange::input(0), ChunkRange::output(rank.0));
    let blocks = |first: Rank, len: u32| {
        runs(first, 0..len, n).map(move |run| {
            let first = first.ahead(run.start, n).0;
            ChunkRange { buffer: Buffer::Output, first, len: run.len() as u32 }
        })
    };
    for round in 0..n.next_power_of_two().ilog2() {
        let distance = 1 << round;
        let len = distance.min(n - distance);
        let (to, from) = (rank.behind(distance, n), rank.ahead(distance, n));
        for (nth, run) in (0..).zip(blocks(rank, len)) {
            builder.stage(2 * round + nth);
            builder.send(rank, to, if round == 0 { ChunkRange::input(0) } else { run }, 0);
        }
        for (nth, run) in (0..).zip(blocks(from, len)) {
            builder.stage(2 * round + nth);
            builder.recv(rank, from, run, 0);
        }
    }
}
