//! All-reduce within hosts, then between them, then within them again.
//!
//! The [`Spec`] assigns ranks to hosts ([`Hosts`]); hosts may have different numbers of ranks. With H hosts
//! of at most m ranks there are m groups of H chunks. On a host with s ranks, group `g` belongs to the rank
//! with index `g mod s`: the other ranks send it that group, and it adds up the contributions. Between hosts,
//! each group travels around a ring of its owners, H - 1 stages to reduce and H - 1 to distribute the
//! results. The owners send every chunk of the result to the other ranks of their host as soon as they have
//! it.
//!
//! Stages: 2 + 2(H-1). Bytes sent per rank on hosts of m: 2(m-1)/m of the block within the host, and
//! 2(H-1)/(mH) of it between hosts, which is the least possible. Cost with α', β' for links between hosts: 2α
//! + 2(m-1)/m·Bβ + 2(H-1)α' + 2(H-1)/(mH)·Bβ' + (n-1)/n·Bγ.
//!
//! Wins where several ranks share a host and links between hosts are slower than memory: the traffic between
//! hosts is 1/m of what a flat algorithm may send there, and all ranks of the host send at once.
//!
//! M. Cho, U. Finkler, M. Serrano, D. Kung, H. Hunter: "BlueConnect: decomposing all-reduce for deep learning
//! on heterogeneous network hierarchy", IBM Journal of Research and Development 63(6), 2019.

use crate::builder::Builder;
use crate::plan::sub_ring::SubRing;
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::{Hosts, PlanError, Spec};
use topology::Rank;

/// Plans an all-reduce within and between hosts.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, hosts) = (spec.ranks(), spec.hosts());
    let (host_count, max_local_ranks) = (hosts.count(n), hosts.max_per_host(n));
    let mut builder = Builder::new(spec, "hierarchical", host_count * max_local_ranks, 0);
    for rank in spec.planned_ranks() {
        if n == 1 {
            builder.copy(rank, ChunkRange::input(0), ChunkRange::output(0));
            continue;
        }
        let (host, index) = hosts.place(rank, n);
        let position = Position {
            rank,
            host,
            index,
            local_ranks: hosts.ranks_on(host, n),
            hosts,
            n,
            host_count,
            max_local_ranks,
        };
        position.reduce_scatter_within_hosts(&mut builder);
        position.all_reduce_between_hosts(&mut builder);
        position.all_gather_within_hosts(&mut builder);
    }
    builder.finish()
}

/// A rank and its position among the hosts.
#[derive(Clone, Copy, Debug)]
struct Position {
    rank: Rank,
    host: u32,
    /// The index of the rank on its host.
    index: u32,
    /// The ranks of the host, including this one.
    local_ranks: u32,
    hosts: Hosts,
    n: u32,
    /// The number of hosts.
    host_count: u32,
    /// The ranks of the fullest host, which is also the number of groups.
    max_local_ranks: u32,
}

impl Position {
    /// Returns a group as a range of chunks.
    fn group(self, buffer: Buffer, group: u32) -> ChunkRange {
        ChunkRange { buffer, first: group * self.host_count, len: self.host_count }
    }

    /// Returns the groups that belong to the rank with this index on the host.
    fn groups_of(self, index: u32) -> impl Iterator<Item = u32> {
        (index..self.max_local_ranks).step_by(self.local_ranks as usize)
    }

    /// Returns the other ranks of the host with their indices, the next one first.
    fn local_peers(self) -> impl DoubleEndedIterator<Item = (u32, Rank)> {
        (1..self.local_ranks).map(move |distance| {
            let index = (self.index + distance) % self.local_ranks;
            (index, self.hosts.rank(self.host, index, self.n))
        })
    }

    fn reduce_scatter_within_hosts(self, builder: &mut Builder) {
        for (index, peer) in self.local_peers() {
            for group in self.groups_of(index) {
                builder.stage(group);
                builder.send(self.rank, peer, self.group(Buffer::Input, group), 0);
            }
        }
        for group in self.groups_of(self.index) {
            builder.stage(group);
            let mut partial = Buffer::Input;
            for (_, peer) in self.local_peers().rev() {
                let (local, dst) = (self.group(partial, group), self.group(Buffer::Output, group));
                builder.recv_reduce(self.rank, peer, local, dst, 0);
                partial = Buffer::Output;
            }
            if self.host_count == 1 {
                builder.mark_last(self.rank);
            }
        }
    }

    fn all_reduce_between_hosts(self, builder: &mut Builder) {
        let Position { rank, host, hosts, n, host_count, max_local_ranks, .. } = self;
        let owner = |group: u32| move |host: u32| hosts.rank(host, group % hosts.ranks_on(host, n), n);
        let ring = |group: u32| SubRing::through(host_count, host, owner(group));
        let part = |group: u32| move |buffer, part: u32| ChunkRange::one(buffer, group * host_count + part);
        let from = if self.local_ranks == 1 { Buffer::Input } else { Buffer::Output };
        for stage in 0..host_count - 1 {
            for group in self.groups_of(self.index) {
                builder.stage((1 + stage) * max_local_ranks + group);
                ring(group).reduce_scatter_stage(builder, rank, stage, from, &part(group));
                if stage == host_count - 2 {
                    builder.mark_last(rank);
                }
            }
        }
        for stage in 0..host_count - 1 {
            for group in self.groups_of(self.index) {
                builder.stage((host_count + stage) * max_local_ranks + group);
                ring(group).all_gather_stage(builder, rank, stage, &part(group));
            }
        }
    }

    fn all_gather_within_hosts(self, builder: &mut Builder) {
        let first_stage = 2 * self.host_count * self.max_local_ranks;
        for group in 0..self.max_local_ranks {
            for chunk in group * self.host_count..(group + 1) * self.host_count {
                let (owner, output) = (group % self.local_ranks, ChunkRange::output(chunk));
                builder.stage(first_stage + chunk);
                if owner == self.index {
                    self.local_peers().for_each(|(_, peer)| builder.send(self.rank, peer, output, 0));
                } else {
                    builder.recv(self.rank, self.hosts.rank(self.host, owner, self.n), output, 0);
                }
            }
        }
    }
}
