//! Scan along a spanning tree of the ranks.
//!
//! Chunks: 1. Every rank adds its block to the sum of the previous rank, and sends the new sum on; it is
//! relayed along the tree to the next rank, through scratch. Contributions are added from rank 0 on, which is
//! the canonical order of prefixes.
//!
//! Stages: the ways from each rank to the next one together, n-1 on a line in the order of ranks. Cost there
//! when cut into k segments: (n-2+k)(α + B/k·(β + γ)).
//!
//! For cables that form no ring in the order of ranks; the tree is selected by [`crate::SpanningTree`]. Along
//! a ring in another order ([`crate::RingOrder`]) messages take the shorter way around it, which is the cable
//! itself where there is one.

use crate::plan::hops::{self, Hops, Landing, TRANSIT_SLOTS};
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans a scan along a spanning tree.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let (input, output) = (ChunkRange::input(0), ChunkRange::output(0));
    let mut hops = Hops::new(spec, if n > 2 { TRANSIT_SLOTS } else { 0 });
    hops.copy(Rank(0), input, output);
    let mut sum = input;
    for to in (1..n).map(Rank) {
        let way = hops::way(spec, to.behind(1, n), to);
        let landing = Landing::Added { local: input, dst: output };
        hops.relay(&way, sum, landing, |hops, rank| ChunkRange::scratch(hops.next_slot(rank)));
        sum = output;
    }
    hops.finish()
}
