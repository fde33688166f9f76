//! Reduce up a binomial tree.
//!
//! Chunks: 1. The tree is that of the canonical order ([`crate::numerics`]): every stage merges neighboring
//! sums. The root holds each sum that includes its contribution; the lowest rank of a sum holds any other.
//! The holder adds the partial sum that the holder of the other half sends. Any root thus gets the result
//! without an additional message, and always the same bits.
//!
//! Stages: ⌈log2 n⌉. Bytes sent per rank: 1 block, the root none. Cost: ⌈log2 n⌉(α + Bβ + Bγ).
//!
//! Wins for small blocks.
//!
//! R. Thakur, R. Rabenseifner, W. Gropp: "Optimization of collective communication operations in MPICH",
//! International Journal of High Performance Computing Applications 19(1), 2005 (reduce of short messages).

use crate::builder::Builder;
use crate::numerics::Sum;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

const INPUT: ChunkRange = ChunkRange::input(0);

/// Plans a reduce up a binomial tree.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, root) = (spec.ranks(), spec.root());
    let mut builder = Builder::new(spec, "binomial", 1, u32::from(n > 2));
    for rank in spec.planned_ranks() {
        if n == 1 {
            builder.copy(rank, INPUT, ChunkRange::output(0));
        }
        let result = if rank == root { ChunkRange::output(0) } else { ChunkRange::scratch(0) };
        let mut partial = INPUT;
        for (stage, sum, other) in steps_up(rank, n) {
            builder.stage(stage);
            let holder = holder(sum, root, n);
            if holder != rank {
                builder.send(rank, holder, partial, 0);
                break;
            }
            builder.recv_reduce(rank, self::holder(other, root, n), partial, result, 0);
            partial = result;
        }
        if rank == root && n > 1 {
            builder.mark_last(rank);
        }
    }
    builder.finish()
}

/// Returns the sums that include a rank's contribution, the smallest first: the stage, the sum, and its
/// operand without the rank.
pub(in crate::plan) fn steps_up(rank: Rank, n: u32) -> Vec<(u32, Sum, Sum)> {
    let mut steps = Vec::new();
    let mut sum = Sum::whole(n);
    while let (Sum::Terms { terms, .. }, Some([a, b])) = (sum, sum.operands(n)) {
        let (own, other) = if holds(a, rank, n) { (a, b) } else { (b, a) };
        steps.push((terms.ilog2(), sum, other));
        sum = own;
    }
    steps.reverse();
    steps
}

fn holds(sum: Sum, rank: Rank, n: u32) -> bool {
    let (first, count) = sum.ranks(n);
    (first.0..first.0 + count).contains(&rank.0)
}

/// Returns the rank that holds a sum.
pub(in crate::plan) fn holder(sum: Sum, root: Rank, n: u32) -> Rank {
    if holds(sum, root, n) { root } else { sum.ranks(n).0 }
}
