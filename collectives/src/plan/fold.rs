//! Sums in canonical order out of messages, for planners whose rank hears from all others.
//!
//! What [`crate::numerics`] says is turned into steps: a message whose turn comes is received, or added as it arrives;
//! partial sums are kept in places that are used again. `log2(n)` places are enough, and out of place the output is
//! one of them.

use crate::builder::Builder;
use crate::numerics;
use crate::schedule::{ChunkRange, InPlace};
use topology::Rank;

/// A partial sum on its way.
#[derive(Clone, Copy, Debug)]
enum Term {
    /// The rank's own contribution.
    Own,
    /// Another rank's, in a message that is not received yet.
    Coming(Rank),
    /// One that lies in a place.
    At(ChunkRange),
}

/// Where the parts of a sum are, and where it goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// The rank's own contribution, which is not written.
    pub(super) own: ChunkRange,
    /// Where the result goes. In place, that is the memory of the own contribution.
    pub(super) result: ChunkRange,
    /// The chunk of every block of scratch that partial sums may use; it has the length of the result.
    pub(super) chunk: u32,
    /// Chunks of a block.
    pub(super) chunks: u32,
    /// The block of scratch of the first partial sum, and how many blocks further on that of the next one is.
    pub(super) scratch: (u32, u32),
}

/// The blocks of scratch that a sum over `ranks` ranks needs.
pub(super) fn scratch_blocks(ranks: u32, in_place: InPlace) -> u32 {
    if ranks == 1 {
        return 0;
    }
    let places = if ranks > 2 { ranks.next_power_of_two().ilog2() } else { 0 };
    // In place the last message is not added as it arrives: the memory is still being sent.
    if in_place == InPlace::Yes { places + 1 } else { places.saturating_sub(1) }
}

/// `rank` receives one message from each other rank and adds them all up, its own contribution included, in canonical
/// order.
pub(super) fn receive_and_add(builder: &mut Builder, rank: Rank, ranks: u32, places: Places, lane: u8) {
    let in_place = builder.in_place() == InPlace::Yes;
    let (first, stride) = places.scratch;
    let scratch = (0..scratch_blocks(ranks, builder.in_place())).rev().map(|sum| first + sum * stride);
    let mut free: Vec<ChunkRange> =
        scratch.map(|block| ChunkRange::scratch(block * places.chunks + places.chunk)).collect();
    free.extend((!in_place).then_some(places.result));
    let mut joins = 0;
    let leaf = &mut |of| if of == rank { Term::Own } else { Term::Coming(of) };
    let whole = numerics::fold(ranks, leaf, &mut |a, b| {
        joins += 1;
        let last = joins == ranks - 1;
        let mut sum = Sum { builder: &mut *builder, rank, lane, own: places.own, free: &mut free };
        let dst = sum.join(a, b, last.then_some(places.result), last && in_place);
        if last {
            builder.mark_last(rank);
        }
        Term::At(dst)
    });
    if let Term::Own = whole {
        builder.copy(rank, places.own, places.result);
    }
}

/// The addition of two terms.
struct Sum<'a> {
    builder: &'a mut Builder,
    rank: Rank,
    lane: u8,
    own: ChunkRange,
    free: &'a mut Vec<ChunkRange>,
}

impl Sum<'_> {
    /// Adds two terms; tells where the sum is.
    fn join(&mut self, a: Term, b: Term, result: Option<ChunkRange>, apart: bool) -> ChunkRange {
        let (a, b) = match (a, b) {
            // One operand must be here, so that the other can be added as it arrives.
            (Term::Coming(from), Term::Coming(other)) => {
                let place = self.take();
                self.builder.recv(self.rank, from, place, self.lane);
                (Term::At(place), Term::Coming(other))
            }
            (Term::Coming(from), here) => (here, Term::Coming(from)),
            operands => operands,
        };
        let b = match b {
            Term::Coming(from) if apart => {
                let place = self.take();
                self.builder.recv(self.rank, from, place, self.lane);
                Term::At(place)
            }
            b => b,
        };
        for place in [a, b] {
            if let Term::At(place) = place {
                self.free.push(place);
            }
        }
        let dst = result.unwrap_or_else(|| match (a, b) {
            (Term::At(place), _) | (_, Term::At(place)) => {
                self.free.retain(|free| *free != place);
                place
            }
            _ => self.take(),
        });
        let local = self.place(a);
        match b {
            Term::Coming(from) => self.builder.recv_reduce(self.rank, from, local, dst, self.lane),
            here => self.builder.reduce(self.rank, local, self.place(here), dst),
        }
        dst
    }

    fn take(&mut self) -> ChunkRange {
        self.free.pop().expect("places for as many partial sums as there can be")
    }

    fn place(&self, term: Term) -> ChunkRange {
        match term {
            Term::At(place) => place,
            _ => self.own,
        }
    }
}
