//! All-reduce by recursive halving, then recursive doubling: Rabenseifner's algorithm.
//!
//! Chunks: p, the largest power of two up to n. In round `k` of the first half, partners `2^k` terms apart
//! share a run of chunks: each sends one half of it and reduces the other. Each of p ranks then has one chunk
//! of the result, and the rounds run backwards: partners exchange the chunks they have. If n is not a power
//! of two, the first `2(n-p)` ranks form pairs: the second rank sends its block to the first, which
//! represents both, and receives the result from it.
//!
//! A rank writes only the half that it keeps, and sends the other one, so no step waits for the rank's own
//! sends.
//!
//! Stages: 2·log2(p), and 2 more when n > p. Bytes sent per rank: 2(p-1)/p of the block (1 block more for
//! ranks that return the result, 1 less for ranks that receive it). Cost: 2·log2(n)·α + 2(n-1)/n·Bβ +
//! (n-1)/n·Bγ for powers of two.
//!
//! Wins for medium and large blocks on many ranks with direct links: the traffic of a ring in a logarithmic
//! number of messages. The order is the canonical one, so results are reproducible.
//!
//! R. Rabenseifner: "Optimization of collective reduction operations", ICCS 2004.

use crate::builder::Builder;
use crate::numerics::Core;
use crate::plan::halving::{Halver, Halves};
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans an all-reduce by halving and doubling.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, core) = (spec.ranks(), Core::of(spec.ranks()));
    let whole = |buffer| ChunkRange { buffer, first: 0, len: core.terms };
    let last = 2 * core.terms.ilog2() + 1;
    let mut builder = Builder::new(spec, "rabenseifner", core.terms, 0);
    for rank in spec.planned_ranks() {
        match (core.term(rank), core.partner(rank)) {
            _ if n == 1 => builder.copy(rank, whole(Buffer::Input), whole(Buffer::Output)),
            (Some(term), partner) => participate(&mut builder, rank, core, term, partner),
            (None, partner) => {
                let representative = partner.expect("a rank without a term has a partner with one");
                builder.stage(0);
                builder.send(rank, representative, whole(Buffer::Input), 0);
                builder.stage(last);
                builder.recv(rank, representative, whole(Buffer::Output), 0);
            }
        }
    }
    builder.finish()
}

/// Adds the steps of a rank that represents a term, either its own or that of a pair.
fn participate(builder: &mut Builder, rank: Rank, core: Core, term: u32, partner: Option<Rank>) {
    let whole = |buffer| ChunkRange { buffer, first: 0, len: core.terms };
    let rounds = core.terms.ilog2();
    let mut from = Buffer::Input;
    if let Some(partner) = partner {
        builder.stage(0);
        builder.recv_reduce(rank, partner, whole(Buffer::Input), whole(Buffer::Output), 0);
        from = Buffer::Output;
    }
    let representative = |term| core.representative(term);
    Halver { core, term, representative, from, to: Buffer::Output, stage: 1 }.reduce(builder, rank);
    for round in (0..rounds).rev() {
        let halves = Halves::of(core, term, round);
        let peer = core.representative(term ^ 1 << round);
        builder.stage(2 * rounds - round);
        builder.send(rank, peer, halves.kept(Buffer::Output), 0);
        builder.recv(rank, peer, halves.given(Buffer::Output), 0);
    }
    if let Some(partner) = partner {
        builder.stage(2 * rounds + 1);
        builder.send(rank, partner, whole(Buffer::Output), 0);
    }
}
