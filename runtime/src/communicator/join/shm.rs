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
    // A word that other ranks try to read; it must not move until all have tried.
    let probe = Box::new(u64::from(std::process::id()) << 32 ^ 0x7bcc_1000 ^ u64::from(rank));
    let hello = greeting(identity, config, Some(&object), &probe, reconnect_listener.as_ref());
    let Joined { mut connection, members, arenas, id } = Connection::join(rendezvous, &hello, Some(&object))?;
    let arenas = arenas
        .iter()
        .enumerate()
        .map(|(peer, fd)| if peer as u32 == rank { Ok(ours.clone()) } else { Arena::of_peer(layout, fd) })
        .collect::<Result<Vec<Arena>, _>>()
        .inspect_err(|error| connection.abort_start(&error.to_string()))?;
    let pull = agree_on_reading(&mut connection, &members, identity, config)?;
    let links = links(rank, size, &Reach::complete(), |peer, lane| {
        let pull = pull.then(|| members[peer as usize].pid);
        shm::link((rank, &ours), (peer, &arenas[peer as usize]), lane, pull)
    });
    let parts = Parts {
        rank: Rank(rank),
        names: names(&members),
        agreement: Agreement::new(Rank(rank), arenas.iter().map(Arena::board).collect()),
        slab: Slab::new(&ours, Some(object)),
        links,
        reach: Reach::complete(),
        schedule_reach: Reach::complete(),
        connection: Some(connection),
        endpoint: None,
        transport: "shm",
        rejoin: Rejoin::processes(reconnect_listener, &members, identity),
        rendezvous_rank: rendezvous_rank(&members),
        identifier: Identifier::of_processes(id, identity),
        is_first: !identity.has_parent(),
        thresholds: thresholds_of(&arenas[0]),
    };
    drop(probe);
    Ok(Communicator::assemble(parts, config))
}

fn target_of(member: &Member) -> shm::PullTarget {
    shm::PullTarget { pid: member.pid, probe_address: member.probe_address, probe_value: member.probe_value }
}

/// Tries to read the memory of the other ranks. Returns `true` when every rank can; otherwise rank 0 shows
/// the reason once.
fn agree_on_reading(
    connection: &mut Connection,
    members: &[Member],
    identity: &Identity,
    config: &Config,
) -> Result<bool> {
    let rank = identity.rank();
    let obstacle = if config.shm.pull {
        let others = members.iter().filter(|m| m.rank != rank);
        others.map(|m| (m, shm::probe_pull(&target_of(m)))).find_map(|(m, probed)| {
            probed.err().map(|e| format!("rank {rank} may not read the memory of rank {}: {e}", m.rank))
        })
    } else {
        Some("TBCCL_PULL=0".to_owned())
    };
    let first = connection.start(obstacle)?;
    info!(target: target::SHM, rank, "messages may be read by system call: {}",
        first.as_deref().map_or("yes".to_owned(), |obstacle| format!("no, {obstacle}")));
    if let Some(obstacle) = &first
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
    Ok(first.is_none())
}
