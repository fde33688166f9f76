//! Circular shift: every rank sends to the next rank and receives from the previous one.
//!
//! Chunks: 1. In place the block is still being sent when the other one arrives, so the message is received
//! into scratch and copied.
//!
//! Stages: 1. Bytes sent per rank: 1 block. Cost: α + Bβ. It is the only algorithm of this collective.
//!
//! `MPI_Sendrecv` of the MPI standard on a circular shift; the pattern of nccl-tests' `sendrecv_perf`.

use crate::builder::Builder;
use crate::schedule::{ChunkRange, InPlace, Schedule};
use crate::{PlanError, Spec};

/// Plans a circular shift.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
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
        let destination = if through_scratch { ChunkRange::scratch(0) } else { output };
        builder.recv(rank, rank.behind(1, n), destination, 0);
        builder.copy(rank, destination, output);
    }
    builder.finish()
}
