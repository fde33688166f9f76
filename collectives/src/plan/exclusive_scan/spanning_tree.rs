//! Exclusive scan along a spanning tree of the ranks.
//!
//! Chunks: 1. Every rank receives the sum of the lower ranks, adds its own block in scratch, and sends the
//! new sum on; it is relayed along the tree to the next rank, through scratch. In place the message is
//! received into scratch as well, since the sum needs the rank's own block. Contributions are added from rank
//! 0 on, which is the canonical order of prefixes.
//!
//! Stages: the ways from each rank to the next one together, n-1 on a line in the order of ranks. Cost there
//! when cut into k segments: (n-2+k)(α + B/k·(β + γ)).
//!
//! For cables that form no ring in the order of ranks; the tree is selected by [`crate::SpanningTree`]. Along
//! a ring in another order ([`crate::RingOrder`]) messages take the shorter way around it, which is the cable
//! itself where there is one.

use crate::plan::hops::{self, Hops, Landing, TRANSIT_SLOTS};
use crate::schedule::{ChunkRange, InPlace, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

const INPUT: ChunkRange = ChunkRange::input(0);
const OUTPUT: ChunkRange = ChunkRange::output(0);
const SUM: ChunkRange = ChunkRange::scratch(0);
const LANDED: ChunkRange = ChunkRange::scratch(1);

/// Plans an exclusive scan along a spanning tree.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let is_in_place = spec.in_place() == InPlace::Yes;
    let mut hops = Hops::new(spec, if n > 2 { 2 + TRANSIT_SLOTS } else { 0 });
    let mut sum = INPUT;
    for to in (1..n).map(Rank) {
        let passes_on = to.0 + 1 < n;
        let landed = if is_in_place && passes_on { LANDED } else { OUTPUT };
        let way = hops::way(spec, to.behind(1, n), to);
        hops.relay(&way, sum, Landing::At(landed), |hops, rank| {
            ChunkRange::scratch(2 + hops.next_slot(rank))
        });
        if passes_on {
            hops.reduce(to, INPUT, landed, SUM);
            sum = SUM;
        }
        hops.copy(to, landed, OUTPUT);
    }
    hops.finish()
}
