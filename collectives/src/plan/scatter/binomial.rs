//! Scatter down a binomial tree.
//!
//! Chunks: 1. Ranks are counted from the root. A rank receives the blocks of its whole subtree, which are
//! consecutive, from the rank that lacks its lowest bit, and forwards those of its children's subtrees, the
//! largest first. On the way blocks are in scratch. A message whose ranks wrap around to 0 is cut in two,
//! since the root has blocks in rank order.
//!
//! Stages: ⌈log2 n⌉. Bytes sent by the root: n-1 blocks; by others up to n/2. Cost: ⌈log2 n⌉·α + (n-1)·Bβ.
//!
//! Wins for small blocks on many ranks: the root sends log2(n) messages, where `direct` has n-1.
//!
//! R. Thakur, R. Rabenseifner, W. Gropp: "Optimization of collective communication operations in MPICH",
//! International Journal of High Performance Computing Applications 19(1), 2005.

use crate::builder::Builder;
use crate::plan::trees::{children_of, max_relayed_blocks, parent_of, runs, subtree};
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::{PlanError, Spec};
use std::ops::Range;

/// Plans a scatter down a tree.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, root) = (spec.ranks(), spec.root());
    let levels = n.next_power_of_two().ilog2();
    let mut builder = Builder::new(spec, "binomial", 1, max_relayed_blocks(n));
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
                builder.recv(rank, root.ahead(parent_of(place), n), held(run), 0);
            }
        }
        for bit in children_of(place, n).rev() {
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
