//! Reduce-scatter by pairwise exchange.
//!
//! Chunks: 1. In every round each rank has one partner, and partners are mutual: each sends the block of the
//! other one, and adds the received block to its own. With a power of two the partner in round `k` is `rank
//! XOR k`; else it is `k - rank` modulo n, and some ranks rest in some rounds.
//!
//! Stages: n-1 (n when n is not a power of two). Bytes sent per rank: n-1 blocks, which is the least
//! possible. Cost: (n-1)(α + Bβ + Bγ).
//!
//! Wins for large blocks behind a switch: in every round each link carries one message in each direction,
//! where `direct` starts all at once.
//!
//! R. Thakur, R. Rabenseifner, W. Gropp: "Optimization of collective communication operations in MPICH",
//! International Journal of High Performance Computing Applications 19(1), 2005.

use crate::builder::Builder;
use crate::plan::pairs::partners;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

/// Plans a reduce-scatter by pairwise exchange.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let mut builder = Builder::new(spec, "pairwise", 1, 0);
    for rank in spec.planned_ranks() {
        let (own, result) = (ChunkRange::input(rank.0), ChunkRange::output(0));
        if n == 1 {
            builder.copy(rank, own, result);
        }
        let mut partial = own;
        for (round, peer) in partners(rank, n) {
            builder.stage(round);
            builder.send(rank, peer, ChunkRange::input(peer.0), 0);
            builder.recv_reduce(rank, peer, partial, result, 0);
            partial = result;
        }
        if n > 1 {
            builder.mark_last(rank);
        }
    }
    builder.finish()
}
