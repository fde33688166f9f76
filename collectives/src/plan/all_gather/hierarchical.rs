//! All-gather between hosts, then within them.
//!
//! The [`Spec`] assigns ranks to hosts ([`Hosts`](crate::Hosts)); hosts may have different numbers of ranks.
//!
//! Chunks: 1. A rank sends its block to all ranks on its own host, and to one rank of every other host: the
//! one with the same index there (modulo the ranks of that host). The receiver forwards the block to all
//! ranks on its host.
//!
//! Stages: 2. Bytes sent per rank on H hosts of m ranks: H-1 blocks between hosts, which is the least
//! possible, and (m-1)·H blocks within the host. Cost with α', β' for links between hosts: α' + (H-1)·Bβ' + α
//! + (m-1)·H·Bβ.
//!
//! Wins where several ranks share a host and links between hosts are slower than memory: every block crosses
//! to a host once, and all ranks of a host share that work.
//!
//! J. L. Träff: "Efficient allgather for regular SMP-clusters", EuroPVM/MPI 2006.

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans an all-gather between and within hosts.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, hosts) = (spec.ranks(), spec.hosts());
    let mut builder = Builder::new(spec, "hierarchical", 1, 0);
    for rank in spec.planned_ranks() {
        let (host, index) = hosts.place(rank, n);
        let local_ranks = hosts.ranks_on(host, n);
        let local_peers = |index: u32| {
            (1..local_ranks).map(move |distance| hosts.rank(host, (index + distance) % local_ranks, n))
        };
        builder.stage(0);
        builder.copy(rank, ChunkRange::input(0), ChunkRange::output(rank.0));
        for distance in 1..hosts.count(n) {
            let other_host = (host + distance) % hosts.count(n);
            let relay = hosts.rank(other_host, index % hosts.ranks_on(other_host, n), n);
            builder.send(rank, relay, ChunkRange::input(0), 0);
        }
        for peer in local_peers(index) {
            builder.send(rank, peer, ChunkRange::input(0), 0);
        }
        for peer in local_peers(index) {
            builder.recv(rank, peer, ChunkRange::output(peer.0), 0);
        }
        for owner in (0..n).map(Rank) {
            let (owner_host, owner_index) = hosts.place(owner, n);
            if owner_host == host {
                continue;
            }
            let (relay, block) = (owner_index % local_ranks, ChunkRange::output(owner.0));
            if relay != index {
                builder.stage(1 + owner.0);
                builder.recv(rank, hosts.rank(host, relay, n), block, 0);
                continue;
            }
            builder.stage(0);
            builder.recv(rank, owner, block, 0);
            builder.stage(1 + owner.0);
            local_peers(index).for_each(|peer| builder.send(rank, peer, block, 0));
        }
    }
    builder.finish()
}
