//! Gather along a spanning tree of the ranks.
//!
//! Chunks: 1. Every rank relays the blocks of the ranks behind it towards the root, the nearest blocks first,
//! through scratch.
//!
//! Stages: n-1 at most. Bytes: over every edge the block of each rank behind it, which is the least possible.
//! Cost on a line of n ranks, to its end: (n-1)(α + Bβ).
//!
//! For cables that form no ring; the tree is selected by [`crate::SpanningTree`].

use crate::plan::hops::{Hops, Landing};
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

/// Plans a gather along a spanning tree.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, root) = (spec.ranks(), spec.root());
    let tree = spec.tree().rooted(n, root);
    // A block on its way is in the scratch block of its owner, which has its length.
    let mut hops = Hops::new(spec, if n > 2 { n } else { 0 });
    for owner in tree.outwards().skip(1) {
        let landing = Landing::At(ChunkRange::output(owner.0));
        let transit = ChunkRange::scratch(owner.0);
        hops.relay(&tree.way_in(owner), ChunkRange::input(0), landing, |_, _| transit);
    }
    hops.copy(root, ChunkRange::input(0), ChunkRange::output(root.0));
    hops.finish()
}
