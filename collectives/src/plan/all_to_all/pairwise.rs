//! All-to-all by pairwise exchange.
//!
//! Chunks: 1. In every round each rank has one partner, and partners are mutual: they send each other the
//! blocks that they have for one another. With a power of two the partner in round `k` is `rank XOR k`; else
//! it is `k - rank` modulo n, and some ranks rest in some rounds. A received block replaces the sent one, so
//! in place two blocks of scratch are enough for any number of ranks.
//!
//! Stages: n-1 (n when n is not a power of two). Bytes sent per rank: n-1 blocks, which is the least
//! possible. Cost: (n-1)(α + Bβ).
//!
//! Wins for large blocks behind a switch, where `direct` starts all messages at once, and in place, where
//! `direct` needs n-1 blocks of scratch.
//!
//! R. Thakur, R. Rabenseifner, W. Gropp: "Optimization of collective communication operations in MPICH",
//! International Journal of High Performance Computing Applications 19(1), 2005.

use crate::builder::Builder;
use crate::plan::pairs::partners;
use crate::schedule::{ChunkRange, InPlace, Schedule};
use crate::{PlanError, Spec};

/// Plans an all-to-all by pairwise exchange.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let through_scratch = spec.in_place() == InPlace::Yes;
    let mut builder = Builder::new(spec, "pairwise", 1, if through_scratch { (n - 1).min(2) } else { 0 });
    for rank in spec.planned_ranks() {
        builder.stage(0);
        builder.copy(rank, ChunkRange::input(rank.0), ChunkRange::output(rank.0));
        for (nth, (round, peer)) in (0..).zip(partners(rank, n)) {
            let place = ChunkRange::output(peer.0);
            let destination = if through_scratch { ChunkRange::scratch(nth % 2) } else { place };
            builder.stage(round);
            builder.send(rank, peer, ChunkRange::input(peer.0), 0);
            builder.recv(rank, peer, destination, 0);
            builder.copy(rank, destination, place);
        }
    }
    builder.finish()
}
