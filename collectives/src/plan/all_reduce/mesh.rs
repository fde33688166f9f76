//! All-reduce in one stage: every rank sends its whole block to every other rank.
//!
//! Chunks: 1. Every rank sends its input to all others, the next one first, and reduces the received blocks
//! in rank order, `((x0 ⊕ x1) ⊕ x2) ⊕ ...`, with its own contribution at its own position. All ranks thus
//! compute the same expression and get the same bits.
//!
//! Out of place the output holds the partial result. In place the output is still being sent, so all but the
//! last operation use a block of scratch, and the last one waits for the sends. With 2 ranks in place, a
//! fused receive-and-reduce into the output would make each rank wait for the other, so the message is
//! received into scratch. For reproducible results the messages are added in canonical order, in log2(n)
//! blocks of scratch.
//!
//! Stages: 1. Bytes sent per rank: (n-1) times the block. Cost: α + (n-1)Bβ + (n-1)Bγ, with one send overhead
//! per peer.
//!
//! Wins for small blocks: one stage is the minimum. With 2 ranks out of place it is one send and one fused
//! receive-and-reduce.
//!
//! The "linear" all-reduce of MPI libraries, and the "one-shot" all-reduce of GPU libraries, e.g. A. Shah et
//! al.: "MSCCL++: rethinking GPU communication abstractions", arXiv 2504.09014, 2025.

use crate::builder::Builder;
use crate::plan::fold::{self, FoldBuffers};
use crate::schedule::{ChunkRange, InPlace, Schedule};
use crate::{Numerics, PlanError, Spec};
use topology::Rank;

const INPUT: ChunkRange = ChunkRange::input(0);
const OUTPUT: ChunkRange = ChunkRange::output(0);
const SCRATCH: ChunkRange = ChunkRange::scratch(0);

/// Plans an all-reduce in one stage.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    if spec.numerics() == Numerics::Reproducible {
        return in_canonical_order(spec);
    }
    let partial = match spec.in_place() {
        InPlace::No => OUTPUT,
        InPlace::Yes => SCRATCH,
    };
    let scratch_blocks = u32::from(n > 1 && partial == SCRATCH);
    let mut builder = Builder::new(spec, "mesh", 1, scratch_blocks);
    for rank in spec.planned_ranks() {
        for distance in 1..n {
            builder.send(rank, rank.ahead(distance, n), INPUT, 0);
        }
        match (n, spec.in_place()) {
            (1, _) => builder.copy(rank, INPUT, OUTPUT),
            (2, InPlace::Yes) => {
                builder.recv(rank, rank.ahead(1, n), SCRATCH, 0);
                builder.reduce(rank, INPUT, SCRATCH, OUTPUT);
                builder.mark_last(rank);
            }
            _ => {
                reduce_in_rank_order(&mut builder, rank, n, partial);
                builder.mark_last(rank);
            }
        }
    }
    builder.finish()
}

/// Plans the same messages, with the additions in canonical order.
fn in_canonical_order(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let mut builder = Builder::new(spec, "mesh", 1, fold::scratch_blocks(n, spec.in_place()));
    for rank in spec.planned_ranks() {
        for distance in 1..n {
            builder.send(rank, rank.ahead(distance, n), INPUT, 0);
        }
        let buffers = FoldBuffers { own: INPUT, result: OUTPUT, chunk: 0, chunks: 1, scratch: (0, 1) };
        fold::receive_and_add(&mut builder, rank, n, buffers, 0);
    }
    builder.finish()
}

/// Receives from all others in rank order and reduces each message into `partial`; the last result is the
/// output.
fn reduce_in_rank_order(builder: &mut Builder, rank: Rank, n: u32, partial: ChunkRange) {
    let result = |operand: u32| if operand == n - 1 { OUTPUT } else { partial };
    match rank.0 {
        // The first operation is `x0 ⊕ x1`; on ranks 0 and 1 one operand is the rank's own contribution.
        0 => builder.recv_reduce(rank, Rank(1), INPUT, result(1), 0),
        1 => builder.recv_reduce(rank, Rank(0), INPUT, result(1), 0),
        _ => {
            builder.recv(rank, Rank(0), partial, 0);
            builder.recv_reduce(rank, Rank(1), partial, partial, 0);
        }
    }
    for operand in 2..n {
        if operand == rank.0 {
            builder.reduce(rank, partial, INPUT, result(operand));
        } else {
            builder.recv_reduce(rank, Rank(operand), partial, result(operand), 0);
        }
    }
}
