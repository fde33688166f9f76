//! Exclusive scan by recursive doubling.
//!
//! Chunks: 1. In round `k` rank `r` has the sum of the 2^k blocks up to its own, sends it to rank `r + 2^k`,
//! and receives that of rank `r - 2^k`. It adds the received sum to two sums: one with its own block, to be
//! sent, and one without, which is the result. Received and sent sums alternate between two blocks of scratch
//! each, so that no block is written while it is in use.
//!
//! Stages: ⌈log2 n⌉. Bytes sent per rank: at most ⌈log2 n⌉ blocks. Cost: ⌈log2 n⌉·(α + Bβ + 2Bγ).
//!
//! Wins for small blocks. The additions do not run from rank 0 on, so results are not reproducible.
//!
//! W. D. Hillis, G. L. Steele: "Data parallel algorithms", Communications of the ACM 29(12), 1986; with two
//! sums as in MPI libraries.

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans an exclusive scan by doubling.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, output) = (spec.ranks(), ChunkRange::output(0));
    let rounds = n.next_power_of_two().ilog2();
    let mut builder = Builder::new(spec, "recursive_doubling", 1, if n > 1 { 4 } else { 0 });
    for rank in spec.planned_ranks() {
        let mut sum = ChunkRange::input(0);
        for round in 0..rounds {
            let distance = 1 << round;
            builder.stage(round);
            if rank.0 + distance < n {
                builder.send(rank, Rank(rank.0 + distance), sum, 0);
            }
            if rank.0 < distance {
                continue;
            }
            let received = ChunkRange::scratch(round % 2);
            builder.recv(rank, Rank(rank.0 - distance), received, 0);
            if rank.0 + 2 * distance < n {
                let result = ChunkRange::scratch(2 + round % 2);
                builder.reduce(rank, sum, received, result);
                sum = result;
            }
            match round {
                0 => builder.copy(rank, received, output),
                _ => builder.reduce(rank, output, received, output),
            }
        }
    }
    builder.finish()
}
