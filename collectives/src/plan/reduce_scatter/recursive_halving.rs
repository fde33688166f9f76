//! Reduce-scatter by recursive halving.
//!
//! Chunks: 1. In every round partners share the blocks of some ranks: each sends the partner the partial sums
//! of one half of them and reduces the other half, which includes its own block. The first partner is half of
//! the ranks away, so that the blocks of a half are one run and one message. For reproducible results the
//! first partner is the neighbor, which gives the canonical order; the blocks of a half are then spread out,
//! with one message each.
//!
//! If n is not a power of two, with p the largest one below it, the first `2(n-p)` ranks form pairs: the
//! second rank sends its blocks to the first, which represents both, and receives its result from it.
//!
//! The input must not be written, so partial sums are in scratch. A rank writes only the half that it keeps
//! and sends the rest, so no step waits for the rank's own sends.
//!
//! Stages: log2(p), and 2 more when n > p. Bytes sent per rank: n-1 blocks, the least possible, for powers of
//! two; else up to n. Scratch: n blocks. Cost: log2(n)·α + (n-1)·B(β + γ) for powers of two.
//!
//! Wins for small and medium blocks on many ranks with direct links.
//!
//! R. Thakur, R. Rabenseifner, W. Gropp: "Optimization of collective communication operations in MPICH",
//! International Journal of High Performance Computing Applications 19(1), 2005.

use crate::builder::Builder;
use crate::numerics::Core;
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::{Numerics, PlanError, Spec};
use std::ops::Range;
use topology::Rank;

/// Plans a reduce-scatter by halving.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, core) = (spec.ranks(), Core::of(spec.ranks()));
    let mut builder = Builder::new(spec, "recursive_halving", 1, if n > 2 { n } else { 0 });
    for rank in spec.planned_ranks() {
        match (core.term(rank), core.partner(rank)) {
            _ if n == 1 => builder.copy(rank, ChunkRange::input(0), ChunkRange::output(0)),
            (Some(term), partner) => {
                let halving = Halving { core, n, rank, term, partner, order: spec.numerics() };
                halving.steps(&mut builder);
            }
            (None, partner) => {
                let representative = partner.expect("a rank without a term has a partner with one");
                builder.stage(0);
                builder.send(rank, representative, ChunkRange { buffer: Buffer::Input, first: 0, len: n }, 0);
                builder.stage(core.terms);
                builder.recv(rank, representative, ChunkRange::output(0), 0);
            }
        }
    }
    builder.finish()
}

/// A rank that represents a term, either its own or that of a pair.
#[derive(Clone, Copy)]
struct Halving {
    core: Core,
    n: u32,
    rank: Rank,
    term: u32,
    partner: Option<Rank>,
    order: Numerics,
}

impl Halving {
    fn steps(self, builder: &mut Builder) {
        let Halving { core, n, rank, term, partner, order } = self;
        let mut partial = Buffer::Input;
        if let Some(partner) = partner {
            let all = |buffer| ChunkRange { buffer, first: 0, len: n };
            builder.stage(0);
            builder.recv_reduce(rank, partner, all(Buffer::Input), all(Buffer::Scratch), 0);
            partial = Buffer::Scratch;
        }
        let rounds = core.terms.ilog2();
        for round in 0..rounds {
            let distance = if order == Numerics::Fast { core.terms >> (round + 1) } else { 1 << round };
            let peer = term ^ distance;
            // Skips as many stages as earlier rounds have messages at most.
            let first = 1 + core.terms - (core.terms >> round);
            let halves = self.runs(term, round).zip(self.runs(peer, round));
            for (stage, (kept, given)) in (first..).zip(halves) {
                let result = match partner {
                    None if round == rounds - 1 => ChunkRange::output(0),
                    _ => self.blocks(Buffer::Scratch, kept.clone()),
                };
                let (given, kept) = (self.blocks(partial, given), self.blocks(partial, kept));
                builder.stage(stage);
                builder.send(rank, core.representative(peer), given, 0);
                builder.recv_reduce(rank, core.representative(peer), kept, result, 0);
            }
            partial = Buffer::Scratch;
        }
        builder.mark_last(rank);
        if let Some(partner) = partner {
            builder.stage(core.terms);
            builder.send(rank, partner, ChunkRange::scratch(partner.0), 0);
            builder.copy(rank, ChunkRange::scratch(rank.0), ChunkRange::output(0));
        }
    }

    /// Returns the terms whose blocks `term` keeps after a round, as runs that are one message each.
    fn runs(self, term: u32, round: u32) -> impl Iterator<Item = Range<u32>> {
        let terms = self.core.terms;
        let (first, step, len, count) = match self.order {
            Numerics::Fast => {
                let len = terms >> (round + 1);
                (term / len * len, 1, len, 1)
            }
            Numerics::Reproducible => {
                let step = 2 << round;
                (term % step, step, 1, terms / step)
            }
        };
        (0..count).map(move |nth| first + nth * step).map(move |first| first..first + len)
    }

    /// Returns the blocks of a run of terms.
    fn blocks(self, buffer: Buffer, terms: Range<u32>) -> ChunkRange {
        let at = |term: u32| if term == self.core.terms { self.n } else { self.core.representative(term).0 };
        ChunkRange { buffer, first: at(terms.start), len: at(terms.end) - at(terms.start) }
    }
}
