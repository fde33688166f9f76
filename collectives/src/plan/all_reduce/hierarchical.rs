//! All-reduce first within hosts, then between them, then within them again.
//!
//! Where the ranks are, the [`Spec`] says ([`Hosts`]); hosts may have different numbers of ranks. With H
//! hosts of at most m ranks there are m groups of H chunks. Within a host group `g` belongs to its rank number `g mod s`,
//! s being the ranks it has; everyone sends it that group, and it adds up. Between hosts, each group goes round a ring of
//! its owners, H - 1 stages to add up and as many to pass results on. The owners send every chunk of the result to the
//! others on their host as soon as they have it.
//!
//! Stages: 2 + 2(H-1). Bytes sent per rank on hosts of m: 2(m-1)/m of the block within the host, and 2(H-1)/(mH) of it
//! between hosts, which is the least possible. Cost with α', β' for links between hosts: 2α + 2(m-1)/m·Bβ + 2(H-1)α' +
//! 2(H-1)/(mH)·Bβ' + (n-1)/n·Bγ.
//!
//! Wins where several ranks share a host and links between hosts are slower than memory: what crosses them is 1/m of what
//! a flat algorithm may send there, by all ranks of the host at once.
//!
//! M. Cho, U. Finkler, M. Serrano, D. Kung, H. Hunter: "BlueConnect: decomposing all-reduce for deep learning on
//! heterogeneous network hierarchy", IBM Journal of Research and Development 63(6), 2019.

use crate::builder::Builder;
use crate::plan::circle::Circle;
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::{Hosts, PlanError, Spec};
use topology::Rank;

/// Plans an all-reduce within and between hosts.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, hosts) = (spec.ranks(), spec.hosts());
    let (count, most) = (hosts.count(n), hosts.most(n));
    let mut builder = Builder::new(spec, "hierarchical", count * most, 0);
    for rank in spec.planned_ranks() {
        if n == 1 {
            builder.copy(rank, ChunkRange::input(0), ChunkRange::output(0));
            continue;
        }
        let (host, index) = hosts.place(rank, n);
        let at = At { rank, host, index, beside: hosts.ranks_on(host, n), hosts, n, count, most };
        at.add_within(&mut builder);
        at.all_reduce_between(&mut builder);
        at.spread_within(&mut builder);
    }
    builder.finish()
}

/// A rank and where it is.
#[derive(Clone, Copy, Debug)]
struct At {
    rank: Rank,
    host: u32,
    /// Its number on its host.
    index: u32,
    /// The ranks of its host, itself included.
    beside: u32,
    hosts: Hosts,
    n: u32,
    /// How many hosts there are.
    count: u32,
    /// The ranks of the fullest host, which is as many as there are groups.
    most: u32,
}

impl At {
    /// A group as a range of chunks.
    fn group(self, buffer: Buffer, group: u32) -> ChunkRange {
        ChunkRange { buffer, first: group * self.count, len: self.count }
    }

    /// The groups that belong to a number on the own host.
    fn groups_of(self, index: u32) -> impl Iterator<Item = u32> {
        (index..self.most).step_by(self.beside as usize)
    }

    /// The others on the host with their numbers, the next one first.
    fn mates(self) -> impl DoubleEndedIterator<Item = (u32, Rank)> {
        (1..self.beside).map(move |distance| {
            let index = (self.index + distance) % self.beside;
            (index, self.hosts.rank(self.host, index, self.n))
        })
    }

    fn add_within(self, builder: &mut Builder) {
        for (index, mate) in self.mates() {
            for group in self.groups_of(index) {
                builder.stage(group);
                builder.send(self.rank, mate, self.group(Buffer::Input, group), 0);
            }
        }
        for group in self.groups_of(self.index) {
            builder.stage(group);
            let mut partial = Buffer::Input;
            for (_, mate) in self.mates().rev() {
                let (local, dst) = (self.group(partial, group), self.group(Buffer::Output, group));
                builder.recv_reduce(self.rank, mate, local, dst, 0);
                partial = Buffer::Output;
            }
            if self.count == 1 {
                builder.mark_last(self.rank);
            }
        }
    }

    fn all_reduce_between(self, builder: &mut Builder) {
        let At { rank, host, hosts, n, count, most, .. } = self;
        let owner = |group: u32| move |host: u32| hosts.rank(host, group % hosts.ranks_on(host, n), n);
        let ring = |group: u32| Circle::through(count, host, owner(group));
        let part = |group: u32| move |buffer, part: u32| ChunkRange::one(buffer, group * count + part);
        let from = if self.beside == 1 { Buffer::Input } else { Buffer::Output };
        for stage in 0..count - 1 {
            for group in self.groups_of(self.index) {
                builder.stage((1 + stage) * most + group);
                ring(group).add(builder, rank, stage, from, &part(group));
                if stage == count - 2 {
                    builder.mark_last(rank);
                }
            }
        }
        for stage in 0..count - 1 {
            for group in self.groups_of(self.index) {
                builder.stage((count + stage) * most + group);
                ring(group).pass(builder, rank, stage, &part(group));
            }
        }
    }

    fn spread_within(self, builder: &mut Builder) {
        let before = 2 * self.count * self.most;
        for group in 0..self.most {
            for chunk in group * self.count..(group + 1) * self.count {
                let (owner, output) = (group % self.beside, ChunkRange::output(chunk));
                builder.stage(before + chunk);
                if owner == self.index {
                    self.mates().for_each(|(_, mate)| builder.send(self.rank, mate, output, 0));
                } else {
                    builder.recv(self.rank, self.hosts.rank(self.host, owner, self.n), output, 0);
                }
            }
        }
    }
}
