//! Broadcast down a binomial tree.
//!
//! Chunks: 1. Ranks are counted from the root. A rank receives from the rank whose number lacks its highest
//! bit, then sends to the ranks whose number has one more bit above it, the lowest first: that subtree is the
//! deepest.
//!
//! Stages: ⌈log2 n⌉. Bytes sent by the root: ⌈log2 n⌉ blocks. Cost: ⌈log2 n⌉(α + Bβ).
//!
//! Wins for small blocks.
//!
//! R. Thakur, R. Rabenseifner, W. Gropp: "Optimization of collective communication operations in MPICH",
//! International Journal of High Performance Computing Applications 19(1), 2005 (broadcast of short
//! messages).

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

/// Plans a broadcast down a binomial tree.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, root) = (spec.ranks(), spec.root());
    let mut builder = Builder::new(spec, "binomial", 1, 0);
    for rank in spec.planned_ranks() {
        let place = rank.behind(root.0, n).0;
        let from = if rank == root { ChunkRange::input(0) } else { ChunkRange::output(0) };
        // The lowest bit above the rank's own number: the root starts at 1, rank 5 (101) at 8.
        let mut bit = 1;
        if place > 0 {
            let highest = 1 << place.ilog2();
            builder.stage(place.ilog2());
            builder.recv(rank, root.ahead(place ^ highest, n), ChunkRange::output(0), 0);
            bit = highest << 1;
        }
        while place + bit < n {
            builder.stage(bit.ilog2());
            builder.send(rank, root.ahead(place + bit, n), from, 0);
            bit <<= 1;
        }
        if rank == root {
            builder.stage(0);
            builder.copy(rank, ChunkRange::input(0), ChunkRange::output(0));
        }
    }
    builder.finish()
}
