//! Joining over shared memory: every rank maps the arena of every other one.

use super::{
    super::{
        Communicator, Identifier, Parts,
        arenas::layout,
        calibrating::{leave_thresholds, thresholds_of},
    },
    greeting::{greeting, names, rendezvous_rank},
    links,
    rejoin::Rejoin,
};
use crate::{Config, agreement::Agreement, error::Result};
use bootstrap::{Connection, Identity, Joined, Member, ReconnectListener};
use events::{target, tracing::info, warning};
use topology::{Rank, Reach};
use transport::{
    driver::shm,
    memory::{Arena, Slab},
};

/// Joins over shared memory: every rank maps every other rank's arena.
pub(super) fn join(
    identity: &Identity,
    config: &Config,
    reconnect_listener: Option<ReconnectListener>,
) -> Result<Communicator> {
    let (rank, size, rendezvous) = (identity.rank(), identity.size(), identity.rendezvous());
    let layout = layout(size, config);
    let (ours, object) = Arena::shared(layout)?;
    leave_thresholds(identity, config, &ours);
    // It must not move until all ranks have tried to read it.
    let probe = probe_of(rank);
    let hello = greeting(identity, config, Some(&object), &probe, reconnect_listener.as_ref());
    let Joined { mut connection, members, arenas, id } = Connection::join(rendezvous, &hello, Some(&object))?;
    let arenas = arenas
        .iter()
        .enumerate()
        .map(|(peer, fd)| if peer as u32 == rank { Ok(ours.clone()) } else { Arena::of_peer(layout, fd) })
        .collect::<Result<Vec<Arena>, _>>()
        .inspect_err(|error| connection.abort_start(&error.to_string()))?;
    let obstacle = obstacle_to_reading(&members, identity, config);
    let obstacle = connection.start(obstacle)?;
    drop(probe);
    let slab = Slab::new(&ours, Some(object));
    let joined = Sharing { connection, members, id, arenas, slab, obstacle };
    Ok(joined.assemble(identity, config, reconnect_listener))
}

/// Returns the word that other ranks try to read in this rank's memory.
pub(super) fn probe_of(rank: u32) -> Box<u64> {
    Box::new(u64::from(std::process::id()) << 32 ^ 0x7bcc_1000 ^ u64::from(rank))
}

/// Ranks that have joined, and the memory that all of them have mapped.
pub(super) struct Sharing {
    pub(super) connection: Connection,
    pub(super) members: Vec<Member>,
    pub(super) id: u64,
    /// The arena of each rank.
    pub(super) arenas: Vec<Arena>,
    /// The allocator of this rank's arena.
    pub(super) slab: Slab,
    /// The first reason why a rank may not read the memory of another one.
    pub(super) obstacle: Option<String>,
}

impl Sharing {
    /// Makes the communicator of this rank.
    pub(super) fn assemble(
        self,
        identity: &Identity,
        config: &Config,
        reconnect_listener: Option<ReconnectListener>,
    ) -> Communicator {
        let (rank, size, arenas, members) = (identity.rank(), identity.size(), &self.arenas, &self.members);
        say_whether_memory_is_read(self.obstacle.as_deref(), identity, config);
        let links = links(rank, size, &Reach::complete(), |peer, lane| {
            let pull = self.obstacle.is_none().then(|| members[peer as usize].pid);
            shm::link((rank, &arenas[rank as usize]), (peer, &arenas[peer as usize]), lane, pull)
        });
        let parts = Parts {
            rank: Rank(rank),
            names: names(members),
            agreement: Agreement::new(Rank(rank), arenas.iter().map(Arena::board).collect()),
            slab: self.slab,
            links,
            reach: Reach::complete(),
            schedule_reach: Reach::complete(),
            connection: Some(self.connection),
            endpoint: None,
            transport: "shm",
            rejoin: Rejoin::processes(reconnect_listener, members, identity),
            rendezvous_rank: rendezvous_rank(members),
            identifier: Identifier::of_processes(self.id, identity),
            is_first: !identity.has_parent(),
            thresholds: thresholds_of(&arenas[0]),
        };
        Communicator::assemble(parts, config)
    }
}

/// Tries to read the memory of the other ranks. Returns why this rank may not.
pub(super) fn obstacle_to_reading(
    members: &[Member],
    identity: &Identity,
    config: &Config,
) -> Option<String> {
    if !config.shm.pull {
        return Some("TBCCL_PULL=0".to_owned());
    }
    let rank = identity.rank();
    let others = members.iter().filter(|m| m.rank != rank);
    others.map(|m| (m, shm::probe_pull(&target_of(m)))).find_map(|(m, probed)| {
        probed.err().map(|e| format!("rank {rank} may not read the memory of rank {}: {e}", m.rank))
    })
}

fn target_of(member: &Member) -> shm::PullTarget {
    shm::PullTarget { pid: member.pid, probe_address: member.probe_address, probe_value: member.probe_value }
}

/// Reports whether ranks read each other's memory. Rank 0 shows the obstacle to a user who wants them to.
fn say_whether_memory_is_read(obstacle: Option<&str>, identity: &Identity, config: &Config) {
    let rank = identity.rank();
    let says = obstacle.map_or("yes".to_owned(), |obstacle| format!("no, {obstacle}"));
    info!(target: target::SHM, rank, "messages may be read by system call: {says}");
    if let Some(obstacle) = obstacle
        && config.shm.pull
        && config.shm.pull_min_bytes.is_some()
        && rank == 0
        && !identity.has_parent()
    {
        warning!(
            target::SHM,
            None,
            "messages from unregistered memory are staged: {obstacle} (Yama's ptrace_scope \
             or the \
             container forbids it)"
        );
    }
}
