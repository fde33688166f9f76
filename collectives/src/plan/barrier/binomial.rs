//! Barrier up and down a binomial tree.
//!
//! Chunks: 1. A rank that has heard from all below it tells the one above it; rank 0 then has heard of everyone, and word of
//! it goes down the same tree.
//!
//! What is heard is written down as [`dissemination`](super::dissemination) does: each token is a reduction of those
//! before it, and the last block of scratch is the one that stands for everyone.
//!
//! Stages: 2·⌈log2 n⌉. Bytes: none. Cost: 2·⌈log2 n⌉·α.
//!
//! Wins where the number of messages counts: 2(n-1) in all, where `dissemination` sends n·log2(n).
//!
//! J. M. Mellor-Crummey, M. L. Scott: "Algorithms for scalable synchronization on shared-memory multiprocessors", ACM
//! Transactions on Computer Systems 9(1), 1991 (the tree barriers).

use crate::builder::Builder;
use crate::plan::trees::{above, below};
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans a barrier over a tree.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let levels = n.next_power_of_two().ilog2();
    let mut builder = Builder::new(spec, "binomial", 1, levels + 1);
    for rank in spec.planned_ranks() {
        for bit in below(rank.0, n) {
            let (before, after) = (ChunkRange::scratch(bit), ChunkRange::scratch(bit + 1));
            builder.stage(bit);
            builder.recv_reduce(rank, Rank(rank.0 + (1 << bit)), before, after, 0);
        }
        let heard = below(rank.0, n).count() as u32;
        if rank.0 > 0 {
            let (parent, bit) = (Rank(above(rank.0)), rank.0.trailing_zeros());
            builder.stage(bit);
            builder.send(rank, parent, ChunkRange::scratch(heard), 0);
            builder.stage(2 * levels - 1 - bit);
            builder.recv(rank, parent, ChunkRange::scratch(levels), 0);
        }
        for bit in below(rank.0, n).rev() {
            builder.stage(2 * levels - 1 - bit);
            builder.send(rank, Rank(rank.0 + (1 << bit)), ChunkRange::scratch(levels), 0);
        }
    }
    builder.finish()
}
