//! Reduce up a k-nomial tree, for k = 4.
//!
//! Chunks: 1. The tree is that of the broadcast of this name, upside down. Ranks are counted from the root. A
//! rank adds the sums of the ranks whose number has one more digit in base k, the highest first, and sends
//! the result to the rank whose number lacks its own highest digit.
//!
//! Stages: (k-1)·⌈log_k n⌉. Bytes sent per rank: 1 block, the root none. Cost: ⌈log_k n⌉·(α + (k-1)·B(β +
//! γ)).
//!
//! Wins over `binomial` for tiny blocks, where latency dominates. The order of additions depends on the root,
//! and is not the canonical one.
//!
//! The k-nomial trees of R. Thakur, W. Gropp: "Improving the performance of collective operations in MPICH",
//! EuroPVM/MPI 2003; UCC and MPI libraries offer them with a configurable radix.

use crate::builder::Builder;
use crate::plan::trees::{knomial_children, knomial_parent, knomial_stages};
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

const RADIX: u32 = 4;

/// Plans a reduce up a tree of radix 4.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan4(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, root) = (spec.ranks(), spec.root());
    let mut builder = Builder::new(spec, "knomial4", 1, u32::from(n > 2));
    let last = knomial_stages(RADIX, n);
    for rank in spec.planned_ranks() {
        let place = rank.behind(root.0, n).0;
        let result = if rank == root { ChunkRange::output(0) } else { ChunkRange::scratch(0) };
        let mut sum = ChunkRange::input(0);
        if n == 1 {
            builder.copy(rank, sum, result);
        }
        for (child, stage) in knomial_children(place, RADIX, n).rev() {
            builder.stage(last - stage);
            builder.recv_reduce(rank, root.ahead(child, n), sum, result, 0);
            sum = result;
        }
        match knomial_parent(place, RADIX) {
            Some((above, stage)) => {
                builder.stage(last - stage);
                builder.send(rank, root.ahead(above, n), sum, 0);
            }
            None if n > 1 => builder.mark_last(rank),
            None => {}
        }
    }
    builder.finish()
}
