//! Everyone sends to the next rank of the circle and receives from the one before.
//!
//! Chunks: 1. In place the block is still being sent when the other one comes, so that one lands in scratch
//! and is copied.
//!
//! Stages: 1. Bytes sent per rank: 1 block. Cost: α + Bβ. It has no competitor.
//!
//! `MPI_Sendrecv` of the MPI standard on a circular shift; the pattern of nccl-tests' `sendrecv_perf`.

use crate::builder::Builder;
use crate::schedule::{ChunkRange, InPlace, Schedule};
use crate::{PlanError, Spec};

/// Plans a circular shift.
///
/// # Errors
/// None: a [`Spec`] always makes sense here.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let (input, output) = (ChunkRange::input(0), ChunkRange::output(0));
    let through_scratch = n > 1 && spec.in_place() == InPlace::Yes;
    let mut builder = Builder::new(spec, "shift", 1, u32::from(through_scratch));
    for rank in spec.planned_ranks() {
        if n == 1 {
            builder.copy(rank, input, output);
            continue;
        }
        builder.send(rank, rank.ahead(1, n), input, 0);
        let landing = if through_scratch { ChunkRange::scratch(0) } else { output };
        builder.recv(rank, rank.behind(1, n), landing, 0);
        builder.copy(rank, landing, output);
    }
    builder.finish()
}
