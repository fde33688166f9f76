//! All-reduce round several rings at once, each through the ranks in another order.
//!
//! Chunks: n for each ring. A ring goes from rank `r` to `r + s` for a stride `s` that has no divisor in common with n;
//! the rings of the strides 1, -1 and of the next two such strides, s and -s, are used as far as there are any. No two
//! of them have a message between the same ranks in the same direction, so all are on lane 0. 2 ranks have one stride:
//! there the second ring is on lane 1.
//!
//! Stages: 2(n-1). Bytes sent per rank: 2(n-1)/n of the block, over up to four ranks' links. Cost with k rings:
//! 2(n-1)α + 2(n-1)/n·B/k·β + (n-1)/n·Bγ where the links to different ranks work at the same time.
//!
//! Wins for large blocks where every rank has several links (rails) that lead to different ranks: a mesh of cables.
//!
//! The ring is that of P. Patarasuk, X. Yuan: "Bandwidth optimal all-reduce algorithms for clusters of workstations",
//! Journal of Parallel and Distributed Computing 69(2), 2009; NCCL runs one on every channel: Z. Hu et al.:
//! "Demystifying NCCL", arXiv 2507.04786, 2025.

use crate::builder::Builder;
use crate::plan::circle::Circle;
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// The rings there are at most.
const MAX_RINGS: usize = 4;

/// Plans an all-reduce round several rings.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let strides = strides(n);
    let mut builder = Builder::new(spec, "multi_ring", (strides.len() as u32 * n).max(1), 0);
    for rank in spec.planned_ranks() {
        if n == 1 {
            builder.copy(rank, ChunkRange::input(0), ChunkRange::output(0));
        }
        let rings: Vec<Circle> =
            (0..).zip(&strides).map(|(nth, stride)| ring(n, rank, *stride, nth)).collect();
        let part = |nth: u32| move |buffer: Buffer, part: u32| ChunkRange::one(buffer, nth * n + part);
        for stage in 0..n - 1 {
            builder.stage(stage);
            for (nth, ring) in (0..).zip(&rings) {
                ring.add(&mut builder, rank, stage, Buffer::Input, &part(nth));
                if stage == n - 2 {
                    builder.mark_last(rank);
                }
            }
        }
        for stage in 0..n - 1 {
            builder.stage(n - 1 + stage);
            for (nth, ring) in (0..).zip(&rings) {
                ring.pass(&mut builder, rank, stage, &part(nth));
            }
        }
    }
    builder.finish()
}

/// The strides of the rings.
fn strides(n: u32) -> Vec<u32> {
    match n {
        1 => Vec::new(),
        2 => vec![1, 1],
        _ => {
            let half = (1..n.div_ceil(2)).filter(|stride| coprime(*stride, n));
            half.flat_map(|stride| [stride, n - stride]).take(MAX_RINGS).collect()
        }
    }
}

fn coprime(a: u32, b: u32) -> bool {
    if b == 0 { a == 1 } else { coprime(b, a % b) }
}

/// The ring of a stride. Its places are counted from rank 0.
fn ring(n: u32, rank: Rank, stride: u32, nth: u32) -> Circle {
    let place = (0..n).find(|place| place * stride % n == rank.0).expect("a stride that comes by every rank");
    let circle = Circle::through(n, place, |place| Rank(place * stride % n));
    // Two ranks have but one stride.
    Circle { lane: if n == 2 { nth as u8 } else { 0 }, ..circle }
}
