//! Reduce-scatter around a ring in both directions.
//!
//! Chunks: 1. The contributions to a block reach its owner from both sides: those of the half of the ranks
//! behind it travel forward, the others backward, and every rank on the way adds its own. The owner adds both
//! sums to its own contribution.
//!
//! The input must not be written, so partial sums are kept in scratch, in two blocks for each direction: a
//! rank receives into one while it sends the other, or neighbors would wait for each other around the ring.
//!
//! Stages: ⌊n/2⌋. Bytes sent per rank: n-1 blocks, half of them in each direction. Cost: n/2·(α + Bβ + Bγ)
//! where the cables to both neighbors work at the same time.
//!
//! Wins over `ring` on rings of cables at every size.
//!
//! E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn: "Collective communication: theory, practice, and
//! experience", Concurrency and Computation: Practice and Experience 19(13), 2007 (the bucket algorithm);
//! using both directions is folklore.

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans a reduce-scatter around a ring in both directions.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let mut builder = Builder::new(spec, "bidirectional_ring", 1, if n > 3 { 4 } else { 0 });
    for rank in spec.planned_ranks() {
        if n == 1 {
            builder.copy(rank, ChunkRange::input(0), ChunkRange::output(0));
            continue;
        }
        // The distances that sums travel forward and backward.
        let [forward, backward] = [n / 2, (n - 1) / 2];
        for stage in 0..forward {
            if stage < backward {
                let local = if stage == backward - 1 { Some(ChunkRange::input(rank.0)) } else { None };
                hop(&mut builder, rank, n, Hop { forward: false, stage, length: backward, local });
            }
            let sum = if backward == 0 { ChunkRange::input(rank.0) } else { ChunkRange::output(0) };
            let local = if stage == forward - 1 { Some(sum) } else { None };
            hop(&mut builder, rank, n, Hop { forward: true, stage, length: forward, local });
        }
        builder.mark_last(rank);
    }
    builder.finish()
}

/// A stage in one direction.
#[derive(Clone, Copy, Debug)]
struct Hop {
    forward: bool,
    stage: u32,
    /// The number of stages in this direction.
    length: u32,
    /// The operand that the last sum is added to; `None` in earlier stages.
    local: Option<ChunkRange>,
}

fn hop(builder: &mut Builder, rank: Rank, n: u32, hop: Hop) {
    let Hop { forward, stage, length, local } = hop;
    let to = |distance: u32| if forward { rank.ahead(distance, n) } else { rank.behind(distance, n) };
    let from = if forward { rank.behind(1, n) } else { rank.ahead(1, n) };
    let place = |stage: u32| ChunkRange::scratch(stage % 2 + if forward { 0 } else { 2 });
    let sent = if stage == 0 { ChunkRange::input(to(length).0) } else { place(stage - 1) };
    builder.stage(stage);
    builder.send(rank, to(1), sent, 0);
    match local {
        Some(local) => builder.recv_reduce(rank, from, local, ChunkRange::output(0), 0),
        None => {
            let own = ChunkRange::input(to(length - 1 - stage).0);
            builder.recv_reduce(rank, from, own, place(stage), 0);
        }
    }
}
