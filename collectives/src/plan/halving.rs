//! Recursive halving over the terms of the canonical order, which reduces large blocks in log2(n) messages
//! per rank.
//!
//! In round `k`, term `t` and term `t XOR 2^k` share a run of chunks: each keeps one half of the run and
//! sends the other half. After all rounds each term has one fully reduced chunk. Neighbors exchange first, so
//! the sums are those of [`crate::numerics`]. The bits of the term select the half to keep, the lowest bit in
//! the round with the largest half.
//!
//! A rank writes only the half that it keeps, and never sends that half, so partners do not wait for each
//! other's sends.

use crate::builder::Builder;
use crate::numerics::Core;
use crate::schedule::{Buffer, ChunkRange};
use topology::Rank;

/// The two halves of a run of chunks in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Halves {
    /// First chunk of the half that the rank keeps.
    kept: u32,
    /// First chunk of the half that the partner keeps.
    given: u32,
    /// Chunks per half.
    len: u32,
}

impl Halves {
    /// Returns the halves that `term` keeps and sends in `round`.
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

    /// Returns the kept half in a buffer whose block 0 holds the data.
    pub(super) const fn kept(self, buffer: Buffer) -> ChunkRange {
        ChunkRange { buffer, first: self.kept, len: self.len }
    }

    /// Returns the half that the partner keeps, in the same buffer.
    pub(super) const fn given(self, buffer: Buffer) -> ChunkRange {
        ChunkRange { buffer, first: self.given, len: self.len }
    }
}

/// The recursive halving of one rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Halver<F> {
    /// The terms of the canonical order.
    pub(super) core: Core,
    /// The term that the rank represents.
    pub(super) term: u32,
    /// Maps a term to the rank that represents it.
    pub(super) representative: F,
    /// The buffer with the rank's first partial sum.
    pub(super) from: Buffer,
    /// The buffer for partial sums.
    pub(super) to: Buffer,
    /// The stage of the first round; every round is one stage.
    pub(super) stage: u32,
}

impl<F: Fn(u32) -> Rank> Halver<F> {
    /// Adds the steps of all rounds to `rank`'s program. At the end the rank holds one chunk of the result.
    pub(super) fn reduce(&self, builder: &mut Builder, rank: Rank) {
        let mut partial = self.from;
        for round in 0..self.core.terms.ilog2() {
            let halves = Halves::of(self.core, self.term, round);
            let peer = (self.representative)(self.term ^ 1 << round);
            builder.stage(self.stage + round);
            builder.send(rank, peer, halves.given(partial), 0);
            builder.recv_reduce(rank, peer, halves.kept(partial), halves.kept(self.to), 0);
            partial = self.to;
        }
        builder.mark_last(rank);
    }
}
