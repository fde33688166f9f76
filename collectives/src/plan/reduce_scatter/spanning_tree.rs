//! Reduce-scatter along a spanning tree of the ranks.
//!
//! Chunks: 1. The contributions to a block travel to its owner, and every rank on the way adds its own. For
//! the canonical order of additions all contributions are relayed to the owner instead, which adds them.
//!
//! The input must not be written, so partial sums are kept in scratch, in one block for each owner.
//!
//! Stages: n-1 at most. Bytes: over every edge each block of the ranks beyond it once, which is the least
//! possible; in canonical order one for each pair of ranks at its sides. Cost on a line of n ranks: (n-1)(α +
//! Bβ + Bγ).
//!
//! For cables that form no ring; the tree is selected by [`crate::SpanningTree`].

use crate::Numerics;
use crate::plan::hops::{Hops, Landing, TRANSIT_SLOTS};
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans a reduce-scatter along a spanning tree.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    match spec.numerics() {
        Numerics::Fast => added_on_the_way(spec),
        Numerics::Reproducible => added_at_the_end(spec),
    }
}

fn added_on_the_way(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let trees: Vec<_> = (0..n).map(|owner| spec.tree().rooted(n, Rank(owner))).collect();
    let mut hops = Hops::new(spec, if n > 2 { n } else { 0 });
    let mut is_begun = vec![vec![false; n as usize]; n as usize];
    for distance in (1..n).rev() {
        for (owner, tree) in (0..).map(Rank).zip(&trees) {
            let sum = |rank: Rank, is_begun: bool| match (is_begun, rank == owner) {
                (false, _) => ChunkRange::input(owner.0),
                (true, true) => ChunkRange::output(0),
                (true, false) => ChunkRange::scratch(owner.0),
            };
            for rank in tree.outwards().filter(|rank| tree.depth_of(*rank) == distance) {
                let Some(parent) = tree.parent(rank) else { continue };
                let begun = &mut is_begun[owner.index()];
                let (src, local) = (sum(rank, begun[rank.index()]), sum(parent, begun[parent.index()]));
                begun[parent.index()] = true;
                hops.send(rank, parent, src, Landing::Added { local, dst: sum(parent, true) });
            }
            if distance == 1 {
                hops.mark_last(owner);
            }
        }
    }
    if n == 1 {
        hops.copy(Rank(0), ChunkRange::input(0), ChunkRange::output(0));
    }
    hops.finish()
}

fn added_at_the_end(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    // A block of unequal length needs scratch of the same length.
    let [stride, first] = if spec.uneven() { [n, 1] } else { [1, 0] };
    let place = |slot: u32, owner: Rank| ChunkRange::scratch(slot * stride + owner.0 * first);
    let mut hops = Hops::new(spec, if n > 1 { (n + TRANSIT_SLOTS) * stride } else { 0 });
    for owner in (0..n).map(Rank) {
        let tree = spec.tree().rooted(n, owner);
        for rank in tree.outwards().skip(1) {
            let landing = Landing::At(place(rank.0, owner));
            hops.relay(&tree.way_in(rank), ChunkRange::input(owner.0), landing, |hops, on_the_way| {
                place(n + hops.next_slot(on_the_way), owner)
            });
        }
        let own = ChunkRange::input(owner.0);
        hops.fold((owner, n), own, |rank| place(rank.0, owner), ChunkRange::output(0));
    }
    hops.finish()
}
