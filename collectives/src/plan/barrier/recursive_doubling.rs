//! Barrier by recursive doubling.
//!
//! Chunks: 1. In round `k`, rank `r` and rank `r XOR 2^k` exchange messages. If n is not a power of two, with
//! p the largest one below it, the first `2(n-p)` ranks form pairs: the second rank sends a message to the
//! first, which represents both, and receives one from it at the end.
//!
//! As in [`dissemination`](super::dissemination), tokens record which ranks have entered: each token is a
//! reduction of earlier ones, and the last block of scratch stands for all ranks.
//!
//! Stages: log2(p), and 2 more when n > p. Bytes: none. Cost: log2(n)·α for powers of two.
//!
//! Wins over `dissemination` where a link carries both directions at once, if n is a power of two: as many
//! rounds, and every rank exchanges with log2(n) others instead of twice as many.
//!
//! R. Thakur, R. Rabenseifner, W. Gropp: "Optimization of collective communication operations in MPICH",
//! International Journal of High Performance Computing Applications 19(1), 2005 (the exchange of all-reduce,
//! without data).

use crate::builder::Builder;
use crate::numerics::Core;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};

/// Plans a barrier by doubling.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, core) = (spec.ranks(), Core::of(spec.ranks()));
    let rounds = n.ilog2();
    // The token before round `k` is in block `k`, or in block `k + 1` if there are pairs.
    let end = rounds + u32::from(core.pairs > 0);
    let mut builder = Builder::new(spec, "recursive_doubling", 1, end + 1);
    for rank in spec.planned_ranks() {
        let (term, partner) = (core.term(rank), core.partner(rank));
        let mut token = 0;
        if let Some(partner) = partner {
            builder.stage(0);
            match term {
                None => {
                    builder.send(rank, partner, ChunkRange::scratch(0), 0);
                    builder.stage(rounds + 1);
                    builder.recv(rank, partner, ChunkRange::scratch(end), 0);
                }
                Some(_) => {
                    builder.recv_reduce(rank, partner, ChunkRange::scratch(0), ChunkRange::scratch(1), 0);
                }
            }
            token = 1;
        }
        let Some(term) = term else { continue };
        for round in 0..rounds {
            let peer = core.representative(term ^ 1 << round);
            let (before, after) = (ChunkRange::scratch(token), round + 1 + end - rounds);
            builder.stage(1 + round);
            builder.send(rank, peer, before, 0);
            builder.recv_reduce(rank, peer, before, ChunkRange::scratch(after), 0);
            token = after;
        }
        if let Some(partner) = partner {
            builder.stage(rounds + 1);
            builder.send(rank, partner, ChunkRange::scratch(end), 0);
        }
    }
    builder.finish()
}
