//! All-gather between hosts, then within them.
//!
//! Where the ranks are, the [`Spec`] says ([`Hosts`](crate::Hosts)); hosts may have different numbers of ranks.
//!
//! Chunks: 1. A rank sends its block to one rank of every other host, the one whose number there is its own on its host
//! (counted round where the host has fewer), and to all on its own host. Whoever gets a block from another host passes
//! it on to all on its own.
//!
//! Stages: 2. Bytes sent per rank on H hosts of m ranks: H-1 blocks between hosts, which is the least possible, and
//! (m-1)·H blocks within the host. Cost with α', β' for links between hosts: α' + (H-1)·Bβ' + α + (m-1)·H·Bβ.
//!
//! Wins where several ranks share a host and links between hosts are slower than memory: every block crosses to a host
//! once, and all ranks of a host share in that.
//!
//! J. L. Träff: "Efficient allgather for regular SMP-clusters", EuroPVM/MPI 2006.

use crate::builder::Builder;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans an all-gather between and within hosts.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, hosts) = (spec.ranks(), spec.hosts());
    let mut builder = Builder::new(spec, "hierarchical", 1, 0);
    for rank in spec.planned_ranks() {
        let (host, index) = hosts.place(rank, n);
        let beside = hosts.ranks_on(host, n);
        let mates =
            |index: u32| (1..beside).map(move |distance| hosts.rank(host, (index + distance) % beside, n));
        builder.stage(0);
        builder.copy(rank, ChunkRange::input(0), ChunkRange::output(rank.0));
        for distance in 1..hosts.count(n) {
            let there = (host + distance) % hosts.count(n);
            let entry = hosts.rank(there, index % hosts.ranks_on(there, n), n);
            builder.send(rank, entry, ChunkRange::input(0), 0);
        }
        for mate in mates(index) {
            builder.send(rank, mate, ChunkRange::input(0), 0);
        }
        for mate in mates(index) {
            builder.recv(rank, mate, ChunkRange::output(mate.0), 0);
        }
        for owner in (0..n).map(Rank) {
            let (home, number) = hosts.place(owner, n);
            if home == host {
                continue;
            }
            let (entry, block) = (number % beside, ChunkRange::output(owner.0));
            if entry != index {
                builder.stage(1 + owner.0);
                builder.recv(rank, hosts.rank(host, entry, n), block, 0);
                continue;
            }
            builder.stage(0);
            builder.recv(rank, owner, block, 0);
            builder.stage(1 + owner.0);
            mates(index).for_each(|mate| builder.send(rank, mate, block, 0));
        }
    }
    builder.finish()
}
