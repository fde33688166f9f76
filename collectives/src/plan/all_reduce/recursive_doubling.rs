//! All-reduce by recursive doubling: pairs exchange their whole partial result.
//!
//! Chunks: 1. In round `k`, rank `r` exchanges its partial result with rank `r XOR 2^k` and reduces the two.
//! If the number of ranks is not a power of two, with `p` the largest one below it, the first `2(n-p)` ranks
//! form pairs: the second rank sends its block to the first, which represents both, and receives the result
//! from it.
//!
//! A round must not write the block that it sends, or two partners would wait for each other: partial results
//! alternate between two blocks of scratch, and the last round writes the output. In place, with a single
//! round, the message is received into scratch and reduced after the send completes.
//!
//! Stages: log2(p), and 2 more when n > p. Bytes sent per rank: log2(p) times the block (1 more for ranks
//! that return the result). Cost: log2(n)·(α + Bβ + Bγ) for powers of two.
//!
//! Wins for small blocks on many ranks, where one stage would have too many messages. Partners reduce the
//! same two operands, and the operations are bitwise commutative, so every rank gets the same bits. The order
//! is the canonical one, so results are reproducible.
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
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let rounds = n.ilog2();
    let mut builder = Builder::new(spec, "recursive_doubling", 1, rounds.min(2));
    let core = Core::of(n);
    if core.pairs > 0 {
        builder.declare_results_sent();
    }
    for rank in spec.planned_ranks() {
        match (core.term(rank), core.partner(rank)) {
            _ if n == 1 => builder.copy(rank, INPUT, OUTPUT),
            (Some(term), partner) => participate(&mut builder, rank, n, term, partner),
            (None, partner) => {
                let representative = partner.expect("a rank without a term has a partner with one");
                builder.stage(0);
                builder.send(rank, representative, INPUT, 0);
                builder.stage(rounds + 1);
                builder.recv(rank, representative, OUTPUT, 0);
            }
        }
    }
    builder.finish()
}

/// Adds the steps of a rank that represents a term, either its own or that of a pair.
fn participate(builder: &mut Builder, rank: Rank, n: u32, term: u32, partner: Option<Rank>) {
    let (core, rounds) = (Core::of(n), n.ilog2());
    let scratch = |round: u32| ChunkRange::scratch(round % 2);
    let mut partial = INPUT;
    if let Some(partner) = partner {
        partial = scratch(0);
        builder.stage(0);
        builder.recv_reduce(rank, partner, INPUT, partial, 0);
    }
    for round in 0..rounds {
        let peer = core.representative(term ^ 1 << round);
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
