//! Rejoining: how ranks find each other again to make another communicator.
//!
//! Each rank opens listening sockets before the ranks first meet, and all learn of all. The first of the new
//! ranks that has sockets serves them, and the others connect there; from then on it is as if they had been
//! started anew. The first rendezvous is not involved, nor is any rank outside the new communicator.

use super::{super::Communicator, threads::ThreadRendezvous, titles::titles};
use crate::{
    Config,
    error::{Error, PeerName, Result},
};
use bootstrap::{Descent, Identity, Keeper, Member, Muster, Origins, Secret};
use std::sync::Arc;
use topology::Rank;

/// The way by which ranks find each other again.
#[derive(Debug)]
pub(in super::super) enum Rejoin {
    /// Threads of one process.
    Threads(Arc<ThreadRendezvous>),
    /// Processes.
    Processes(Box<Processes>),
}

/// Ranks that are processes, as one of them knows them.
#[derive(Debug)]
pub(in super::super) struct Processes {
    /// The listener of this rank, if the system granted the sockets.
    muster: Option<Muster>,
    /// The listeners' addresses by rank, as text; empty if there is none.
    places: Vec<String>,
    secret: Option<Secret>,
    /// The ranks' numbers in the first job.
    origins: Arc<Origins>,
}

impl From<Arc<ThreadRendezvous>> for Rejoin {
    fn from(rendezvous: Arc<ThreadRendezvous>) -> Rejoin {
        Rejoin::Threads(rendezvous)
    }
}

impl Rejoin {
    /// Returns the way for processes that have met.
    pub(in super::super) fn processes(
        muster: Option<Muster>,
        members: &[Member],
        identity: &Identity,
    ) -> Rejoin {
        Rejoin::Processes(Box::new(Processes {
            muster,
            places: members.iter().map(|member| member.muster.clone()).collect(),
            secret: identity.place.secret.clone(),
            origins: identity.origins(),
        }))
    }
}

impl Processes {
    /// Brings these members together, one of which we are; its communicator.
    pub(in super::super) fn meet(
        &self,
        job: &str,
        (me, names): (Rank, &[PeerName]),
        members: &[Rank],
        config: &Config,
    ) -> Result<Communicator> {
        let Some(keeper) = members.iter().position(|member| !self.places[member.index()].is_empty()) else {
            return Err(Error::Bootstrap(format!(
                "{job}: no rank of it had descriptors for sockets at which it could be met; raise the limit on open files \
                 (ulimit -n)"
            )));
        };
        let titles = named(members, names);
        let server = match &self.muster {
            Some(muster) if members[keeper] == me => Some(muster.serve(job, &titles)?),
            _ => None,
        };
        let there = &self.places[members[keeper].index()];
        let keeper = Keeper { rank: keeper as u32, titles: titles.into() };
        let place = Muster::place(there, self.secret.as_ref(), keeper, config.timeout);
        let rank = members.iter().position(|member| *member == me).unwrap_or_default() as u32;
        let identity = Identity {
            rank,
            size: members.len() as u32,
            place: place.map_err(Error::Bootstrap)?,
            keeps: server.is_some(),
            descent: Some(Descent { job: job.to_owned(), origins: Arc::new(self.origins.of(members)) }),
        };
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
    titles(members)
        .into_iter()
        .zip(members)
        .map(|(title, member)| match title.strip_suffix(')') {
            Some(title) => format!("{title}{})", where_it_runs(member)),
            None => format!("{title} ({})", where_it_runs(member).trim_start_matches(", ")),
        })
        .collect()
}
