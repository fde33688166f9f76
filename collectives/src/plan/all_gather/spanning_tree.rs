//! All-gather along a spanning tree of the ranks.
//!
//! Chunks: 1. Every rank forwards each block that it receives to all its other neighbors, the nearest blocks
//! first.
//!
//! Stages: n-1 at most. Bytes: over every edge each block once, which is the least possible. Cost on a line
//! of n ranks: (n-1)(α + Bβ).
//!
//! For cables that form no ring; the tree is selected by [`crate::SpanningTree`].

use crate::plan::hops::{Hops, Landing};
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans an all-gather along a spanning tree.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let trees: Vec<_> = (0..n).map(|owner| spec.tree().rooted(n, Rank(owner))).collect();
    let mut hops = Hops::new(spec, 0);
    for distance in 1..n {
        for (owner, tree) in (0..).map(Rank).zip(&trees) {
            for rank in tree.outwards().filter(|rank| tree.depth_of(*rank) == distance) {
                let block = ChunkRange::output(owner.0);
                if let Some(parent) = tree.parent(rank) {
                    let src = if parent == owner { ChunkRange::input(0) } else { block };
                    hops.send(parent, rank, src, Landing::At(block));
                }
            }
        }
    }
    for rank in spec.planned_ranks() {
        hops.copy(rank, ChunkRange::input(0), ChunkRange::output(rank.0));
    }
    hops.finish()
}
