//! All-to-all by Bruck's algorithm.
//!
//! Chunks: 1. A block whose destination is `i` ranks ahead travels there by the bits of `i`, the lowest
//! first: in round `k` every rank sends the blocks with bit `k` to the rank 2^k ahead, as one message. A copy
//! packs them into one run first; received blocks stay where they arrive until their next round.
//!
//! Stages: ⌈log2 n⌉. Bytes sent per rank: about n/2·log2(n) blocks. Scratch: twice as much. Cost: ⌈log2 n⌉·α
//! + n/2·⌈log2 n⌉·Bβ, and as many bytes copied.
//!
//! Wins for tiny blocks on many ranks: log2(n) messages per rank, where `direct` sends n-1.
//!
//! J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D. Weathersby: "Efficient algorithms for all-to-all
//! communications in multiport message-passing systems", IEEE Transactions on Parallel and Distributed
//! Systems 8(11), 1997.

use crate::builder::Builder;
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans an all-to-all by Bruck's algorithm.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let moved_blocks: u32 = (0..rounds(n)).map(|round| moved(round, n).count() as u32).sum();
    let mut builder = Builder::new(spec, "bruck", 1, 2 * moved_blocks);
    for rank in spec.planned_ranks() {
        steps(&mut builder, rank, n);
    }
    builder.finish()
}

fn rounds(n: u32) -> u32 {
    n.next_power_of_two().ilog2()
}

/// Returns the distances of the blocks that move in a round.
fn moved(round: u32, n: u32) -> impl Iterator<Item = u32> {
    (0..n).filter(move |distance| distance >> round & 1 == 1)
}

fn steps(builder: &mut Builder, rank: Rank, n: u32) {
    // The current location of the block for each distance.
    let mut location: Vec<ChunkRange> =
        (0..n).map(|distance| ChunkRange::input(rank.ahead(distance, n).0)).collect();
    // Every round has its own scratch for the sent blocks, followed by that for the received ones, so that no
    // round waits for the sends of an earlier one.
    let mut packing = 0;
    for round in 0..rounds(n) {
        let distance = 1 << round;
        let destination = packing + moved(round, n).count() as u32;
        builder.stage(round);
        let mut len = 0;
        for block in moved(round, n) {
            builder.copy(rank, location[block as usize], ChunkRange::scratch(packing + len));
            location[block as usize] = ChunkRange::scratch(destination + len);
            len += 1;
        }
        let run = |first| ChunkRange { buffer: Buffer::Scratch, first, len };
        builder.send(rank, rank.ahead(distance, n), run(packing), 0);
        builder.recv(rank, rank.behind(distance, n), run(destination), 0);
        packing = destination + len;
    }
    builder.stage(rounds(n));
    for (distance, from) in (0..).zip(location) {
        builder.copy(rank, from, ChunkRange::output(rank.behind(distance, n).0));
    }
}
