//! Broadcast down a k-nomial tree, for k = 4 and 8.
//!
//! Chunks: 1. Ranks are counted from the root. A rank receives from the rank that has its number in base k
//! without the highest digit; it sends to the ranks whose number has one more digit above its own, the lowest
//! first.
//!
//! Stages: (k-1)·⌈log_k n⌉ counting messages of one rank one after the other, ⌈log_k n⌉ when they overlap.
//! Bytes sent by the root: (k-1)·⌈log_k n⌉ blocks. Cost: ⌈log_k n⌉·(α + (k-1)·Bβ).
//!
//! Wins over `binomial` for tiny blocks, where sends overlap and latency dominates.
//!
//! The k-nomial trees of R. Thakur, W. Gropp: "Improving the performance of collective operations in MPICH",
//! EuroPVM/MPI 2003; UCC and MPI libraries offer them with a configurable radix.

use crate::builder::Builder;
use crate::plan::trees::{knomial_children, knomial_parent};
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

/// Plans a broadcast down a tree of radix 4.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan4(spec: &Spec) -> Result<Schedule, PlanError> {
    plan(spec, 4, "knomial4")
}

/// Plans a broadcast down a tree of radix 8.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan8(spec: &Spec) -> Result<Schedule, PlanError> {
    plan(spec, 8, "knomial8")
}

fn plan(spec: &Spec, radix: u32, name: &str) -> Result<Schedule, PlanError> {
    let (n, root) = (spec.ranks(), spec.root());
    let (input, output) = (ChunkRange::input(0), ChunkRange::output(0));
    let mut builder = Builder::new(spec, name, 1, 0);
    for rank in spec.planned_ranks() {
        let place = rank.behind(root.0, n).0;
        if let Some((above, stage)) = knomial_parent(place, radix) {
            builder.stage(stage);
            builder.recv(rank, root.ahead(above, n), output, 0);
        }
        for (child, stage) in knomial_children(place, radix, n) {
            builder.stage(stage);
            builder.send(rank, root.ahead(child, n), if rank == root { input } else { output }, 0);
        }
        if rank == root {
            builder.stage(0);
            builder.copy(rank, input, output);
        }
    }
    builder.finish()
}
