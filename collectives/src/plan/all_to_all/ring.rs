//! All-to-all around a ring.
//!
//! Chunks: 1. In stage 0 rank `r` sends its blocks to `r + 1`, the one with the furthest destination first;
//! in every later stage it forwards the blocks for other ranks. In stage `s` it thus receives the blocks of
//! `r - s - 1`: the last one is its own, and the others go to scratch, each stage's to a place of their own.
//!
//! The order matters in place: the first block that arrives for good replaces the block with the furthest
//! destination. If that block were sent last, neighbors would wait for each other around the ring. With two
//! ranks it is the only block, and is received into scratch.
//!
//! Stages: n-1. Bytes sent per rank: n(n-1)/2 blocks, since every cable also carries the traffic of other
//! pairs. Scratch: (n-1)(n-2)/2 blocks. Cost: (n-1)α + n(n-1)/2·Bβ.
//!
//! For rings of cables, where no other algorithm works; over direct links `direct` sends less.
//!
//! J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby: "Efficient algorithms for all-to-all
//! communications in multiport message-passing systems", IEEE Transactions on Parallel and Distributed
//! Systems 8(11), 1997 (with one step at a time).

use crate::builder::Builder;
use crate::schedule::{ChunkRange, InPlace, Schedule};
use crate::{PlanError, Spec};

/// Plans an all-to-all around a ring.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let through_scratch = n == 2 && spec.in_place() == InPlace::Yes;
    let forwarded_blocks = (n - 1) * n.saturating_sub(2) / 2;
    let mut builder = Builder::new(spec, "ring", 1, forwarded_blocks + u32::from(through_scratch));
    for rank in spec.planned_ranks() {
        let (next, previous) = (rank.ahead(1, n), rank.behind(1, n));
        // First scratch blocks of the blocks forwarded in this stage, and of those received in it.
        let (mut held, mut incoming) = (0, 0);
        for stage in 0..n - 1 {
            let sent = n - 1 - stage;
            // Every message of a FIFO has a stage of its own, or the segments of one message would overtake
            // those of another.
            let before = stage * (n - 1) - stage * stage.saturating_sub(1) / 2;
            for k in 0..sent {
                builder.stage(before + k);
                let own = ChunkRange::input(rank.behind(k + 1, n).0);
                builder.send(rank, next, if stage == 0 { own } else { ChunkRange::scratch(held + k) }, 0);
            }
            for k in 0..sent - 1 {
                builder.stage(before + k);
                builder.recv(rank, previous, ChunkRange::scratch(incoming + k), 0);
            }
            builder.stage(before + sent - 1);
            let own_block = ChunkRange::output(rank.behind(stage + 1, n).0);
            let destination = if through_scratch { ChunkRange::scratch(0) } else { own_block };
            builder.recv(rank, previous, destination, 0);
            builder.copy(rank, destination, own_block);
            (held, incoming) = (incoming, incoming + sent - 1);
        }
        builder.stage(0);
        builder.copy(rank, ChunkRange::input(rank.0), ChunkRange::output(rank.0));
    }
    builder.finish()
}
