//! Reduce along a spanning tree of the ranks.
//!
//! Chunks: 1. Every rank adds the sums of its neighbors that are further from the root to its own block, and
//! sends the sum towards the root. For the canonical order of additions all blocks are relayed to the root
//! instead, which adds them.
//!
//! Stages: the distance of the furthest rank. Bytes: 1 block over every edge; in canonical order one for each
//! rank behind the edge. Cost when cut into k segments on a line of n ranks, to its end: (n-2+k)(α + B/k·(β +
//! γ)).
//!
//! For cables that form no ring; the tree is selected by [`crate::SpanningTree`].

use crate::plan::hops::{Hops, Landing};
use crate::schedule::{ChunkRange, Schedule};
use crate::{Numerics, spanning_tree::Rooted};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans a reduce along a spanning tree.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, root) = (spec.ranks(), spec.root());
    let tree = spec.tree().rooted(n, root);
    let is_canonical = spec.numerics() == Numerics::Reproducible;
    let mut hops = Hops::new(spec, if is_canonical { n } else { u32::from(n > 2) });
    let partial = |rank| if rank == root { ChunkRange::output(0) } else { ChunkRange::scratch(0) };
    match is_canonical {
        true => fold_inwards(&mut hops, &tree, (root, n), ChunkRange::output(0)),
        false => add_inwards(&mut hops, &tree, (root, n), partial),
    }
    hops.finish()
}

/// Adds all inputs on the way to the root. `partial` is a rank's memory for sums; that of the root gets the
/// result.
pub(in crate::plan) fn add_inwards(
    hops: &mut Hops,
    tree: &Rooted,
    (root, ranks): (Rank, u32),
    partial: impl Fn(Rank) -> ChunkRange,
) {
    let mut sums = vec![ChunkRange::input(0); ranks as usize];
    for rank in tree.outwards().rev() {
        let Some(parent) = tree.parent(rank) else { continue };
        let (local, dst) = (sums[parent.index()], partial(parent));
        hops.send(rank, parent, sums[rank.index()], Landing::Added { local, dst });
        sums[parent.index()] = dst;
    }
    match ranks {
        1 => hops.copy(root, ChunkRange::input(0), partial(root)),
        _ => hops.mark_last(root),
    }
}

/// Relays all inputs to the root through scratch blocks, one for each rank, and adds them there in canonical
/// order.
pub(in crate::plan) fn fold_inwards(
    hops: &mut Hops,
    tree: &Rooted,
    (root, ranks): (Rank, u32),
    result: ChunkRange,
) {
    for rank in tree.outwards().skip(1) {
        let block = ChunkRange::scratch(rank.0);
        hops.relay(&tree.way_in(rank), ChunkRange::input(0), Landing::At(block), |_, _| block);
    }
    hops.fold((root, ranks), ChunkRange::input(0), |rank| ChunkRange::scratch(rank.0), result);
}
