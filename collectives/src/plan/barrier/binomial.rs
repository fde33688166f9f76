//! Barrier up and down a binomial tree.
//!
//! Chunks: 1. A rank that has a message from each of its children sends one to its parent; rank 0 then knows
//! that all ranks have entered, and messages go down the same tree.
//!
//! As in [`dissemination`](super::dissemination), tokens record which ranks have entered: each token is a
//! reduction of earlier ones, and the last block of scratch stands for all ranks.
//!
//! Stages: 2·⌈log2 n⌉. Bytes: none. Cost: 2·⌈log2 n⌉·α.
//!
//! Wins where the number of messages matters: 2(n-1) in total, where `dissemination` sends n·log2(n).
//!
//! J. M. Mellor-Crummey, M. L. Scott: "Algorithms for scalable synchronization on shared-memory
//! multiprocessors", ACM Transactions on Computer Systems 9(1), 1991 (the tree barriers).

use crate::builder::Builder;
use crate::plan::trees::{children_of, parent_of};
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans a barrier over a tree.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let levels = n.next_power_of_two().ilog2();
    let mut builder = Builder::new(spec, "binomial", 1, levels + 1);
    for rank in spec.planned_ranks() {
        for bit in children_of(rank.0, n) {
            let (before, after) = (ChunkRange::scratch(bit), ChunkRange::scratch(bit + 1));
            builder.stage(bit);
            builder.recv_reduce(rank, Rank(rank.0 + (1 << bit)), before, after, 0);
        }
        let token = children_of(rank.0, n).count() as u32;
        if rank.0 > 0 {
            let (parent, bit) = (Rank(parent_of(rank.0)), rank.0.trailing_zeros());
            builder.stage(bit);
            builder.send(rank, parent, ChunkRange::scratch(token), 0);
            builder.stage(2 * levels - 1 - bit);
            builder.recv(rank, parent, ChunkRange::scratch(levels), 0);
        }
        for bit in children_of(rank.0, n).rev() {
            builder.stage(2 * levels - 1 - bit);
            builder.send(rank, Rank(rank.0 + (1 << bit)), ChunkRange::scratch(levels), 0);
        }
    }
    builder.finish()
}
