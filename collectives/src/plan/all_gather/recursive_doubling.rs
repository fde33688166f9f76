//! All-gather by recursive doubling.
//!
//! Chunks: 1. In round `k` rank `r` exchanges all the blocks it has with rank `r XOR 2^k`: the blocks of 2^k
//! ranks, which are one run. If n is not a power of two, the plan is [`bruck`](super::bruck::plan), which has
//! as few rounds.
//!
//! Stages: log2(n). Bytes sent per rank: n-1 blocks, which is the least possible. Cost: log2(n)·α + (n-1)·Bβ.
//!
//! Wins for small and medium blocks on many ranks if n is a power of two: every rank exchanges with log2(n)
//! others, in both directions at once.
//!
//! R. Thakur, R. Rabenseifner, W. Gropp: "Optimization of collective communication operations in MPICH",
//! International Journal of High Performance Computing Applications 19(1), 2005.

use super::bruck;
use crate::builder::Builder;
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans an all-gather by doubling.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let mut builder = Builder::new(spec, "recursive_doubling", 1, 0);
    for rank in spec.planned_ranks() {
        if n.is_power_of_two() {
            double(&mut builder, rank, n);
        } else {
            bruck::steps(&mut builder, rank, n);
        }
    }
    builder.finish()
}

fn double(builder: &mut Builder, rank: Rank, n: u32) {
    builder.stage(0);
    builder.copy(rank, ChunkRange::input(0), ChunkRange::output(rank.0));
    for round in 0..n.ilog2() {
        let len = 1 << round;
        let peer = Rank(rank.0 ^ len);
        let held = |by: Rank| ChunkRange { buffer: Buffer::Output, first: by.0 / len * len, len };
        builder.stage(round);
        builder.send(rank, peer, if round == 0 { ChunkRange::input(0) } else { held(rank) }, 0);
        builder.recv(rank, peer, held(peer), 0);
    }
}
