//! Joining: from the identity of a rank to its communicator.
//!
//! | module | purpose |
//! |---|---|
//! | `shm` | shared memory between processes |
//! | `endpoint` | drivers without shared memory; `tcp`, `verbs` and `mixed` open them from options |
//! | `one_host` | jobs that may span hosts, and have all their ranks on one |
//! | `threads` | ranks that are threads of one process |
//! | `rejoin` | how ranks find each other again, for communicators made from others |
//! | `greeting` | the hello of a rank |
//! | `labels` | names of ranks that have changed their number |
//! | `failure` | errors of a rank whose transport could not be opened |

mod endpoint;
mod failure;
mod greeting;
mod labels;
mod mixed;
mod one_host;
mod rejoin;
mod shm;
mod tcp;
mod threads;
mod verbs;

pub(super) use rejoin::Rejoin;

use super::{Communicator, announce, arenas::layout, dumps::catch_signal, live, record_on_signal, status};
use crate::{
    Config, Transport,
    error::{Error, Result},
};
use bootstrap::{Identity, LaunchInfo, ReconnectListener, Resolved, UniqueId};
use std::time::Instant;
use threads::Threads;
use topology::{Rank, Reach};
use transport::{Link, memory::Arena};

impl Communicator {
    /// Joins the job that the launcher started this process for, and waits until all ranks have joined.
    ///
    /// # Errors
    /// [`Error::Bootstrap`] when this process was not started by a launcher, or the ranks do not join within
    /// the time limit or disagree on an option; [`Error::System`] and [`Error::Transport`] when the system
    /// refuses memory or descriptors.
    pub fn from_env() -> Result<Communicator> {
        Communicator::from_env_with(&Config::from_env()?)
    }

    /// Joins as [`Communicator::from_env`], with options that the program sets.
    ///
    /// # Errors
    /// As for [`Communicator::from_env`].
    pub fn from_env_with(config: &Config) -> Result<Communicator> {
        Communicator::from_launch_info(&LaunchInfo::from_env()?, config)
    }

    /// Joins the job that the launch information describes, and waits until all ranks have joined.
    ///
    /// # Errors
    /// As for [`Communicator::from_env`].
    pub fn from_launch_info(info: &LaunchInfo, config: &Config) -> Result<Communicator> {
        announce::open_log(config, Some(info.rank()))?;
        let Resolved { identity, server } = info.resolve(config.timeout)?;
        let mut communicator = join(&identity, config)?;
        communicator.server = server;
        if let Some(folder) = &config.dump {
            record_on_signal(Some(folder))?;
        }
        Ok(communicator)
    }

    /// Joins the job of a unique id as one of `size` ranks, and waits until all have joined. All ranks pass
    /// the same id, which one of them, or another process that lives as long, has created with
    /// [`UniqueId::create`].
    ///
    /// # Errors
    /// As for [`Communicator::from_env`]; [`Error::InvalidArgument`] for a rank that is not below `size`.
    pub fn from_unique_id(id: &UniqueId, rank: u32, size: u32, config: &Config) -> Result<Communicator> {
        if rank >= size || size > collectives::MAX_RANKS {
            return Err(Error::InvalidArgument(format!(
                "rank {rank} of {size}: ranks are numbered from 0, and a communicator has from 1 to {}",
                collectives::MAX_RANKS
            )));
        }
        announce::open_log(config, Some(rank))?;
        let (rendezvous, server) = id.resolve(config.timeout)?;
        let identity = Identity::new(rank, size, rendezvous, server.is_some());
        let mut communicator = join(&identity, config)?;
        communicator.server = server;
        Ok(communicator)
    }

    /// Checks that this machine's limits let a rank of a job of `ranks` ranks have its memory, so that a
    /// launcher can report the shortage once instead of once per rank.
    ///
    /// # Errors
    /// [`Error::Transport`] when the system refuses the memory of one rank.
    pub fn preflight(ranks: u32, config: &Config) -> Result<()> {
        let layout = layout(ranks, config);
        let (_ours, object) = Arena::shared(layout)?;
        let peers: Result<Vec<Arena>, _> = (1..ranks).map(|_| Arena::of_peer(layout, &object)).collect();
        Ok(peers.map(drop)?)
    }

