//! Shared memory within a host and another transport between hosts: from options to an endpoint.

use super::{failure::not_started, tcp, verbs};
use crate::{Config, Transport, error::Result};
use bootstrap::Identity;
use events::{notice, target, tracing::info};
use std::time::Duration;
use transport::{
    TransportError,
    driver::{
        Endpoint, Fallback, HostMemory, OnChoice,
        mixed::{Mixed, OpenInterHost},
        verbs::{VerbsConfig, VerbsEndpoint},
    },
    memory::ArenaLayout,
};

/// Timeout for the address of a device, where TCP would do as well.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(3);

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

/// Selects RDMA if it connects all hosts, TCP if not. A failure of RDMA is not an error.
fn over_either(identity: &Identity, config: &Config) -> Result<OpenInterHost> {
    let rank = identity.rank();
    let patient = Config { timeout: config.timeout.min(ADDRESS_TIMEOUT), ..config.clone() };
    let options = verbs::options(identity, &patient)
        .map_err(|error| TransportError::Wiring { rank, what: error.to_string() });
    let says = rank == 0 && !identity.has_parent();
    let second = tcp::open_between(identity, config)?;
    Ok(Box::new(move |host_memory: &mut HostMemory| {
        let first = options.map(|options| over_verbs(&options, rank, host_memory, Box::new(|_| ())));
        let hosts = host_memory.hosts().to_vec();
        Ok(Box::new(Fallback::new(rank, hosts, first, second, print_choice(says))))
    }))
}

/// Returns a function that reports the selected transport; rank 0 of a job shows it to the user.
fn print_choice(says: bool) -> OnChoice {
    Box::new(move |_, why_not| {
        let text = match why_not {
            None => "hosts are connected by RDMA (shm+verbs)".to_owned(),
            Some(why) => format!("hosts are connected by TCP (shm+tcp), not by RDMA: {why}"),
        };
        if says { notice!(target::INIT, None, "{text}") } else { info!(target: target::INIT, "{text}") }
    })
}
