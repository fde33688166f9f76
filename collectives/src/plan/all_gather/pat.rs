//! All-gather by parallel aggregated trees (PAT).
//!
//! Chunks: 1. Every rank's block travels to the others down a binomial tree, n trees at once. Blocks that
//! travel the same way in a round form one message: blocks lie in scratch in an order in which they are one
//! run (`plan/aggregated.rs`). The first round goes to the furthest rank, with one block; the last one goes
//! to the neighbor, with half of the blocks. Received blocks are then copied to their place in the output.
//!
//! Stages: ⌈log2 n⌉. Bytes sent per rank: n-1 blocks, which is the least possible, for any n. Scratch: n
//! blocks. Cost: ⌈log2 n⌉·α + (n-1)·Bβ, and the copies.
//!
//! Wins over `bruck` where links to far ranks are slower than links to near ones: `bruck` sends most of the
//! data far, PAT little.
//!
//! S. Jeaugey: "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", arXiv
//! 2506.20252, 2025.

use crate::builder::Builder;
use crate::plan::aggregated::{Layout, Round};
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::{PlanError, Spec};
use std::ops::Range;

/// Plans an all-gather by aggregated trees.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let (layout, own) = (Layout::new(n), ChunkRange::input(0));
    let mut builder = Builder::new(spec, "pat", 1, if n > 2 { n } else { 0 });
    for rank in spec.planned_ranks() {
        builder.stage(0);
        builder.copy(rank, own, ChunkRange::output(rank.0));
        if n == 2 {
            builder.send(rank, rank.ahead(1, n), own, 0);
            builder.recv(rank, rank.ahead(1, n), ChunkRange::output(rank.ahead(1, n).0), 0);
        }
        if n < 3 {
            continue;
        }
        builder.copy(rank, own, ChunkRange::scratch(layout.own_slot()));
        for (stage, Round { distance, sent, received }) in (0..).zip(&layout.rounds) {
            builder.stage(stage);
            builder.send(rank, rank.ahead(*distance, n), run(sent), 0);
            builder.recv(rank, rank.behind(*distance, n), run(received), 0);
            for slot in received.clone() {
                let owner = rank.behind(layout.offsets[slot as usize], n);
                builder.copy(rank, ChunkRange::scratch(slot), ChunkRange::output(owner.0));
            }
        }
    }
    builder.finish()
}

fn run(slots: &Range<u32>) -> ChunkRange {
    ChunkRange { buffer: Buffer::Scratch, first: slots.start, len: slots.len() as u32 }
}
