//! All-reduce around several rings at once, each through the ranks in another order.
//!
//! Chunks: n for each ring. A ring goes from rank `r` to `r + s` for a stride `s` that is coprime to n. The
//! strides are 1, -1 and the next two coprime strides, s and -s, as far as they exist. No two rings send
//! between the same ranks in the same direction, so all use lane 0. 2 ranks have one stride: their second
//! ring uses lane 1.
//!
//! Stages: 2(n-1). Bytes sent per rank: 2(n-1)/n of the block, over up to four ranks' links. Cost with k
//! rings: 2(n-1)α + 2(n-1)/n·B/k·β + (n-1)/n·Bγ where the links to different ranks work at the same time.
//!
//! Wins for large blocks where every rank has several links (rails) that lead to different ranks: a mesh of
//! cables.
//!
//! The ring is that of P. Patarasuk, X. Yuan: "Bandwidth optimal all-reduce algorithms for clusters of
//! workstations", Journal of Parallel and Distributed Computing 69(2), 2009; NCCL runs one on every channel:
//! Z. Hu et al.: "Demystifying NCCL", arXiv 2507.04786, 2025.

use crate::builder::Builder;
use crate::plan::sub_ring::SubRing;
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// The maximum number of rings.
const MAX_RINGS: usize = 4;

/// Plans an all-reduce around several rings.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let strides = strides(n);
    let mut builder = Builder::new(spec, "multi_ring", (strides.len() as u32 * n).max(1), 0);
    for rank in spec.planned_ranks() {
        if n == 1 {
            builder.copy(rank, ChunkRange::input(0), ChunkRange::output(0));
        }
        let rings: Vec<SubRing> =
            (0..).zip(&strides).map(|(nth, stride)| ring(n, rank, *stride, nth)).collect();
        let part = |nth: u32| move |buffer: Buffer, part: u32| ChunkRange::one(buffer, nth * n + part);
        for stage in 0..n - 1 {
            builder.stage(stage);
            for (nth, ring) in (0..).zip(&rings) {
                ring.reduce_scatter_stage(&mut builder, rank, stage, Buffer::Input, &part(nth));
                if stage == n - 2 {
                    builder.mark_last(rank);
                }
            }
        }
        for stage in 0..n - 1 {
            builder.stage(n - 1 + stage);
            for (nth, ring) in (0..).zip(&rings) {
                ring.all_gather_stage(&mut builder, rank, stage, &part(nth));
            }
        }
    }
    builder.finish()
}

/// Returns the strides of the rings.
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

/// Returns the ring with a stride. Its positions are counted from rank 0.
fn ring(n: u32, rank: Rank, stride: u32, nth: u32) -> SubRing {
    let place = (0..n).find(|place| place * stride % n == rank.0).expect("a stride that comes by every rank");
    let sub_ring = SubRing::through(n, place, |place| Rank(place * stride % n));
    // Two ranks have only one stride, so their rings differ in the lane.
    SubRing { lane: if n == 2 { nth as u8 } else { 0 }, ..sub_ring }
}
