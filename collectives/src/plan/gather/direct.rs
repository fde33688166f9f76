//! Gather over direct links.
//!
//! Chunks: 1. Every rank sends its block to the root.
//!
//! Stages: 1. Bytes received by the root: n-1 blocks, which is the least possible. Cost: α + (n-1)Bβ, with
//! one receive overhead per peer.
//!
//! Wins for large blocks, where the root's link is the bottleneck, and on few ranks.
//!
//! The "linear" gather of MPI libraries.

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

/// Plans a gather over direct links.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, root) = (spec.ranks(), spec.root());
    let mut builder = Builder::new(spec, "direct", 1, 0);
    for rank in spec.planned_ranks() {
        if rank != root {
            builder.send(rank, root, ChunkRange::input(0), 0);
            continue;
        }
        for distance in 1..n {
            let peer = root.ahead(distance, n);
            builder.recv(rank, peer, ChunkRange::output(peer.0), 0);
        }
        builder.copy(rank, ChunkRange::input(0), ChunkRange::output(rank.0));
    }
    builder.finish()
}
