//! All-to-all by Bruck's algorithm.
//!
//! Chunks: 1. A block whose destination is `i` places ahead travels there by the bits of `i`, the lowest first: in round
//! `k` every rank sends those with bit `k` to the rank 2^k ahead, as one message. So that they are one run they are copied
//! together; those that come are left where they land until their next round.
//!
//! Stages: ⌈log2 n⌉. Bytes sent per rank: about n/2·log2(n) blocks. Scratch: twice as much. Cost: ⌈log2 n⌉·α +
//! n/2·⌈log2 n⌉·Bβ, and as many bytes copied.
//!
//! Wins for tiny blocks on many ranks: log2(n) messages per rank, where `direct` sends n-1.
//!
//! J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby: "Efficient algorithms for all-to-all communications in
//! multiport message-passing systems", IEEE Transactions on Parallel and Distributed Systems 8(11), 1997.

use crate::builder::Builder;
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans an all-to-all by Bruck's algorithm.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let travelling: u32 = (0..rounds(n)).map(|round| moved(round, n).count() as u32).sum();
    let mut builder = Builder::new(spec, "bruck", 1, 2 * travelling);
    for rank in spec.planned_ranks() {
        steps(&mut builder, rank, n);
    }
    builder.finish()
}

fn rounds(n: u32) -> u32 {
    n.next_power_of_two().ilog2()
}

/// The distances of the blocks that travel in a round.
fn moved(round: u32, n: u32) -> impl Iterator<Item = u32> {
    (0..n).filter(move |distance| distance >> round & 1 == 1)
}

fn steps(builder: &mut Builder, rank: Rank, n: u32) {
    // Where the block for each distance is.
    let mut at: Vec<ChunkRange> =
        (0..n).map(|distance| ChunkRange::input(rank.ahead(distance, n).0)).collect();
    // Every round has its own place in scratch, for what is sent and behind it for what comes: none waits for an earlier
    // one to be sent.
    let mut packing = 0;
    for round in 0..rounds(n) {
        let distance = 1 << round;
        let landing = packing + moved(round, n).count() as u32;
        builder.stage(round);
        let mut len = 0;
        for block in moved(round, n) {
            builder.copy(rank, at[block as usize], ChunkRange::scratch(packing + len));
            at[block as usize] = ChunkRange::scratch(landing + len);
            len += 1;
        }
        let run = |first| ChunkRange { buffer: Buffer::Scratch, first, len };
        builder.send(rank, rank.ahead(distance, n), run(packing), 0);
        builder.recv(rank, rank.behind(distance, n), run(landing), 0);
        packing = landing + len;
    }
    builder.stage(rounds(n));
    for (distance, from) in (0..).zip(at) {
        builder.copy(rank, from, ChunkRange::output(rank.behind(distance, n).0));
    }
}
