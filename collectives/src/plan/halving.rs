//! Recursive halving over the terms of the canonical order, for planners that reduce large blocks in log2(n) messages.
//!
//! In round `k`, term `t` and term `t XOR 2^k` share a run of chunks: each keeps one half of it and gives the other half
//! away, so after all rounds a term has one chunk with everyone's contribution. Neighbours come first, so the sums are
//! those of [`crate::numerics`]. Which half is kept tells the bit of the term, the lowest bit being that of the largest
//! half.
//!
//! It writes only what it keeps, and never sends that: partners don't wait for each other's sends.

use crate::builder::Builder;
use crate::numerics::Core;
use crate::schedule::{Buffer, ChunkRange};
use topology::Rank;

/// The halves of a run of chunks in a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Halves {
    /// The first chunk of the half that stays.
    kept: u32,
    /// The first chunk of the half that the partner keeps.
    given: u32,
    /// The chunks of each.
    len: u32,
}

impl Halves {
    /// What `term` keeps and gives away in `round`.
    pub(super) const fn of(core: Core, term: u32, round: u32) -> Halves {
        let (mut first, mut len, mut k) = (0, core.terms, 0);
        while k < round {
            len /= 2;
            first += (term >> k & 1) * len;
            k += 1;
        }
        let (len, bit) = (len / 2, term >> round & 1);
        Halves { kept: first + bit * len, given: first + (1 - bit) * len, len }
    }

    /// The half that stays, in a buffer whose block 0 holds the data.
    pub(super) const fn kept(self, buffer: Buffer) -> ChunkRange {
        ChunkRange { buffer, first: self.kept, len: self.len }
    }

    /// The other half.
    pub(super) const fn given(self, buffer: Buffer) -> ChunkRange {
        ChunkRange { buffer, first: self.given, len: self.len }
    }
}

/// One rank's part in a halving.
#[derive(Clone, Copy, Debug)]
pub(super) struct Halver<F> {
    /// The terms.
    pub(super) core: Core,
    /// The term that the rank speaks for.
    pub(super) term: u32,
    /// Who speaks for a term.
    pub(super) speaker: F,
    /// Where the sum lies that the rank begins with.
    pub(super) from: Buffer,
    /// Where its partial sums go.
    pub(super) to: Buffer,
    /// The stage of the first round; each has one.
    pub(super) stage: u32,
}

impl<F: Fn(u32) -> Rank> Halver<F> {
    /// The steps of `rank`, all rounds; at the end it holds one chunk of the result.
    pub(super) fn reduce(&self, builder: &mut Builder, rank: Rank) {
        let mut partial = self.from;
        for round in 0..self.core.terms.ilog2() {
            let halves = Halves::of(self.core, self.term, round);
            let peer = (self.speaker)(self.term ^ 1 << round);
            builder.stage(self.stage + round);
            builder.send(rank, peer, halves.given(partial), 0);
            builder.recv_reduce(rank, peer, halves.kept(partial), halves.kept(self.to), 0);
            partial = self.to;
        }
        builder.mark_last(rank);
    }
}
