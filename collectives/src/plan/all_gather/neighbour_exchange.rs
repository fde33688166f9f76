//! All-gather by neighbour exchange.
//!
//! Chunks: 1. Ranks 0 and 1, 2 and 3, and so on are pairs. First the two of a pair exchange their blocks; from then on
//! every rank talks with the neighbour of the other pair and with its own by turns, and both send the two blocks that
//! came last. With an odd number of ranks there are no such pairs: this is then the [`ring`](super::ring::plan).
//!
//! Stages: n/2. Bytes sent per rank: n-1 blocks, which is the least possible. Cost: n/2·α + (n-1)·Bβ.
//!
//! Wins over `ring` on rings of cables and behind switches with an even number of ranks: half of the stages, and each
//! uses one cable both ways.
//!
//! J. Chen, Y. Zhang, L. Zhang, W. Yuan: "Performance evaluation of allgather algorithms on terascale Linux cluster with
//! fast Ethernet", HPC Asia 2005.

use super::ring;
use crate::builder::Builder;
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans an all-gather by neighbour exchange.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let mut builder = Builder::new(spec, "neighbour_exchange", 1, 0);
    for rank in spec.planned_ranks() {
        if n.is_multiple_of(2) {
            exchange(&mut builder, rank, n);
        } else {
            ring::steps(&mut builder, rank, n);
        }
    }
    builder.finish()
}

fn exchange(builder: &mut Builder, rank: Rank, n: u32) {
    let (even, mate) = (rank.0.is_multiple_of(2), Rank(rank.0 ^ 1));
    let beyond = if even { rank.behind(1, n) } else { rank.ahead(1, n) };
    let pair = |first: Rank| ChunkRange { buffer: Buffer::Output, first: first.0, len: 2 };
    builder.stage(0);
    builder.copy(rank, ChunkRange::input(0), ChunkRange::output(rank.0));
    builder.send(rank, mate, ChunkRange::input(0), 0);
    builder.recv(rank, mate, ChunkRange::output(mate.0), 0);
    let own = Rank(rank.0 / 2 * 2);
    let mut newest = own;
    for stage in 1..n / 2 {
        // By turns from either side, and each time two pairs further away.
        let (outwards, away) = (stage % 2 == 1, 2 * stage.div_ceil(2));
        let coming = if outwards == even { own.behind(away, n) } else { own.ahead(away, n) };
        let peer = if outwards { beyond } else { mate };
        builder.stage(stage);
        builder.send(rank, peer, pair(newest), 0);
        builder.recv(rank, peer, pair(coming), 0);
        newest = coming;
    }
}
