//! All-to-all over direct links.
//!
//! Chunks: 1. Every rank sends each block of its input to its destination, the next rank first, and receives
//! the previous rank's block first, so that no two ranks send to the same one at the same time. In place a
//! block may still be being sent when its replacement arrives, so all blocks are received into scratch and
//! copied.
//!
//! Stages: 1. Bytes sent per rank: n-1 blocks. Cost: α + (n-1)Bβ, with one send overhead per peer.
//!
//! Wins everywhere except for tiny blocks on very many ranks, where J. Bruck et al. (IEEE Transactions on
//! Parallel and Distributed Systems 8(11), 1997) send fewer messages.
//!
//! R. Thakur, R. Rabenseifner, W. Gropp: "Optimization of collective communication operations in MPICH",
//! International Journal of High Performance Computing Applications 19(1), 2005.

use crate::builder::Builder;
use crate::schedule::{ChunkRange, InPlace, Schedule};
use crate::{PlanError, Spec};

/// Plans an all-to-all over direct links.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let through_scratch = spec.in_place() == InPlace::Yes;
    let mut builder = Builder::new(spec, "direct", 1, if through_scratch { n - 1 } else { 0 });
    for rank in spec.planned_ranks() {
        for distance in 1..n {
            let peer = rank.ahead(distance, n);
            builder.send(rank, peer, ChunkRange::input(peer.0), 0);
        }
        for distance in 1..n {
            let peer = rank.behind(distance, n);
            let place = ChunkRange::output(peer.0);
            let destination = if through_scratch { ChunkRange::scratch(distance - 1) } else { place };
            builder.recv(rank, peer, destination, 0);
            builder.copy(rank, destination, place);
        }
        builder.copy(rank, ChunkRange::input(rank.0), ChunkRange::output(rank.0));
    }
    builder.finish()
}
