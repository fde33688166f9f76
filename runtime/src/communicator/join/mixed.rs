//! Shared memory within a host and another transport between hosts: from options to an endpoint.

use super::{failure::not_started, tcp, verbs};
use crate::{Config, Transport, error::Result};
use bootstrap::Identity;
use collectives::SpanningTree;
use events::{notice, target, tracing::info};
use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};
use transport::{
    TransportError,
    driver::{
        Choice, Endpoint, Fallback, HostMemory, OnChoice,
        mixed::{Mixed, OpenInterHost},
        verbs::{VerbsConfig, VerbsEndpoint},
    },
    memory::ArenaLayout,
};

/// Maximum time to wait for the address of a device in a communicator that is made from another one.
const LATER_ADDRESS_WAIT: Duration = Duration::from_secs(3);

/// Whether a communicator of this process has taken TCP, so that later ones wait for no addresses.
static HAS_TAKEN_TCP: AtomicBool = AtomicBool::new(false);

/// Opens shared memory for the ranks of this host, and a transport to those of other hosts.
pub(super) fn open(identity: &Identity, config: &Config, layout: ArenaLayout) -> Result<Box<dyn Endpoint>> {
    let between = match config.transport {
        Transport::MixedVerbs => {
            let (rank, options) = (identity.rank(), verbs::options(identity, config)?);
            let say = Box::new(verbs::say(rank));
            Box::new(move |host_memory: &mut HostMemory| Ok(over_verbs(&options, rank, host_memory, say)))
                as OpenInterHost
        }
        Transport::MixedAuto => over_either(identity, config)?,
        _ => {
            let between = tcp::open_between(identity, config)?;
            Box::new(|_: &mut HostMemory| Ok(between))
        }
    };
    match Mixed::open(between, layout, identity.rank(), &config.host_id, config.timeout) {
        Ok(endpoint) => Ok(Box::new(endpoint)),
        Err(error) => Err(not_started(identity.rank(), error)),
    }
}

fn over_verbs(
    options: &VerbsConfig,
    rank: u32,
    host_memory: &HostMemory,
    say: Box<dyn FnMut(&str) + Send>,
) -> Box<dyn Endpoint> {
    Box::new(VerbsEndpoint::new_at(options, rank, host_memory, say))
}

/// Selects RDMA if it connects all hosts, directly or along others, TCP if not. A failure of RDMA is not an
/// error.
fn over_either(identity: &Identity, config: &Config) -> Result<OpenInterHost> {
    let (rank, is_first) = (identity.rank(), !identity.has_parent());
    let address_timeout = address_wait(identity, config);
    let options = verbs::options(identity, config)
        .map(|options| VerbsConfig { address_timeout, accepts_link_local: false, ..options })
        .map_err(|error| TransportError::Wiring { rank, what: error.to_string() });
    let second = tcp::open_between(identity, config)?;
    Ok(Box::new(move |host_memory: &mut HostMemory| {
        let hosts = host_memory.hosts().to_vec();
        let is_first_of_host = hosts.iter().position(|host| *host == hosts[rank as usize]);
        let says_wait = is_first && is_first_of_host == Some(rank as usize);
        let first = options.map(|options| over_verbs(&options, rank, host_memory, say_wait(rank, says_wait)));
        let ranks = (hosts, SpanningTree::MAX_RANKS);
        Ok(Box::new(Fallback::new(rank, ranks, first, second, print_choice(is_first && rank == 0))))
    }))
}

/// Returns the time to wait for addresses of devices. It is short where an earlier communicator of the
/// process has waited already.
fn address_wait(identity: &Identity, config: &Config) -> Duration {
    let most = match (HAS_TAKEN_TCP.load(Relaxed), identity.has_parent()) {
        (true, _) => Duration::ZERO,
        (false, true) => LATER_ADDRESS_WAIT,
        (false, false) => config.timeout,
    };
    config.verbs.address_wait.min(most).min(config.timeout)
}

/// Returns a function that shows once that an address is waited for; one rank of each host shows it.
fn say_wait(rank: u32, says: bool) -> Box<dyn FnMut(&str) + Send> {
    let mut is_due = says;
    Box::new(move |message| {
        if std::mem::take(&mut is_due) {
            notice!(target::VERBS, Some(rank), "{message} (TBCCL_ADDRESS_WAIT)");
        }
    })
}

/// Returns a function that reports the selected transport; rank 0 of a job shows it to the user.
fn print_choice(says: bool) -> OnChoice {
    Box::new(move |choice| {
        HAS_TAKEN_TCP.fetch_or(matches!(choice, Choice::Second(_)), Relaxed);
        let text = match choice {
            Choice::First => "hosts are connected by RDMA (shm+verbs)".to_owned(),
            Choice::FirstRelaying => {
                "hosts are connected by RDMA (shm+verbs), collectives along other ranks where no cable \
                 connects two; the program's messages between such ranks go over TCP"
                    .to_owned()
            }
            Choice::Second(why) => format!("hosts are connected by TCP (shm+tcp), not by RDMA: {why}"),
        };
        if says { notice!(target::INIT, None, "{text}") } else { info!(target: target::INIT, "{text}") }
    })
}
