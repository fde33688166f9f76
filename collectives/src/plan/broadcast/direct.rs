//! Broadcast over direct links.
//!
//! Chunks: 1. The root sends its block to every rank.
//!
//! Stages: 1. Bytes sent by the root: n-1 blocks. Cost: α + (n-1)Bβ, with one send overhead per peer.
//!
//! Wins for small blocks on few ranks, and where the root has a link of its own to every rank.
//!
//! The "linear" broadcast of MPI libraries.

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

/// Plans a broadcast over direct links.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, root) = (spec.ranks(), spec.root());
    let (input, output) = (ChunkRange::input(0), ChunkRange::output(0));
    let mut builder = Builder::new(spec, "direct", 1, 0);
    for rank in spec.planned_ranks() {
        if rank == root {
            (1..n).for_each(|distance| builder.send(rank, root.ahead(distance, n), input, 0));
            builder.copy(rank, input, output);
        } else {
            builder.recv(rank, root, output, 0);
        }
    }
    builder.finish()
}
