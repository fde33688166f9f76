//! All-reduce by recursive doubling: pairs exchange everything they have.
//!
//! Chunks: 1. In round `k`, rank `r` exchanges its partial result with rank `r XOR 2^k` and combines the two.
//! For a number of ranks that is not a power of two, `p` being the largest one below it, the first `2(n-p)` ranks go in
//! pairs: the second one gives its block to the first, which takes part for both, and gets the result from it.
//!
//! A round must not write what it sends, or two partners would wait for each other: partial results alternate
//! between two blocks of scratch, and the last round writes the output. In place, with a single round, the
//! message lands in scratch and is combined when the send is complete.
//!
//! Stages: log2(p), and 2 more when n > p. Bytes sent per rank: log2(p) times the block (1 more for those who
//! return the result). Cost: log2(n)·(α + Bβ + Bγ) for powers of two.
//!
//! Wins for small blocks on many ranks, where one-shot would send too many messages. Partners combine the
//! same two operands, and the operations are commutative bit by bit, so every rank gets the same bits. The order is the
//! canonical one, so results are reproducible.
//!
//! R. Thakur, R. Rabenseifner, W. Gropp: "Optimization of collective communication operations in MPICH",
//! International Journal of High Performance Computing Applications 19(1), 2005.

use crate::builder::Builder;
use crate::numerics::Core;
use crate::schedule::{ChunkRange, InPlace, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

const INPUT: ChunkRange = ChunkRange::input(0);
const OUTPUT: ChunkRange = ChunkRange::output(0);

/// Plans an all-reduce by recursive doubling.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let rounds = n.ilog2();
    let mut builder = Builder::new(spec, "recursive_doubling", 1, rounds.min(2));
    let core = Core::of(n);
    if core.pairs > 0 {
        builder.results_travel();
    }
    for rank in spec.planned_ranks() {
        match (core.term(rank), core.partner(rank)) {
            _ if n == 1 => builder.copy(rank, INPUT, OUTPUT),
            (Some(term), partner) => speak(&mut builder, rank, n, term, partner),
            (None, partner) => {
                let speaker = partner.expect("who does not speak has a partner who does");
                builder.stage(0);
                builder.send(rank, speaker, INPUT, 0);
                builder.stage(rounds + 1);
                builder.recv(rank, speaker, OUTPUT, 0);
            }
        }
    }
    builder.finish()
}

/// What a rank does that speaks for a term, be it its own or that of a pair.
fn speak(builder: &mut Builder, rank: Rank, n: u32, term: u32, partner: Option<Rank>) {
    let (core, rounds) = (Core::of(n), n.ilog2());
    let scratch = |round: u32| ChunkRange::scratch(round % 2);
    let mut partial = INPUT;
    if let Some(partner) = partner {
        partial = scratch(0);
        builder.stage(0);
        builder.recv_reduce(rank, partner, INPUT, partial, 0);
    }
    for round in 0..rounds {
        let peer = core.speaker(term ^ 1 << round);
        let last = round == rounds - 1;
        builder.stage(round + 1);
        builder.send(rank, peer, partial, 0);
        if last && partial == INPUT && builder.in_place() == InPlace::Yes {
            builder.recv(rank, peer, scratch(0), 0);
            builder.reduce(rank, INPUT, scratch(0), OUTPUT);
        } else {
            let result = if last { OUTPUT } else { scratch(round + 1) };
            builder.recv_reduce(rank, peer, partial, result, 0);
            partial = result;
        }
    }
    builder.mark_last(rank);
    if let Some(partner) = partner {
        builder.stage(rounds + 1);
        builder.send(rank, partner, OUTPUT, 0);
    }
}
