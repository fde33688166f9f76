//! All-reduce by recursive doubling: pairs exchange everything they have.
//!
//! Chunks: 1. In round `k`, rank `r` exchanges its partial result with rank `r XOR 2^k` and combines the two.
//! For a number of ranks that is not a power of two, the ranks from the largest power `p` on first give their
//! blocks to the ranks `r - p`, and in the end get the result from them.
//!
//! A round must not write what it sends, or two partners would wait for each other: partial results alternate
//! between two blocks of scratch, and the last round writes the output. In place, with a single round, the
//! message lands in scratch and is combined when the send is complete.
//!
//! Stages: log2(p), and 2 more when n > p. Bytes sent per rank: log2(p) times the block (1 more for those who
//! return the result). Cost: log2(n)·(α + Bβ + Bγ) for powers of two.
//!
//! Wins for small blocks on many ranks, where one-shot would send too many messages. Partners combine the
//! same two operands, and the operations are commutative bit by bit, so every rank gets the same bits.
//!
//! R. Thakur, R. Rabenseifner, W. Gropp: "Optimization of collective communication operations in MPICH",
//! International Journal of High Performance Computing Applications 19(1), 2005.

use crate::schedule::{Builder, ChunkRange, InPlace, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

const INPUT: ChunkRange = ChunkRange::input(0);
const OUTPUT: ChunkRange = ChunkRange::output(0);

/// Plans an all-reduce by recursive doubling.
///
/// # Errors
/// None: a [`Spec`] always makes sense here.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let rounds = n.ilog2();
    let core = 1 << rounds;
    let scratch_blocks = rounds.min(2);
    let mut builder = Builder::new(spec, "recursive_doubling", 1, scratch_blocks);
    if n == 1 {
        builder.copy(Rank(0), INPUT, OUTPUT);
    }
    for rank in spec.all_ranks().filter(|_| n > 1) {
        if rank.0 >= core {
            let partner = Rank(rank.0 - core);
            builder.send(rank, partner, INPUT, 0);
            builder.recv(rank, partner, OUTPUT, 0);
        } else {
            core_rank(&mut builder, rank, n, rounds);
        }
    }
    Ok(builder.finish())
}

/// What a rank below the power of two does.
fn core_rank(builder: &mut Builder, rank: Rank, n: u32, rounds: u32) {
    let extra = Some(Rank(rank.0 + (1 << rounds))).filter(|extra| extra.0 < n);
    let scratch = |round: u32| ChunkRange::scratch(round % 2);
    let mut partial = INPUT;
    if let Some(extra) = extra {
        partial = scratch(0);
        builder.recv_reduce(rank, extra, INPUT, partial, 0);
    }
    for round in 0..rounds {
        let peer = Rank(rank.0 ^ 1 << round);
        builder.send(rank, peer, partial, 0);
        if round == rounds - 1 && partial == INPUT && builder.in_place() == InPlace::Yes {
            builder.recv(rank, peer, scratch(0), 0);
            builder.reduce(rank, INPUT, scratch(0), OUTPUT);
            continue;
        }
        let result = if round == rounds - 1 { OUTPUT } else { scratch(round + 1) };
        builder.recv_reduce(rank, peer, partial, result, 0);
        partial = result;
    }
    if let Some(extra) = extra {
        builder.send(rank, extra, OUTPUT, 0);
    }
}
