//! Broadcast along a spanning tree of the ranks.
//!
//! Chunks: 1. Every rank sends the block to its neighbors that are further from the root.
//!
//! Stages: the distance of the furthest rank. Bytes: 1 block over every edge. Cost when cut into k segments
//! on a line of n ranks, from its end: (n-2+k)(α + B/k·β).
//!
//! For cables that form no ring; the tree is selected by [`crate::SpanningTree`].

use crate::plan::hops::{Hops, Landing};
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

/// Plans a broadcast along a spanning tree.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, root) = (spec.ranks(), spec.root());
    let (input, output) = (ChunkRange::input(0), ChunkRange::output(0));
    let tree = spec.tree().rooted(n, root);
    let mut hops = Hops::new(spec, 0);
    for rank in tree.outwards() {
        if let Some(parent) = tree.parent(rank) {
            let src = if parent == root { input } else { output };
            hops.send(parent, rank, src, Landing::At(output));
        }
    }
    hops.copy(root, input, output);
    hops.finish()
}
