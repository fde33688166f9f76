//! Rejoining: how ranks find each other again to make another communicator.
//!
//! Each rank opens listening sockets before the ranks first meet, and all ranks learn the addresses of all
//! sockets. The first of the new ranks that has sockets serves them, and the others connect there. From then
//! on they join as a new job does. Neither the first rendezvous nor any rank outside the new communicator is
//! involved.

use super::{super::Communicator, labels::labels, threads::ThreadRendezvous};
use crate::{
    Config,
    error::{Error, PeerName, Result},
};
use bootstrap::{DeathWatch, Identity, Member, ReconnectListener, RendezvousHost, Secret, WorldRanks};
use std::sync::Arc;
use topology::Rank;

/// The means by which ranks find each other again.
#[derive(Debug)]
pub(in super::super) enum Rejoin {
    /// Threads of one process.
    Threads(Arc<ThreadRendezvous>),
    /// Processes.
    Processes(Box<Processes>),
}

/// The other ranks, as seen by a rank that is a process.
#[derive(Debug)]
pub(in super::super) struct Processes {
    /// The listener of this rank, if the system granted the sockets.
    reconnect_listener: Option<ReconnectListener>,
    /// The listeners' addresses by rank, as text; empty for a rank without a listener.
    addresses: Vec<String>,
    secret: Option<Secret>,
    /// The ranks' numbers in the first job.
    world_ranks: Arc<WorldRanks>,
}

impl From<Arc<ThreadRendezvous>> for Rejoin {
    fn from(rendezvous: Arc<ThreadRendezvous>) -> Rejoin {
        Rejoin::Threads(rendezvous)
    }
}

impl Rejoin {
    /// Returns the means for processes that have joined.
    pub(in super::super) fn processes(
        reconnect_listener: Option<ReconnectListener>,
        members: &[Member],
        identity: &Identity,
    ) -> Rejoin {
        Rejoin::Processes(Box::new(Processes {
            reconnect_listener,
            addresses: members.iter().map(|member| member.reconnect_addresses.clone()).collect(),
            secret: identity.rendezvous().secret().cloned(),
            world_ranks: identity.world_ranks(),
        }))
    }
}

impl Processes {
    /// Brings these members together, this rank among them, and returns its communicator. `deaths` tells of
    /// members that die before they come.
    pub(in super::super) fn meet(
        &self,
        job: &str,
        (me, names): (Rank, &[PeerName]),
        members: &[Rank],
        deaths: Option<DeathWatch>,
        config: &Config,
    ) -> Result<Communicator> {
        let Some(rendezvous_rank) =
            members.iter().position(|member| !self.addresses[member.index()].is_empty())
        else {
            return Err(Error::Bootstrap(format!(
                "{job}: no rank of it had descriptors for sockets at which it could be met; raise the limit \
                 on \
                 open files (ulimit -n)"
            )));
        };
        let labels = named(members, names);
        let server = match &self.reconnect_listener {
            Some(reconnect_listener) if members[rendezvous_rank] == me => {
                Some(reconnect_listener.serve(job, &labels, rendezvous_rank as u32)?)
            }
            _ => None,
        };
        let there = &self.addresses[members[rendezvous_rank].index()];
        let host = RendezvousHost::new(rendezvous_rank as u32, labels);
        let host = match deaths {
            Some(deaths) => deaths.added_to(host),
            None => host,
        };
        let rendezvous = ReconnectListener::connect_spec(there, self.secret.as_ref(), host, config.timeout);
        let rank = members.iter().position(|member| *member == me).unwrap_or_default() as u32;
        let mut rendezvous = rendezvous.map_err(Error::Bootstrap)?;
        if let Some(server) = &server {
            rendezvous = rendezvous.of_own(server);
        }
        let identity = Identity::new(rank, members.len() as u32, rendezvous, server.is_some())
            .with_parent(job.to_owned(), self.world_ranks.of_members(members));
        // A model of machines and cables describes the ranks of the whole job.
        let mut config = config.clone();
        config.selection.model = None;
        let mut communicator = super::join(&identity, &config)?;
        communicator.server = server;
        Ok(communicator)
    }
}

/// Returns descriptions of the members for people: their numbers, processes and hosts.
fn named(members: &[Rank], names: &[PeerName]) -> Vec<String> {
    let where_it_runs = |member: &Rank| {
        let name = names.get(member.index());
        name.map_or_else(String::new, |name| format!(", process {} on {}", name.pid, name.host))
    };
    labels(members)
        .into_iter()
        .zip(members)
        .map(|(label, member)| match label.strip_suffix(')') {
            Some(label) => format!("{label}{})", where_it_runs(member)),
            None => format!("{label} ({})", where_it_runs(member).trim_start_matches(", ")),
        })
        .collect()
}
