//! Broadcast as a scatter, then an all-gather: van de Geijn's algorithm.
//!
//! Chunks: n; chunk `c` belongs to the rank `c` positions after the root. The chunks are scattered down a
//! binomial tree in which the ranks of a subtree are consecutive, so that a message is one run of chunks.
//! Then they travel around the ring, except to ranks that already have them from the scatter; the root
//! receives none.
//!
//! Stages: ⌈log2 n⌉ + n-1. Bytes sent by the root: 2(n-1)/n of the block; by others about 1 block at most.
//! Cost: (⌈log2 n⌉ + n-1)α + 2(n-1)/n·Bβ.
//!
//! Wins for large blocks that are not cut into segments; with segments, `chain` sends half as much.
//!
//! M. Barnett, S. Gupta, D. Payne, L. Shuler, R. van de Geijn, J. Watts: "Interprocessor collective
//! communication library (InterCom)", Scalable High Performance Computing Conference 1994.

use crate::builder::Builder;
use crate::plan::trees::{children_of, parent_of, subtree};
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::{PlanError, Spec};
use std::ops::Range;
use topology::Rank;

/// Plans a broadcast by scatter and all-gather.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, root) = (spec.ranks(), spec.root());
    let mut builder = Builder::new(spec, "scatter_all_gather", n, 0);
    for rank in spec.planned_ranks() {
        let place = rank.behind(root.0, n).0;
        scatter(&mut builder, rank, place, root, n);
        all_gather(&mut builder, rank, place, n);
        if rank == root {
            builder.stage(0);
            builder.copy(rank, run(Buffer::Input, 0..n), run(Buffer::Output, 0..n));
        }
    }
    builder.finish()
}

fn run(buffer: Buffer, chunks: Range<u32>) -> ChunkRange {
    ChunkRange { buffer, first: chunks.start, len: chunks.len() as u32 }
}

/// Returns the buffer from which a position sends.
fn held(place: u32) -> Buffer {
    if place == 0 { Buffer::Input } else { Buffer::Output }
}

fn scatter(builder: &mut Builder, rank: Rank, place: u32, root: Rank, n: u32) {
    let levels = n.next_power_of_two().ilog2();
    if place > 0 {
        builder.stage(levels - 1 - place.trailing_zeros());
        builder.recv(rank, root.ahead(parent_of(place), n), run(Buffer::Output, subtree(place, n)), 0);
    }
    for bit in children_of(place, n).rev() {
        let child = place + (1 << bit);
        builder.stage(levels - 1 - bit);
        builder.send(rank, root.ahead(child, n), run(held(place), subtree(child, n)), 0);
    }
}

fn all_gather(builder: &mut Builder, rank: Rank, place: u32, n: u32) {
    let levels = n.next_power_of_two().ilog2();
    let next = (place + 1) % n;
    for stage in 0..n - 1 {
        let (sent, received) = ((place + n - stage) % n, (place + 2 * n - stage - 1) % n);
        builder.stage(levels + stage);
        if !subtree(next, n).contains(&sent) {
            builder.send(rank, rank.ahead(1, n), ChunkRange::one(held(place), sent), 0);
        }
        if !subtree(place, n).contains(&received) {
            builder.recv(rank, rank.behind(1, n), ChunkRange::output(received), 0);
        }
    }
}
