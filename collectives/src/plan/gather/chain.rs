//! Gather down a chain.
//!
//! Chunks: 1. The chain starts at the rank after the root and ends at the root. Every rank sends its own
//! block to the next one, then forwards the blocks it receives, through scratch.
//!
//! Stages: n-1. Bytes received by the root: n-1 blocks; sent by the rank before it: n-1 blocks. Cost: (n-1)(α
//! + Bβ).
//!
//! For rings of cables; where ranks have direct links, `direct` sends less.
//!
//! The bucket algorithm of E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn: "Collective communication:
//! theory, practice, and experience", Concurrency and Computation: Practice and Experience 19(13), 2007, on a
//! chain.

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

/// Plans a gather down a chain.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, root) = (spec.ranks(), spec.root());
    // Unequal blocks need scratch blocks of their own length.
    let scratch_blocks = if spec.uneven() { n } else { n.saturating_sub(2) };
    let mut builder = Builder::new(spec, "chain", 1, scratch_blocks);
    for rank in spec.planned_ranks() {
        // Positions count from the rank after the root; the root has the last one.
        let first = root.ahead(1, n);
        let place = rank.behind(first.0, n).0;
        let (next, previous) = (rank.ahead(1, n), rank.behind(1, n));
        if rank != root {
            builder.stage(0);
            builder.send(rank, next, ChunkRange::input(0), 0);
        }
        for distance in 1..=place {
            let destination = if rank == root {
                ChunkRange::output(rank.behind(distance, n).0)
            } else {
                ChunkRange::scratch(if spec.uneven() { rank.behind(distance, n).0 } else { distance - 1 })
            };
            builder.stage(distance - 1);
            builder.recv(rank, previous, destination, 0);
            if rank != root {
                builder.stage(distance);
                builder.send(rank, next, destination, 0);
            }
        }
        if rank == root {
            builder.stage(0);
            builder.copy(rank, ChunkRange::input(0), ChunkRange::output(rank.0));
        }
    }
    builder.finish()
}
