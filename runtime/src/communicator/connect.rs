//! How a communicator comes to be: from the launcher's environment, or among threads.

use super::{
    Communicator, Parts,
    dumps::catch_signal,
    members::{hall::Hall, kin::Kin},
    mixed,
    plans::Common,
    record_on_signal, tcp, verbs,
};
use crate::{
    Config, Transport,
    agreement::Agreement,
    error::{Error, PeerName, Result},
    executor::LinkMaker,
};
use bootstrap::{Announced, Connection, Hello, Identity, Joined, Member, Met, Muster, UniqueId};
use rustix::fd::OwnedFd;
use std::sync::Arc;
use topology::{Rank, Reach};
use transport::{
    Link, TransportError,
    driver::{Endpoint, local, rehearsal::Rehearsal, shm},
    memory::{Arena, ArenaLayout, Slab},
};

fn layout(ranks: u32, config: &Config) -> ArenaLayout {
    ArenaLayout {
        ranks,
        lanes: Communicator::LANES,
        ring: config.ring(),
        slab_bytes: config.slab_bytes.unwrap_or(Config::SLAB_BYTES).next_multiple_of(Slab::BLOCK_BYTES)
            as usize,
    }
}

impl Communicator {
    /// Joins the job that the launcher started this process for; waits until all ranks have joined.
    ///
    /// # Errors
    /// [`Error::Bootstrap`] when this process was not started by a launcher, or the ranks do not come together
    /// within the time limit or disagree on an option; others when the system refuses memory or descriptors.
    pub fn from_env() -> Result<Communicator> {
        Communicator::from_env_with(&Config::from_env()?)
    }

    /// As [`Communicator::from_env`], with options that the program decides on.
    ///
    /// # Errors
    /// As for [`Communicator::from_env`].
    pub fn from_env_with(config: &Config) -> Result<Communicator> {
        let Met { identity, server } = Announced::from_env()?.meet(config.timeout)?;
        let mut communicator = join(&identity, config)?;
        communicator.server = server;
        if let Some(folder) = &config.dump {
            record_on_signal(Some(folder))?;
        }
        Ok(communicator)
    }

    /// Joins the job of a unique id as one of `size` ranks; waits until all have joined. All ranks give the same id,
    /// which one of them, or another process that lives as long, has made with [`UniqueId::create`].
    ///
    /// # Errors
    /// As for [`Communicator::from_env`]; [`Error::InvalidArgument`] for a rank that there is not.
    pub fn from_unique_id(id: &UniqueId, rank: u32, size: u32, config: &Config) -> Result<Communicator> {
        if rank >= size || size > collectives::MAX_RANKS {
            return Err(Error::InvalidArgument(format!(
                "rank {rank} of {size}: ranks are numbered from 0, and a communicator has from 1 to {}",
                collectives::MAX_RANKS
            )));
        }
        let (place, server) = id.meet(config.timeout)?;
        let identity = Identity { rank, size, place, keeps: server.is_some(), descent: None };
        let mut communicator = join(&identity, config)?;
        communicator.server = server;
        Ok(communicator)
    }

    /// Tries whether this machine's limits let a rank of a job of `ranks` ranks have the memory that it needs, so that a
    /// launcher can say so once instead of every rank.
    ///
    /// # Errors
    /// What a rank would say.
    pub fn preflight(ranks: u32, config: &Config) -> Result<()> {
        let layout = layout(ranks, config);
        let (_ours, object) = Arena::shared(layout)?;
        let peers: Result<Vec<Arena>, _> = (1..ranks).map(|_| Arena::of_peer(layout, &object)).collect();
        Ok(peers.map(drop)?)
    }

    /// Communicators for `ranks` threads of this process, in rank order.
    ///
    /// # Errors
    /// When there are no ranks, or the system refuses memory.
    pub fn local(ranks: u32, config: &Config) -> Result<Vec<Communicator>> {
        if !(1..=collectives::MAX_RANKS).contains(&ranks) {
            return Err(Error::InvalidArgument(format!(
                "{ranks} ranks: a communicator has from 1 to {}",
                collectives::MAX_RANKS
            )));
        }
        let threads = Threads::new(ranks, config)?;
        Ok((0..ranks).map(|rank| threads.communicator(rank, config)).collect())
    }
}

