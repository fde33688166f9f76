//! Reduce as a reduce-scatter by recursive halving, then a gather: Rabenseifner's algorithm.
//!
//! Chunks: p, the largest power of two up to n. After the halving each of p ranks has one chunk of the
//! result. The chunks are gathered at the root up a binomial tree, in the rounds of the halving backwards. If
//! n is not a power of two, the first `2(n-p)` ranks form pairs: one rank sends its block to the other, which
//! represents both; the root always represents its pair.
//!
//! Stages: 2·log2(p), and 1 more when n > p. Bytes sent per rank: at most 2(p-1)/p of the block, by the root
//! half of that. Cost: 2·log2(n)·α + 2(n-1)/n·Bβ + (n-1)/n·Bγ for powers of two.
//!
//! Wins for medium and large blocks on many ranks with direct links. The order is the canonical one, so
//! results are reproducible.
//!
//! R. Rabenseifner: "Optimization of collective reduction operations", ICCS 2004.

use crate::builder::Builder;
use crate::numerics::Core;
use crate::plan::halving::{Halver, Halves};
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans a reduce by halving and gathering.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, root, core) = (spec.ranks(), spec.root(), Core::of(spec.ranks()));
    let whole = |buffer| ChunkRange { buffer, first: 0, len: core.terms };
    let mut builder = Builder::new(spec, "reduce_scatter_gather", core.terms, u32::from(n > 1));
    for rank in spec.planned_ranks() {
        if n == 1 {
            builder.copy(rank, whole(Buffer::Input), whole(Buffer::Output));
            continue;
        }
        let representative = |term| representative(core, root, term);
        let partner = core.partner(rank);
        let term = core.term(rank).unwrap_or(rank.0 / 2);
        if representative(term) != rank {
            builder.stage(0);
            builder.send(rank, representative(term), whole(Buffer::Input), 0);
            continue;
        }
        let to = if rank == root { Buffer::Output } else { Buffer::Scratch };
        let mut from = Buffer::Input;
        if let Some(partner) = partner {
            builder.stage(0);
            builder.recv_reduce(rank, partner, whole(Buffer::Input), whole(to), 0);
            from = to;
        }
        Halver { core, term, representative, from, to, stage: 1 }.reduce(&mut builder, rank);
        gather(&mut builder, rank, core, term, root);
    }
    builder.finish()
}

/// Returns the rank that represents a term: the root if it is in the term's pair.
fn representative(core: Core, root: Rank, term: u32) -> Rank {
    let first = core.representative(term);
    if core.partner(first) == Some(root) { root } else { first }
}

/// Adds the gather: of two partners, the one nearer to the root receives the other's chunks.
fn gather(builder: &mut Builder, rank: Rank, core: Core, term: u32, root: Rank) {
    let target = core.term(root).unwrap_or(root.0 / 2);
    let buffer = if rank == root { Buffer::Output } else { Buffer::Scratch };
    let rounds = core.terms.ilog2();
    for round in (0..rounds).rev() {
        let halves = Halves::of(core, term, round);
        let peer = representative(core, root, term ^ 1 << round);
        builder.stage(2 * rounds - round);
        if (term ^ target) >> round & 1 == 1 {
            builder.send(rank, peer, halves.kept(buffer), 0);
            return;
        }
        builder.recv(rank, peer, halves.given(buffer), 0);
    }
}
