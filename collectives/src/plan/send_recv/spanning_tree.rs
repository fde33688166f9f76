//! Circular shift along a spanning tree of the ranks.
//!
//! Chunks: 1. Every block is relayed along the tree to the next rank, through scratch. In place it is
//! received into scratch and copied.
//!
//! Stages: the longest way between a rank and the next one, and as many more as blocks meet. Cost on a line
//! of n ranks: (n-1)α + Bβ per message of the last rank's way, n-1 of them when not cut into segments.
//!
//! For cables that form no ring in the order of ranks; the tree is selected by [`crate::SpanningTree`]. Along
//! a ring in another order ([`crate::RingOrder`]) messages take the shorter way around it, which is the cable
//! itself where there is one.

use crate::plan::hops::{self, Hops, Landing, TRANSIT_SLOTS};
use crate::schedule::{ChunkRange, InPlace, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans a circular shift along a spanning tree.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let is_in_place = spec.in_place() == InPlace::Yes;
    let (input, output, landed) = (ChunkRange::input(0), ChunkRange::output(0), ChunkRange::scratch(0));
    let mut hops = Hops::new(spec, if n > 1 { 1 + TRANSIT_SLOTS } else { 0 });
    for to in (0..n).map(Rank) {
        let way = hops::way(spec, to.behind(1, n), to);
        let landing = Landing::At(if is_in_place { landed } else { output });
        hops.relay(&way, input, landing, |hops, rank| ChunkRange::scratch(1 + hops.next_slot(rank)));
    }
    for rank in spec.planned_ranks() {
        match (n, is_in_place) {
            (1, _) => hops.copy(rank, input, output),
            (_, true) => hops.copy(rank, landed, output),
            (_, false) => {}
        }
    }
    hops.finish()
}
