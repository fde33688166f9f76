//! The greeting with which a rank joins, and what it learns from the greetings of others.

use super::failure::host_name;
use crate::{Config, error::PeerName};
use bootstrap::{Hello, Identity, Member, Muster};
use rustix::fd::OwnedFd;
use topology::Rank;

/// Returns this rank's greeting. `probe` is a word that the others may try to read, `muster` the listener for
/// later communicators.
pub(super) fn greeting(
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

pub(super) fn names(members: &[Member]) -> Vec<PeerName> {
    members.iter().map(|m| PeerName { rank: Rank(m.rank), pid: m.pid, host: m.host.clone() }).collect()
}

/// Returns the rank whose process has the rendezvous, if any.
pub(super) fn keeper(members: &[Member]) -> Option<Rank> {
    members.iter().find(|member| member.keeps).map(|member| Rank(member.rank))
}
