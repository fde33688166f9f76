//! The TCP transport of a rank: from options and identity to an endpoint.

use super::{super::Communicator, failure::not_started};
use crate::{
    Config,
    error::{Error, Result},
};
use bootstrap::{ConnectSpec, Identity};
use collectives::SpanningTree;
use events::{target, warning};
use std::net::IpAddr;
use transport::driver::{
    Endpoint,
    tcp::{
        Bind, CableSelection, TcpConfig, TcpEndpoint, WarningHandler, addresses_of_interface,
        local_address_towards,
    },
};

/// Slab size where another driver has the registered memory: never used.
const UNUSED_SLAB_BYTES: u64 = 1 << 20;

/// Opens the endpoint, which listens for the other ranks.
pub(super) fn open(identity: &Identity, config: &Config) -> Result<Box<dyn Endpoint>> {
    open_with(identity, config, config.slab_bytes.unwrap_or(Config::SLAB_BYTES))
}

/// Opens the endpoint for ranks of other hosts, where another driver has the registered memory.
pub(super) fn open_between(identity: &Identity, config: &Config) -> Result<Box<dyn Endpoint>> {
    open_with(identity, config, UNUSED_SLAB_BYTES)
}

fn open_with(identity: &Identity, config: &Config, slab_bytes: u64) -> Result<Box<dyn Endpoint>> {
    let (rank, rendezvous) = (identity.rank(), identity.rendezvous());
    if rendezvous.secret().is_none() && rendezvous.has_remote_address() {
        return Err(Error::Bootstrap(format!(
            "rank {rank} has no secret, without which the other ranks can't tell it from a stranger: set \
             TBCCL_SECRET or TBCCL_SECRET_FILE on all ranks"
        )));
    }
    let bind = config.tcp.interface.clone().unwrap_or_else(|| address_towards(rendezvous));
    let options = TcpConfig {
        cables: cables(config, &bind),
        lan: config.tcp.lan,
        max_relayed_ranks: SpanningTree::MAX_RANKS,
        resume: config.tcp.resume,
        bind,
        // Without a secret, all ranks of the rendezvous belong to this host and user.
        secret: rendezvous.secret().cloned(),
        security: config.tcp.security,
        sockets: config.tcp.sockets,
        slab_bytes: slab_bytes as usize,
        buffer_bytes: config.tcp.buffer_bytes,
        lanes: Communicator::LANES,
        connect_timeout: config.timeout,
        peer_timeout: config.tcp.peer_timeout,
        ..TcpConfig::default()
    };
    let say = WarningHandler::new(move |what| warning!(target::TCP, Some(rank), "{what}"));
    match TcpEndpoint::open(&options, rank, say) {
        Ok(endpoint) => Ok(Box::new(endpoint)),
        Err(error) => Err(not_started(rank, error)),
    }
}

/// Returns the selection of cables: those that the user names, else all that are found, unless the user names
/// an interface to use or the job stays on this host.
fn cables(config: &Config, bind: &Bind) -> CableSelection {
    let stays_here = matches!(bind, Bind::Address(address) if address.is_loopback());
    let default = || match config.tcp.interface.is_some() || stays_here {
        true => CableSelection::Off,
        false => CableSelection::Auto,
    };
    config.tcp.cables.clone().unwrap_or_else(default)
}

/// Returns the addresses at which other ranks reach this one, as far as this rank knows.
pub(super) fn own_addresses(identity: &Identity, config: &Config) -> Vec<IpAddr> {
    let towards = || match address_towards(identity.rendezvous()) {
        Bind::Address(address) => vec![address],
        Bind::Interface(_) => Vec::new(),
    };
    match &config.tcp.interface {
        None => towards(),
        Some(Bind::Address(address)) => vec![*address],
        Some(Bind::Interface(name)) => {
            let found = addresses_of_interface(name);
            if found.is_empty() { towards() } else { found }
        }
    }
}

/// Returns the local address from which the rendezvous is reached; loopback if that is not over a network.
fn address_towards(rendezvous: &ConnectSpec) -> Bind {
    let addresses = rendezvous.socket_addresses().into_iter();
    let ours = addresses.filter_map(|address| local_address_towards(address).ok());
    ours.map(Bind::Address).next().unwrap_or_default()
}
