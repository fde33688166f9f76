//! All-reduce over direct links: a reduce-scatter, then an all-gather.
//!
//! Chunks: n; rank `r` owns chunk `r`. It sends every other chunk of its input to the owner, the next rank
//! first, and adds the messages for its own chunk, the previous rank's first, so that no two ranks send to
//! the same one at the same time. Then it sends the result to all ranks, and receives the other chunks.
//!
//! Stages: 2. Bytes sent per rank: 2(n-1)/n of the block, which is the least possible, in messages of 1/n.
//! Cost: 2α + 2(n-1)/n·Bβ + (n-1)/n·Bγ, with one send overhead per message.
//!
//! Wins for medium and large blocks where every pair of ranks has a link of its own: a full mesh of cables,
//! or a switch. Only the owner reduces a chunk, so every rank gets the same bits; for reproducible results it
//! adds in canonical order, in log2(n) blocks of scratch.
//!
//! R. Rabenseifner: "Optimization of collective reduction operations", ICCS 2004, for the two halves; with
//! direct exchange in both, the "two-shot" all-reduce of GPU libraries.

use crate::builder::Builder;
use crate::plan::fold::{self, FoldBuffers};
use crate::schedule::{ChunkRange, Schedule};
use crate::{Numerics, PlanError, Spec};
use topology::Rank;

/// Plans an all-reduce over direct links.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, canonical) = (spec.ranks(), spec.numerics() == Numerics::Reproducible);
    let scratch_blocks = if canonical { fold::scratch_blocks(n, spec.in_place()) } else { 0 };
    let mut builder = Builder::new(spec, "rsag_mesh", n, scratch_blocks);
    for rank in spec.planned_ranks() {
        let (own, result) = (ChunkRange::input(rank.0), ChunkRange::output(rank.0));
        builder.stage(0);
        for distance in 1..n {
            let owner = rank.ahead(distance, n);
            builder.send(rank, owner, ChunkRange::input(owner.0), 0);
        }
        if canonical || n == 1 {
            let buffers = FoldBuffers { own, result, chunk: rank.0, chunks: n, scratch: (0, 1) };
            fold::receive_and_add(&mut builder, rank, n, buffers, 0);
        } else {
            add_on_arrival(&mut builder, rank, n);
        }
        // The reduction adds n - 1 messages one after the other first. With an earlier stage here, the
        // reduction of one segment would delay later segments in the same FIFOs: it costs four ranks a sixth
        // of their bandwidth.
        builder.stage(n - 1);
        for distance in 1..n {
            builder.send(rank, rank.ahead(distance, n), result, 0);
        }
        for distance in 1..n {
            let owner = rank.behind(distance, n);
            builder.recv(rank, owner, ChunkRange::output(owner.0), 0);
        }
    }
    builder.finish()
}

/// Adds the messages for the rank's own chunk, the previous rank's first.
fn add_on_arrival(builder: &mut Builder, rank: Rank, n: u32) {
    let (own, result) = (ChunkRange::input(rank.0), ChunkRange::output(rank.0));
    for distance in 1..n {
        let partial = if distance == 1 { own } else { result };
        builder.recv_reduce(rank, rank.behind(distance, n), partial, result, 0);
    }
    builder.mark_last(rank);
}