/// What ranks that are threads of one process have in common.
#[derive(Debug)]
pub(super) struct Threads {
    arenas: Arc<[Arena]>,
    names: Vec<PeerName>,
    plans: Arc<Common>,
    hall: Arc<Hall>,
}

impl Threads {
    /// For so many.
    pub(super) fn new(ranks: u32, config: &Config) -> Result<Threads> {
        listen_if_wanted(config)?;
        let host = host_name();
        let name = |rank| PeerName { rank: Rank(rank), pid: std::process::id(), host: host.clone() };
        Ok(Threads {
            arenas: local::arenas(layout(ranks, config))?.into(),
            names: (0..ranks).map(name).collect(),
            plans: Arc::default(),
            hall: Arc::default(),
        })
    }

    /// The communicator of one of them. To be made once.
    pub(super) fn communicator(&self, rank: u32, config: &Config) -> Communicator {
        let Threads { arenas, names, plans, hall } = self;
        let parts = Parts {
            rank: Rank(rank),
            names: names.clone(),
            agreement: Agreement::new(Rank(rank), arenas.iter().map(Arena::board).collect()),
            slab: Slab::new(&arenas[rank as usize], None),
            links: (0..names.len() * usize::from(Communicator::LANES)).map(|_| None).collect(),
            reach: Reach::complete(),
            connection: None,
            endpoint: None,
            transport: "local",
            kin: Kin::Threads(Arc::clone(hall)),
            keeper: None,
            is_first: true,
        };
        let mut communicator = Communicator::assemble(parts, config);
        communicator.plans.share(plans);
        communicator.executor.make_links_by(local_links(rank, arenas));
        communicator
    }
}

/// Makes the links of a rank that is a thread when they are needed: of many ranks, each talks to few.
fn local_links(rank: u32, arenas: &Arc<[Arena]>) -> LinkMaker {
    let arenas = Arc::clone(arenas);
    let lanes = usize::from(Communicator::LANES);
    Box::new(move |index| local::link(&arenas, rank, (index / lanes) as u32, (index % lanes) as u8))
}

/// Links to every peer that we reach on every lane, by peer and lane.
fn links(
    rank: u32,
    ranks: u32,
    reach: &Reach,
    mut make: impl FnMut(u32, u8) -> Box<dyn Link>,
) -> Vec<Option<Box<dyn Link>>> {
    (0..ranks)
        .flat_map(|peer| (0..Communicator::LANES).map(move |lane| (peer, lane)))
        .map(|(peer, lane)| {
            (peer != rank && reach.connects(Rank(rank), Rank(peer))).then(|| make(peer, lane))
        })
        .collect()
}

/// A communicator whose options say where its flight recorder goes is written on SIGUSR2, however it was made.
fn listen_if_wanted(config: &Config) -> Result<()> {
    if config.dump.is_some() { catch_signal() } else { Ok(()) }
}

/// Joins the job that an identity is for.
pub(crate) fn join(identity: &Identity, config: &Config) -> Result<Communicator> {
    // The same on all ranks: where some may be on other hosts all have a secret, and rank 0 may be where they meet.
    let may_span_hosts = identity.place.secret.is_some();
    let config = match config.transport {
        Transport::Auto if may_span_hosts => &Config { transport: Transport::MixedAuto, ..config.clone() },
        _ => config,
    };
    listen_if_wanted(config)?;
    let muster = open_muster(identity, config);
    match config.transport {
        Transport::Auto | Transport::Shm => join_over_shm(identity, config, muster),
        Transport::Mixed | Transport::MixedVerbs | Transport::MixedAuto => {
            let layout = layout(identity.size, config);
            join_if_opened(mixed::open(identity, config, layout), identity, config, muster)
        }
        Transport::Tcp => join_if_opened(tcp::open(identity, config), identity, config, muster),
        Transport::Verbs => join_if_opened(verbs::open(identity, config), identity, config, muster),
        Transport::Rehearsal => {
            let endpoint = Rehearsal::open(layout(identity.size, config), identity.rank)?;
            join_over(Box::new(endpoint), identity, config, muster)
        }
    }
}

