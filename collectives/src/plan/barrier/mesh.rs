//! Barrier in one stage: every rank sends a message to every other rank.
//!
//! Chunks: 1. A rank leaves once it has a message from each other rank.
//!
//! As in [`dissemination`](super::dissemination), tokens record which ranks have entered: block `k` of
//! scratch is the token after `k` messages. Ranks send block 0, "this rank has entered", so that no message
//! waits for another one.
//!
//! Stages: 1. Bytes: none. Cost: α, with one send overhead per peer.
//!
//! Wins on few ranks: `dissemination` sends fewer messages, but each of its rounds waits for the one before.
//! Where ranks share cores, each wait may take a turn of all of them.
//!
//! The "linear" barrier of MPI libraries, without a root.

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

/// Plans a barrier in one stage.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let mut builder = Builder::new(spec, "mesh", 1, n);
    for rank in spec.planned_ranks() {
        for distance in 1..n {
            builder.send(rank, rank.ahead(distance, n), ChunkRange::scratch(0), 0);
        }
        for distance in 1..n {
            let (before, after) = (ChunkRange::scratch(distance - 1), ChunkRange::scratch(distance));
            builder.recv_reduce(rank, rank.behind(distance, n), before, after, 0);
        }
    }
    builder.finish()
}
