//! All-to-all round a ring.
//!
//! Chunks: 1. In stage 0 rank `r` sends its blocks to `r + 1`, the one that goes furthest first; in every later stage
//! it passes on what was not for it. So in stage `s` it receives the blocks of `r - s - 1`: the last one is its own,
//! the others land in scratch, every stage's in a place of their own.
//!
//! That order matters in place: the first block that comes to stay takes the place of the one that goes furthest. Were
//! that one sent last, neighbours would wait for each other round the ring. Of two ranks it is the only one, and lands
//! in scratch.
//!
//! Stages: n-1. Bytes sent per rank: n(n-1)/2 blocks, for every cable carries what passes over it. Scratch: (n-1)(n-2)/2
//! blocks. Cost: (n-1)α + n(n-1)/2·Bβ.
//!
//! For rings of cables, where nothing else works; over direct links `direct` sends less.
//!
//! J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby: "Efficient algorithms for all-to-all communications in
//! multiport message-passing systems", IEEE Transactions on Parallel and Distributed Systems 8(11), 1997 (with one step
//! at a time).

use crate::builder::Builder;
use crate::schedule::{ChunkRange, InPlace, Schedule};
use crate::{PlanError, Spec};

/// Plans an all-to-all round a ring.
///
/// # Errors
/// None: a [`Spec`] always makes sense here.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let through_scratch = n == 2 && spec.in_place() == InPlace::Yes;
    let passing = (n - 1) * n.saturating_sub(2) / 2;
    let mut builder = Builder::new(spec, "ring", 1, passing + u32::from(through_scratch));
    for rank in spec.planned_ranks() {
        let (next, previous) = (rank.ahead(1, n), rank.behind(1, n));
        // Where in scratch what is passed on in this stage begins, and what comes in it.
        let (mut held, mut coming) = (0, 0);
        for stage in 0..n - 1 {
            let sent = n - 1 - stage;
            // Every message of a FIFO has a stage of its own, or segments of one would overtake those of another.
            let before = stage * (n - 1) - stage * stage.saturating_sub(1) / 2;
            for k in 0..sent {
                builder.stage(before + k);
                let own = ChunkRange::input(rank.behind(k + 1, n).0);
                builder.send(rank, next, if stage == 0 { own } else { ChunkRange::scratch(held + k) }, 0);
            }
            for k in 0..sent - 1 {
                builder.stage(before + k);
                builder.recv(rank, previous, ChunkRange::scratch(coming + k), 0);
            }
            builder.stage(before + sent - 1);
            let ours = ChunkRange::output(rank.behind(stage + 1, n).0);
            let landing = if through_scratch { ChunkRange::scratch(0) } else { ours };
            builder.recv(rank, previous, landing, 0);
            builder.copy(rank, landing, ours);
            (held, coming) = (coming, coming + sent - 1);
        }
        builder.stage(0);
        builder.copy(rank, ChunkRange::input(rank.0), ChunkRange::output(rank.0));
    }
    builder.finish()
}
