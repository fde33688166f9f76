//! Scatter down a binomial tree.
//!
//! Chunks: 1. Ranks are counted from the root. A rank gets the blocks of all ranks below it, which follow each other, from
//! the rank that lacks its lowest bit, and sends those of its children's subtrees on, the largest first. On the way blocks
//! lie in scratch. Where the numbers of ranks start anew a message is cut in two, since the root has blocks in their order.
//!
//! Stages: ⌈log2 n⌉. Bytes sent by the root: n-1 blocks; by others up to n/2. Cost: ⌈log2 n⌉·α + (n-1)·Bβ.
//!
//! Wins for small blocks on many ranks: the root sends log2(n) messages, where `direct` has n-1.
//!
//! R. Thakur, R. Rabenseifner, W. Gropp: "Optimization of collective communication operations in MPICH", International
//! Journal of High Performance Computing Applications 19(1), 2005.

use crate::builder::Builder;
use crate::plan::trees::{above, below, kept_for_others, runs, subtree};
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::{PlanError, Spec};
use std::ops::Range;

/// Plans a scatter down a tree.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, root) = (spec.ranks(), spec.root());
    let levels = n.next_power_of_two().ilog2();
    let mut builder = Builder::new(spec, "binomial", 1, kept_for_others(n));
    for rank in spec.planned_ranks() {
        let place = rank.behind(root.0, n).0;
        let alone = rank != root && subtree(place, n).len() == 1;
        let held = |run: Range<u32>| match (rank == root, alone) {
            (true, _) => {
                ChunkRange { buffer: Buffer::Input, first: root.ahead(run.start, n).0, len: run.len() as u32 }
            }
            (_, true) => ChunkRange::output(0),
            _ => ChunkRange { buffer: Buffer::Scratch, first: run.start - place, len: run.len() as u32 },
        };
        let stage = |bit: u32, nth: u32| 2 * (levels - 1 - bit) + nth;
        if rank != root {
            for (nth, run) in (0..).zip(runs(root, subtree(place, n), n)) {
                builder.stage(stage(place.trailing_zeros(), nth));
                builder.recv(rank, root.ahead(above(place), n), held(run), 0);
            }
        }
        for bit in below(place, n).rev() {
            let child = place + (1 << bit);
            for (nth, run) in (0..).zip(runs(root, subtree(child, n), n)) {
                builder.stage(stage(bit, nth));
                builder.send(rank, root.ahead(child, n), held(run), 0);
            }
        }
        if !alone {
            builder.copy(rank, held(place..place + 1), ChunkRange::output(0));
        }
    }
    builder.finish()
}
