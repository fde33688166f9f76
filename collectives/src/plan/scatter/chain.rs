//! Scatter down a chain.
//!
//! Chunks: 1. The chain starts at the root and ends at the rank before it. The root sends the block with the
//! furthest destination first; every rank forwards the blocks it receives, through scratch, and keeps the
//! last one.
//!
//! Stages: n-1. Bytes sent by the root: n-1 blocks. Cost: (n-1)(α + Bβ).
//!
//! For rings of cables; where ranks have direct links, `direct` sends less.
//!
//! The bucket algorithm of E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn: "Collective communication:
//! theory, practice, and experience", Concurrency and Computation: Practice and Experience 19(13), 2007, on a
//! chain.

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

/// Plans a scatter down a chain.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, root) = (spec.ranks(), spec.root());
    // Unequal blocks need scratch blocks of their own length.
    let scratch_blocks = if spec.uneven() { n } else { n.saturating_sub(2) };
    let mut builder = Builder::new(spec, "chain", 1, scratch_blocks);
    for rank in spec.planned_ranks() {
        let place = rank.behind(root.0, n).0;
        let (next, previous) = (rank.ahead(1, n), rank.behind(1, n));
        // The distance of the block's destination from this rank, the furthest first.
        for (nth, beyond) in (1..n - place).rev().enumerate() {
            let from = if rank == root {
                ChunkRange::input(rank.ahead(beyond, n).0)
            } else {
                let slot = if spec.uneven() { rank.ahead(beyond, n).0 } else { beyond - 1 };
                let destination = ChunkRange::scratch(slot);
                builder.stage(nth as u32 + place - 1);
                builder.recv(rank, previous, destination, 0);
                destination
            };
            builder.stage(nth as u32 + place);
            builder.send(rank, next, from, 0);
        }
        if rank == root {
            builder.stage(0);
            builder.copy(rank, ChunkRange::input(rank.0), ChunkRange::output(0));
        } else {
            builder.stage(n - 2);
            builder.recv(rank, previous, ChunkRange::output(0), 0);
        }
    }
    builder.finish()
}
