//! The hello with which a rank joins, and the information from the hellos of the other ranks.

use super::super::machine::host_name;
use crate::{Config, error::PeerName};
use bootstrap::{Hello, Identity, Member, ReconnectListener};
use rustix::fd::OwnedFd;
use topology::Rank;

/// Returns this rank's hello.
///
/// `probe` is a word that the other ranks may try to read; `reconnect_listener` is the listener for later
/// communicators.
pub(super) fn greeting(
    identity: &Identity,
    config: &Config,
    arena: Option<&OwnedFd>,
    probe: &u64,
    reconnect_listener: Option<&ReconnectListener>,
) -> Hello {
    let member = Member {
        rank: identity.rank(),
        pid: std::process::id(),
        host: host_name(),
        probe_address: std::ptr::from_ref::<u64>(probe) as u64,
        probe_value: *probe,
        reconnect_addresses: reconnect_listener
            .map(|listener| listener.addresses().to_owned())
            .unwrap_or_default(),
        hosts_rendezvous: identity.hosts_rendezvous(),
    };
    let mut hello = Hello::new(identity.size(), member);
    identity.job().clone_into(&mut hello.job);
    hello.options = config.shared();
    hello.arena = arena.is_some();
    hello.timeout_ms = config.timeout.as_millis().try_into().unwrap_or(u64::MAX);
    hello.peer_timeout_ms = config.tcp.peer_timeout.as_millis() as u64;
    hello
}

pub(super) fn names(members: &[Member]) -> Vec<PeerName> {
    members.iter().map(|m| PeerName { rank: Rank(m.rank), pid: m.pid, host: m.host.clone() }).collect()
}

/// Returns the rank whose process runs the rendezvous, if any.
pub(super) fn rendezvous_rank(members: &[Member]) -> Option<Rank> {
    members.iter().find(|member| member.hosts_rendezvous).map(|member| Rank(member.rank))
}
