//! All-reduce up a binomial tree to rank 0, and down again.
//!
//! Chunks: 1. The tree is that of the canonical order ([`crate::numerics`]): in every stage neighboring sums
//! are merged at the lowest rank of the lower one. The result returns down the same tree.
//!
//! Stages: 2·⌈log2 n⌉. Bytes sent per rank: 1 block on average going up, and 1 block going down; rank 0 sends
//! ⌈log2 n⌉. Cost: 2·⌈log2 n⌉·(α + Bβ) + ⌈log2 n⌉·Bγ.
//!
//! Wins where the total number of messages matters more than the number of stages: 2(n-1), where recursive
//! doubling has n·log2(n). Cut into segments it forms a pipeline. Results are reproducible.
//!
//! R. Thakur, R. Rabenseifner, W. Gropp: "Optimization of collective communication operations in MPICH",
//! International Journal of High Performance Computing Applications 19(1), 2005 (reduce, then broadcast).

use crate::builder::Builder;
use crate::plan::reduce::binomial::{holder, steps_up};
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

const INPUT: ChunkRange = ChunkRange::input(0);
const OUTPUT: ChunkRange = ChunkRange::output(0);

/// Plans an all-reduce up and down a tree.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, root) = (spec.ranks(), Rank(0));
    let last = 2 * n.ilog2() + 1;
    let mut builder = Builder::new(spec, "reduce_broadcast", 1, 0);
    for rank in spec.planned_ranks() {
        if n == 1 {
            builder.copy(rank, INPUT, OUTPUT);
        }
        let (mut partial, mut above, mut below) = (INPUT, None, Vec::new());
        for (stage, sum, other) in steps_up(rank, n) {
            builder.stage(stage);
            let holder = holder(sum, root, n);
            if holder != rank {
                builder.send(rank, holder, partial, 0);
                above = Some((stage, holder));
                break;
            }
            let child = self::holder(other, root, n);
            builder.recv_reduce(rank, child, partial, OUTPUT, 0);
            partial = OUTPUT;
            below.push((stage, child));
        }
        if rank == root && n > 1 {
            builder.mark_last(rank);
        }
        if let Some((stage, holder)) = above {
            builder.stage(last - stage);
            builder.recv(rank, holder, OUTPUT, 0);
        }
        for (stage, child) in below.into_iter().rev() {
            builder.stage(last - stage);
            builder.send(rank, child, OUTPUT, 0);
        }
    }
    builder.finish()
}