/// Sockets at which this rank can be met later on. A job can do without: what can't be made then is another one of it.
fn open_muster(identity: &Identity, config: &Config) -> Option<Muster> {
    let secret = identity.place.secret.clone();
    let at = if secret.is_some() { tcp::own_addresses(identity, config) } else { Vec::new() };
    Muster::open(&at, secret).ok()
}

/// Joins over an endpoint, or tells the others why there is none.
fn join_if_opened(
    opened: Result<Box<dyn Endpoint>>,
    identity: &Identity,
    config: &Config,
    muster: Option<Muster>,
) -> Result<Communicator> {
    match opened {
        Ok(endpoint) => join_over(endpoint, identity, config, muster),
        Err(error) => {
            tell_why_not(&error, identity, config);
            Err(error)
        }
    }
}

/// Joins only to say why this rank can't take part: the others wait for it, and shall not have to guess.
fn tell_why_not(error: &Error, identity: &Identity, config: &Config) {
    let hello = greeting(identity, config, None, &0, None);
    let Ok(Joined { mut connection, .. }) = Connection::join(&identity.place, &hello, None) else { return };
    if connection.agree_on_pulling(Some("there is no memory in common".into())).is_ok() {
        let said = error.to_string();
        // The others are told whose word it is.
        let own =
            [format!("rank {}: ", identity.rank), format!("rank {} on {}: ", identity.rank, host_name())];
        let rest = own.iter().find_map(|own| said.strip_prefix(own.as_str()));
        connection.give_up(rest.unwrap_or(&said));
    }
}

/// How a rank greets the others; `probe` is a word that they may try to read, and `muster` where it is met later on.
fn greeting(
    identity: &Identity,
    config: &Config,
    arena: Option<&OwnedFd>,
    probe: &u64,
    muster: Option<&Muster>,
) -> Hello {
    Hello {
        magic: bootstrap::MAGIC.into(),
        protocol: bootstrap::PROTOCOL,
        size: identity.size,
        job: identity.descent.as_ref().map(|descent| descent.job.clone()).unwrap_or_default(),
        member: Member {
            rank: identity.rank,
            pid: std::process::id(),
            host: host_name(),
            probe_address: std::ptr::from_ref::<u64>(probe) as u64,
            probe_value: *probe,
            muster: muster.map(|muster| muster.addresses().to_owned()).unwrap_or_default(),
            keeps: identity.keeps,
        },
        options: config.shared(),
        arena: arena.is_some(),
        patience_ms: config.timeout.as_millis().try_into().unwrap_or(u64::MAX),
        silence_ms: config.tcp.peer_timeout.as_millis() as u64,
    }
}

fn names(members: &[Member]) -> Vec<PeerName> {
    members.iter().map(|m| PeerName { rank: Rank(m.rank), pid: m.pid, host: m.host.clone() }).collect()
}

/// In whose process the rendezvous is, if it is one of these.
fn keeper(members: &[Member]) -> Option<Rank> {
    members.iter().find(|member| member.keeps).map(|member| Rank(member.rank))
}

/// Joins over shared memory: everyone maps everyone's arena.
fn join_over_shm(identity: &Identity, config: &Config, muster: Option<Muster>) -> Result<Communicator> {
    let Identity { rank, size, place, .. } = identity;
    let layout = layout(*size, config);
    let (ours, object) = Arena::shared(layout)?;
    // The word that others try to read; it must stay where it is until all have tried.
    let probe = Box::new(u64::from(std::process::id()) << 32 ^ 0x7bcc_1000 ^ u64::from(*rank));
    let hello = greeting(identity, config, Some(&object), &probe, muster.as_ref());
    let Joined { mut connection, members, arenas } = Connection::join(place, &hello, Some(&object))?;
    let arenas = arenas
        .iter()
        .enumerate()
        .map(|(peer, fd)| if peer as u32 == *rank { Ok(ours.clone()) } else { Arena::of_peer(layout, fd) })
        .collect::<Result<Vec<Arena>, _>>()?;
    let pull = agree_on_pulling(&mut connection, &members, identity, config)?;
    let links = links(*rank, *size, &Reach::complete(), |peer, lane| {
        let pull = pull.then(|| members[peer as usize].pid);
        shm::link((*rank, &ours), (peer, &arenas[peer as usize]), lane, pull)
    });
    let parts = Parts {
        rank: Rank(*rank),
        names: names(&members),
        agreement: Agreement::new(Rank(*rank), arenas.iter().map(Arena::board).collect()),
        slab: Slab::new(&ours, Some(object)),
        links,
        reach: Reach::complete(),
        connection: Some(connection),
        endpoint: None,
        transport: "shm",
        kin: Kin::processes(muster, &members, identity),
        keeper: keeper(&members),
        is_first: identity.descent.is_none(),
    };
    drop(probe);
    Ok(Communicator::assemble(parts, config))
}

