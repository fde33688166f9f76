//! Gather up a binomial tree.
//!
//! Chunks: 1. Ranks are counted from the root. In stage `j` the ranks whose lowest bit is 2^j send the blocks
//! of their whole subtree, which are consecutive, to the rank that lacks that bit. On the way blocks are in
//! scratch. A message whose ranks wrap around to 0 is cut in two, since the root keeps blocks in rank order.
//!
//! Stages: ⌈log2 n⌉. Bytes received by the root: n-1 blocks; sent by others up to n/2. Cost: ⌈log2 n⌉·α +
//! (n-1)·Bβ.
//!
//! Wins for small blocks on many ranks: the root receives log2(n) messages, where `direct` has n-1.
//!
//! R. Thakur, R. Rabenseifner, W. Gropp: "Optimization of collective communication operations in MPICH",
//! International Journal of High Performance Computing Applications 19(1), 2005.

use crate::builder::Builder;
use crate::plan::trees::{children_of, max_relayed_blocks, parent_of, runs, subtree};
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::{PlanError, Spec};
use std::ops::Range;

/// Plans a gather up a tree.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, root) = (spec.ranks(), spec.root());
    let mut builder = Builder::new(spec, "binomial", 1, max_relayed_blocks(n));
    for rank in spec.planned_ranks() {
        let place = rank.behind(root.0, n).0;
        let alone = rank != root && subtree(place, n).len() == 1;
        let held = |run: Range<u32>| match rank == root {
            true => ChunkRange {
                buffer: Buffer::Output,
                first: root.ahead(run.start, n).0,
                len: run.len() as u32,
            },
            false => ChunkRange { buffer: Buffer::Scratch, first: run.start - place, len: run.len() as u32 },
        };
        if !alone {
            builder.stage(0);
            builder.copy(rank, ChunkRange::input(0), held(place..place + 1));
        }
        for bit in children_of(place, n) {
            let child = place + (1 << bit);
            for (nth, run) in (0..).zip(runs(root, subtree(child, n), n)) {
                builder.stage(2 * bit + nth);
                builder.recv(rank, root.ahead(child, n), held(run), 0);
            }
        }
        if rank == root {
            continue;
        }
        for (nth, run) in (0..).zip(runs(root, subtree(place, n), n)) {
            builder.stage(2 * place.trailing_zeros() + nth);
            let sent = if alone { ChunkRange::input(0) } else { held(run) };
            builder.send(rank, root.ahead(parent_of(place), n), sent, 0);
        }
    }
    builder.finish()
}
