//! All-reduce by recursive halving, then recursive doubling: Rabenseifner's algorithm.
//!
//! Chunks: p, the largest power of two up to n. In round `k` of the first half, partners `2^k` terms apart share a run
//! of chunks: each gives one half of it away and adds up the other. Then every one of p ranks has one chunk of the result,
//! and the rounds go backwards: partners exchange what they have. When n is not a power of two, the first `2(n-p)` ranks
//! go in pairs: the second one gives its block to the first, which takes part for both, and gets the result from it.
//!
//! A rank writes only the half that it keeps, and sends the other one, so nothing waits for its own sends.
//!
//! Stages: 2·log2(p), and 2 more when n > p. Bytes sent per rank: 2(p-1)/p of the block (1 more for those who return
//! the result, 1 less for those who get it). Cost: 2·log2(n)·α + 2(n-1)/n·Bβ + (n-1)/n·Bγ for powers of two.
//!
//! Wins for medium and large blocks on many ranks with direct links: the traffic of a ring in a logarithmic number of
//! messages. The order is the canonical one, so results are reproducible.
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
/// [`PlanError::TooLarge`] for too many segments.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, core) = (spec.ranks(), Core::of(spec.ranks()));
    let whole = |buffer| ChunkRange { buffer, first: 0, len: core.terms };
    let last = 2 * core.terms.ilog2() + 1;
    let mut builder = Builder::new(spec, "rabenseifner", core.terms, 0);
    for rank in spec.planned_ranks() {
        match (core.term(rank), core.partner(rank)) {
            _ if n == 1 => builder.copy(rank, whole(Buffer::Input), whole(Buffer::Output)),
            (Some(term), partner) => speak(&mut builder, rank, core, term, partner),
            (None, partner) => {
                let speaker = partner.expect("who does not speak has a partner who does");
                builder.stage(0);
                builder.send(rank, speaker, whole(Buffer::Input), 0);
                builder.stage(last);
                builder.recv(rank, speaker, whole(Buffer::Output), 0);
            }
        }
    }
    builder.finish()
}

/// What a rank does that speaks for a term, be it its own or that of a pair.
fn speak(builder: &mut Builder, rank: Rank, core: Core, term: u32, partner: Option<Rank>) {
    let whole = |buffer| ChunkRange { buffer, first: 0, len: core.terms };
    let rounds = core.terms.ilog2();
    let mut from = Buffer::Input;
    if let Some(partner) = partner {
        builder.stage(0);
        builder.recv_reduce(rank, partner, whole(Buffer::Input), whole(Buffer::Output), 0);
        from = Buffer::Output;
    }
    let speaker = |term| core.speaker(term);
    Halver { core, term, speaker, from, to: Buffer::Output, stage: 1 }.reduce(builder, rank);
    for round in (0..rounds).rev() {
        let halves = Halves::of(core, term, round);
        let peer = core.speaker(term ^ 1 << round);
        builder.stage(2 * rounds - round);
        builder.send(rank, peer, halves.kept(Buffer::Output), 0);
        builder.recv(rank, peer, halves.given(Buffer::Output), 0);
    }
    if let Some(partner) = partner {
        builder.stage(2 * rounds + 1);
        builder.send(rank, partner, whole(Buffer::Output), 0);
    }
}