/// The error of a rank whose transport does not come up. Some say themselves which rank they are about.
pub(super) fn not_started(rank: u32, error: TransportError) -> Error {
    match error {
        TransportError::Wiring { .. } | TransportError::Introduction { .. } => error.into(),
        other => Error::Start { rank: Rank(rank), host: host_name(), error: Arc::new(other) },
    }
}

/// Joins over a driver whose ranks have no memory in common: they exchange how they are reached.
fn join_over(
    mut endpoint: Box<dyn Endpoint>,
    identity: &Identity,
    config: &Config,
    muster: Option<Muster>,
) -> Result<Communicator> {
    let Identity { rank, size, place, .. } = identity;
    let hello = greeting(identity, config, None, &0, muster.as_ref());
    let Joined { mut connection, members, .. } = Connection::join(place, &hello, None)?;
    connection.agree_on_pulling(Some("there is no memory in common".into()))?;
    let mut heard = Vec::new();
    loop {
        match endpoint.converse(&heard) {
            Ok(Some(word)) => heard = connection.exchange(&word)?,
            Ok(None) => break,
            Err(error) => {
                // The others are told whose word it is.
                let said = match &error {
                    TransportError::Wiring { rank: of, what } if of == rank => what.clone(),
                    error => error.to_string(),
                };
                connection.give_up(&said);
                return Err(not_started(*rank, error));
            }
        }
    }
    let reach = Reach::new(*size, |a, b| endpoint.connects(a.0, b.0));
    let parts = Parts {
        rank: Rank(*rank),
        names: names(&members),
        agreement: Agreement::mirrored(Rank(*rank), *size)?,
        slab: endpoint.slab().clone(),
        links: links(*rank, *size, &reach, |peer, lane| endpoint.link(peer, lane)),
        reach,
        connection: Some(connection),
        transport: match config.transport {
            Transport::MixedAuto => endpoint.name(),
            given => given.name(),
        },
        endpoint: Some(endpoint),
        kin: Kin::processes(muster, &members, identity),
        keeper: keeper(&members),
        is_first: identity.descent.is_none(),
    };
    Ok(Communicator::assemble(parts, config))
}

fn target_of(member: &Member) -> shm::PullTarget {
    shm::PullTarget { pid: member.pid, probe_address: member.probe_address, probe_value: member.probe_value }
}

/// Tries to read the others' memory; true when every rank can. Rank 0 says once why not.
fn agree_on_pulling(
    connection: &mut Connection,
    members: &[Member],
    identity: &Identity,
    config: &Config,
) -> Result<bool> {
    let rank = identity.rank;
    let obstacle = if config.shm.pull {
        let others = members.iter().filter(|m| m.rank != rank);
        others.map(|m| (m, shm::probe_pull(&target_of(m)))).find_map(|(m, probed)| {
            probed.err().map(|e| format!("rank {rank} may not read the memory of rank {}: {e}", m.rank))
        })
    } else {
        Some("TBCCL_PULL=0".to_owned())
    };
    let first = connection.agree_on_pulling(obstacle)?;
    if let Some(obstacle) = &first
        && config.shm.pull
        && config.shm.pull_min_bytes < usize::MAX
        && rank == 0
        && identity.descent.is_none()
    {
        eprintln!(
            "tbccl: warning: messages from unregistered memory are staged: {obstacle} (Yama's ptrace_scope or the \
             container forbids it)"
        );
    }
    Ok(first.is_none())
}

pub(crate) fn host_name() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}
