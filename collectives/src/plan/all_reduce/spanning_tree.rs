//! All-reduce along a spanning tree of the ranks: a reduce to its center, then a broadcast.
//!
//! Chunks: 1. Sums travel towards the center, and the result travels back. For the canonical order of
//! additions all blocks are relayed to the center instead, which adds them.
//!
//! Stages: twice the distance of the furthest rank from the center. Bytes: 1 block over every edge in each
//! direction, which is the least possible; in canonical order one for each rank behind the edge inwards. Cost
//! when cut into k segments on a line of n ranks: (n-1+k)(α + B/k·(β + γ)), since both directions of a cable
//! work at the same time.
//!
//! For cables that form no ring; the tree is selected by [`crate::SpanningTree`].

use crate::Numerics;
use crate::plan::hops::{Hops, Landing};
use crate::plan::reduce::spanning_tree::{add_inwards, fold_inwards};
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

/// Plans an all-reduce along a spanning tree.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let output = ChunkRange::output(0);
    let center = spec.tree().center(n);
    let tree = spec.tree().rooted(n, center);
    let is_canonical = spec.numerics() == Numerics::Reproducible;
    let mut hops = Hops::new(spec, if is_canonical { n } else { 0 });
    match is_canonical {
        true => fold_inwards(&mut hops, &tree, (center, n), output),
        false => add_inwards(&mut hops, &tree, (center, n), |_| output),
    }
    for rank in tree.outwards() {
        if let Some(parent) = tree.parent(rank) {
            hops.send(parent, rank, output, Landing::At(output));
        }
    }
    hops.finish()
}
