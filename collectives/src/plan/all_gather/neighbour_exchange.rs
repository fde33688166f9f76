//! All-gather by neighbor exchange.
//!
//! Chunks: 1. Ranks 0 and 1, 2 and 3, and so on are pairs. First the two ranks of a pair exchange their
//! blocks. From then on every rank alternates between the neighbor in the other pair and the partner in its
//! own, and each message holds the two blocks that arrived last. An odd number of ranks cannot be paired: the
//! plan is then the [`ring`](super::ring::plan).
//!
//! Stages: n/2. Bytes sent per rank: n-1 blocks, which is the least possible. Cost: n/2·α + (n-1)·Bβ.
//!
//! Wins over `ring` on rings of cables and behind switches with an even number of ranks: half of the stages,
//! and each uses one cable in both directions.
//!
//! J. Chen, Y. Zhang, L. Zhang, W. Yuan: "Performance evaluation of allgather algorithms on terascale Linux
//! cluster with fast Ethernet", HPC Asia 2005.

use super::ring;
use crate::builder::Builder;
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans an all-gather by neighbor exchange.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
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
    let (even, partner) = (rank.0.is_multiple_of(2), Rank(rank.0 ^ 1));
    let outer_neighbor = if even { rank.behind(1, n) } else { rank.ahead(1, n) };
    let pair = |first: Rank| ChunkRange { buffer: Buffer::Output, first: first.0, len: 2 };
    builder.stage(0);
    builder.copy(rank, ChunkRange::input(0), ChunkRange::output(rank.0));
    builder.send(rank, partner, ChunkRange::input(0), 0);
    builder.recv(rank, partner, ChunkRange::output(partner.0), 0);
    let own = Rank(rank.0 / 2 * 2);
    let mut newest = own;
    for stage in 1..n / 2 {
        // Stages alternate between the two sides; every second stage reaches one pair further.
        let (is_outward, distance) = (stage % 2 == 1, 2 * stage.div_ceil(2));
        let incoming = if is_outward == even { own.behind(distance, n) } else { own.ahead(distance, n) };
        let peer = if is_outward { outer_neighbor } else { partner };
        builder.stage(stage);
        builder.send(rank, peer, pair(newest), 0);
        builder.recv(rank, peer, pair(incoming), 0);
        newest = incoming;
    }
}
