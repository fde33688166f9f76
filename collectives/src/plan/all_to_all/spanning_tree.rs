//! All-to-all along a spanning tree of the ranks.
//!
//! Chunks: 1. Every block is relayed along the tree, through scratch, the blocks with the longest ways first.
//! In place a block is received into scratch, and copied at the end.
//!
//! Stages: as many as the busiest edge has messages, and a few more. Bytes: over every edge one block for
//! each pair of ranks at its sides, which is the least possible. Cost on a line of n ranks: n²/4·(α + Bβ).
//!
//! For cables that form no ring; the tree is selected by [`crate::SpanningTree`].

use crate::plan::hops::{Hops, Landing, TRANSIT_SLOTS};
use crate::schedule::{ChunkRange, InPlace, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans an all-to-all along a spanning tree.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let is_in_place = spec.in_place() == InPlace::Yes;
    let first_transit = if is_in_place { n } else { 0 };
    let mut hops = Hops::new(spec, if n > 1 { first_transit + TRANSIT_SLOTS } else { 0 });
    for (from, to, way) in ways(spec) {
        let landing = if is_in_place { ChunkRange::scratch(from.0) } else { ChunkRange::output(from.0) };
        hops.relay(&way, ChunkRange::input(to.0), Landing::At(landing), |hops, rank| {
            ChunkRange::scratch(first_transit + hops.next_slot(rank))
        });
    }
    for rank in spec.planned_ranks() {
        for from in (0..n).map(Rank) {
            let src = match (from == rank, is_in_place) {
                (true, _) => ChunkRange::input(rank.0),
                (false, true) => ChunkRange::scratch(from.0),
                (false, false) => continue,
            };
            hops.copy(rank, src, ChunkRange::output(from.0));
        }
    }
    hops.finish()
}

/// Returns every pair of ranks, sender first, with the ranks on the way between them: the longest ways first,
/// and those of equal length in the order of the receiver's distance in ranks.
fn ways(spec: &Spec) -> Vec<(Rank, Rank, Vec<Rank>)> {
    let n = spec.ranks();
    let mut ways = Vec::new();
    for to in (0..n).map(Rank) {
        let tree = spec.tree().rooted(n, to);
        ways.extend(tree.outwards().skip(1).map(|from| (from, to, tree.way_in(from))));
    }
    ways.sort_by_key(|(from, to, way)| (std::cmp::Reverse(way.len()), to.behind(from.0, n), *from));
    ways
}