    /// Creates communicators for `ranks` threads of this process, in rank order.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for no ranks or too many, [`Error::Transport`] when the system refuses
    /// memory.
    pub fn local(ranks: u32, config: &Config) -> Result<Vec<Communicator>> {
        if !(1..=collectives::MAX_RANKS).contains(&ranks) {
            return Err(Error::InvalidArgument(format!(
                "{ranks} ranks: a communicator has from 1 to {}",
                collectives::MAX_RANKS
            )));
        }
        announce::open_log(config, None)?;
        let threads = Threads::new(ranks, "", config)?;
        Ok((0..ranks)
            .map(|rank| {
                announce::begun(rank, ranks, config);
                threads.communicator(rank, config)
            })
            .collect())
    }
}

/// Creates the links to every reachable peer on every lane, by peer and lane.
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

/// Catches SIGUSR2 if the options name a folder for flight recorders.
fn catch_signal_if_wanted(config: &Config) -> Result<()> {
    if config.dump.is_some() { catch_signal() } else { Ok(()) }
}

/// Joins the job of an identity, and tells its facts.
fn join(identity: &Identity, config: &Config) -> Result<Communicator> {
    let began = Instant::now();
    announce::joining(identity, config);
    let made = join_over_transport(identity, config);
    match &made {
        Ok(comm) => {
            if !identity.has_parent() {
                announce::transport(comm, config.transport, identity.rendezvous().has_remote_address());
            }
            announce::joined(comm, identity, began.elapsed());
        }
        Err(error) => announce::failed(Rank(identity.rank()), error),
    }
    made
}

/// Joins the job of an identity over the transport of the options.
fn join_over_transport(identity: &Identity, config: &Config) -> Result<Communicator> {
    bootstrap::provide_status(status::describe);
    let _joining = live::joining(identity.job());
    // Equal on all ranks: in a job that may span hosts every rank has a TCP address of the rendezvous,
    // including a rank 0 that runs it.
    let may_span_hosts = identity.rendezvous().has_remote_address();
    let config = match config.transport {
        Transport::Auto if may_span_hosts => &Config { transport: Transport::MixedAuto, ..config.clone() },
        _ => config,
    };
    catch_signal_if_wanted(config)?;
    let reconnect_listener = open_reconnect_listener(identity, config);
    match config.transport {
        Transport::Auto | Transport::Shm => shm::join(identity, config, reconnect_listener),
        Transport::Mixed | Transport::MixedVerbs | Transport::MixedAuto => {
            let layout = layout(identity.size(), config);
            endpoint::join_if_opened(
                mixed::open(identity, config, layout),
                identity,
                config,
                reconnect_listener,
            )
        }
        Transport::Tcp => {
            endpoint::join_if_opened(tcp::open(identity, config), identity, config, reconnect_listener)
        }
        Transport::Verbs => {
            endpoint::join_if_opened(verbs::open(identity, config), identity, config, reconnect_listener)
        }
        #[cfg(feature = "test-driver")]
        Transport::Strict => {
            let endpoint = transport::driver::strict::StrictEndpoint::open(
                layout(identity.size(), config),
                identity.rank(),
            )?;
            endpoint::join(Box::new(endpoint), identity, config, reconnect_listener)
        }
    }
}

/// Opens the sockets at which other ranks reach this one for later communicators. Without them only those
/// communicators fail.
fn open_reconnect_listener(identity: &Identity, config: &Config) -> Option<ReconnectListener> {
    let may_span_hosts = identity.rendezvous().has_remote_address();
    let at = if may_span_hosts { tcp::own_addresses(identity, config) } else { Vec::new() };
    ReconnectListener::open(&at, identity.rendezvous().secret().cloned()).ok()
}
