//! Scan by recursive doubling.
//!
//! Chunks: 1. In round `k` rank `r` has the sum of the 2^k blocks up to its own, sends it to rank `r + 2^k`,
//! and adds the sum of rank `r - 2^k`. Partial sums alternate between two blocks of scratch, so that no block
//! is written while it is sent; the last one is the output.
//!
//! Stages: ⌈log2 n⌉. Bytes sent per rank: at most ⌈log2 n⌉ blocks. Cost: ⌈log2 n⌉·(α + Bβ + Bγ).
//!
//! Wins for small blocks. The additions do not run from rank 0 on, so results are not reproducible.
//!
//! W. D. Hillis, G. L. Steele: "Data parallel algorithms", Communications of the ACM 29(12), 1986.

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans a scan by doubling.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let rounds = n.next_power_of_two().ilog2();
    let mut builder = Builder::new(spec, "recursive_doubling", 1, rounds.saturating_sub(1).min(2));
    for rank in spec.planned_ranks() {
        if rank.0 == 0 {
            builder.stage(0);
            builder.copy(rank, ChunkRange::input(0), ChunkRange::output(0));
        }
        let mut sum = ChunkRange::input(0);
        for round in 0..rounds {
            let distance = 1 << round;
            builder.stage(round);
            if rank.0 + distance < n {
                builder.send(rank, Rank(rank.0 + distance), sum, 0);
            }
            if rank.0 >= distance {
                let last = rank.0 < 2 * distance;
                let result = if last { ChunkRange::output(0) } else { ChunkRange::scratch(round % 2) };
                builder.recv_reduce(rank, Rank(rank.0 - distance), sum, result, 0);
                sum = result;
            }
        }
    }
    builder.finish()
}
