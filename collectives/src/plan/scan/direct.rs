//! Scan over direct links.
//!
//! Chunks: 1. Every rank sends its block to all higher ranks, and adds the blocks of the lower ranks, rank
//! 0's first, and its own last. In place sums are in scratch, since the rank's own block is still being sent.
//!
//! Stages: 1. Bytes sent by rank 0: n-1 blocks, by rank `r` n-1-r. Cost: α + (n-1)B(β + γ), with one overhead
//! per peer.
//!
//! Wins for small blocks on few ranks. Contributions are added from rank 0 on, which is the canonical order
//! of prefixes.
//!
//! The one-stage exchange of [`mesh`](crate::plan::all_reduce::mesh), limited to the ranks that need a block.

use crate::builder::Builder;
use crate::schedule::{ChunkRange, InPlace, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

const INPUT: ChunkRange = ChunkRange::input(0);
const OUTPUT: ChunkRange = ChunkRange::output(0);

/// Plans a scan over direct links.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, in_place) = (spec.ranks(), spec.in_place() == InPlace::Yes);
    let mut builder = Builder::new(spec, "direct", 1, u32::from(in_place && n > 1));
    let place = if in_place { ChunkRange::scratch(0) } else { OUTPUT };
    for rank in spec.planned_ranks() {
        (rank.0 + 1..n).for_each(|higher| builder.send(rank, Rank(higher), INPUT, 0));
        match rank.0 {
            0 => builder.copy(rank, INPUT, OUTPUT),
            1 if !in_place => builder.recv_reduce(rank, Rank(0), INPUT, OUTPUT, 0),
            _ => {
                builder.recv(rank, Rank(0), place, 0);
                (1..rank.0).for_each(|lower| builder.recv_reduce(rank, Rank(lower), place, place, 0));
                builder.reduce(rank, place, INPUT, OUTPUT);
            }
        }
    }
    builder.finish()
}
