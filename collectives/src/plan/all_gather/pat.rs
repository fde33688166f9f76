//! All-gather by parallel aggregated trees (PAT).
//!
//! Chunks: 1. Every rank's block travels to the others down a binomial tree, n trees at once, and what travels the same
//! way in a round is one message: blocks lie in scratch in an order in which it is one run (`plan/aggregated.rs`). The
//! furthest rank comes first, with one block, and the neighbour last, with half of them. At the end blocks are copied to
//! their places.
//!
//! Stages: ⌈log2 n⌉. Bytes sent per rank: n-1 blocks, which is the least possible, for any n. Scratch: n blocks. Cost:
//! ⌈log2 n⌉·α + (n-1)·Bβ, and the copies.
//!
//! Wins over `bruck` where links to far ranks are slower than those to near ones: there most of the data goes far, here
//! little does.
//!
//! S. Jeaugey: "PAT: a new algorithm for all-gather and reduce-scatter operations at scale", arXiv 2506.20252, 2025.

use crate::builder::Builder;
use crate::plan::aggregated::{Layout, Round};
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::{PlanError, Spec};
use std::ops::Range;

/// Plans an all-gather by aggregated trees.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments.
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
        builder.copy(rank, own, ChunkRange::scratch(layout.own()));
        for (stage, Round { distance, sent, came }) in (0..).zip(&layout.rounds) {
            builder.stage(stage);
            builder.send(rank, rank.ahead(*distance, n), run(sent), 0);
            builder.recv(rank, rank.behind(*distance, n), run(came), 0);
            for place in came.clone() {
                let owner = rank.behind(layout.offsets[place as usize], n);
                builder.copy(rank, ChunkRange::scratch(place), ChunkRange::output(owner.0));
            }
        }
    }
    builder.finish()
}

fn run(places: &Range<u32>) -> ChunkRange {
    ChunkRange { buffer: Buffer::Scratch, first: places.start, len: places.len() as u32 }
}
