//! All-gather over direct links.
//!
//! Chunks: 1. Every rank sends its block to all others, the next rank first, and receives their blocks.
//!
//! Stages: 1. Bytes sent per rank: n-1 blocks, which is the least possible. Cost: α + (n-1)Bβ, with one send
//! overhead per peer.
//!
//! Wins where every pair of ranks has a link of its own, at every size; and for small blocks everywhere.
//!
//! The "linear" or "direct" all-gather of MPI libraries.

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

/// Plans an all-gather over direct links.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let mut builder = Builder::new(spec, "direct", 1, 0);
    for rank in spec.planned_ranks() {
        for distance in 1..n {
            builder.send(rank, rank.ahead(distance, n), ChunkRange::input(0), 0);
        }
        for distance in 1..n {
            let peer = rank.behind(distance, n);
            builder.recv(rank, peer, ChunkRange::output(peer.0), 0);
        }
        builder.copy(rank, ChunkRange::input(0), ChunkRange::output(rank.0));
    }
    builder.finish()
}
