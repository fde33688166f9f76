//! Scatter over direct links.
//!
//! Chunks: 1. The root sends every rank its block.
//!
//! Stages: 1. Bytes sent by the root: n-1 blocks, which is the least possible. Cost: α + (n-1)Bβ, with one
//! send overhead per peer.
//!
//! Wins for large blocks, where the root's link is the bottleneck, and on few ranks.
//!
//! The "linear" scatter of MPI libraries.

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

/// Plans a scatter over direct links.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, root) = (spec.ranks(), spec.root());
    let mut builder = Builder::new(spec, "direct", 1, 0);
    for rank in spec.planned_ranks() {
        if rank != root {
            builder.recv(rank, root, ChunkRange::output(0), 0);
            continue;
        }
        for distance in 1..n {
            let peer = root.ahead(distance, n);
            builder.send(rank, peer, ChunkRange::input(peer.0), 0);
        }
        builder.copy(rank, ChunkRange::input(rank.0), ChunkRange::output(0));
    }
    builder.finish()
}
