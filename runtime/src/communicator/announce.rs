//! Events of a communicator: the facts at its start, its choices, its failure and its end.
//!
//! At level `info`, a rank tells in about 20 lines what explains its behaviour: version, host, options,
//! rendezvous, ranks, transport and the reason for it, rails, thresholds, and each algorithm once.
//! Communicators that are made from others tell only their size and origin.
//!
//! Facts are collected only if something receives them. No function here is called while a call whose plan is
//! known runs.

use super::{Communicator, machine::host_name};
use crate::{
    Config, OPTIONS, Transport,
    calibration::Thresholds,
    error::{Error, PeerName, Result},
    executor::Protocols,
    processors::Processors,
};
use bootstrap::{ConnectSpec, Identity};
use collectives::select::Policy;
use events::{
    target,
    tracing::{Level, enabled, error, info},
};
use std::{fmt::Write, time::Duration};
use topology::Rank;
use transport::{WaitPolicy, driver::RailInfo};

/// Maximum number of peers whose rails are told at level `info`.
const MAX_PEERS: usize = 8;

/// Opens the log and the audit that the options describe. `rank` is the rank of this process, if it has only
/// one.
pub(super) fn open_log(config: &Config, rank: Option<u32>) -> Result<()> {
    if let Some(rank) = rank {
        events::set_rank(rank);
    }
    config.open_log()
}

/// Tells who this rank is, and where it joins the others.
pub(super) fn joining(identity: &Identity, config: &Config) {
    let (rank, size, rendezvous) = (identity.rank(), identity.size(), identity.rendezvous());
    if identity.has_parent() || !enabled!(target: target::INIT, Level::INFO) {
        return;
    }
    begun(rank, size, config);
    let secret = if rendezvous.secret().is_some() { "a" } else { "no" };
    info!(target: target::BOOTSTRAP, rank,
        "joins at {}, with {secret} secret; waits up to {:?}", addresses_of(rendezvous), config.timeout);
}

fn addresses_of(rendezvous: &ConnectSpec) -> String {
    let addresses = rendezvous.addresses();
    if addresses.is_empty() { "its own rendezvous".to_owned() } else { addresses.join(", ") }
}

/// Tells the version, the machine, and the options that are set.
pub(super) fn begun(rank: u32, size: u32, config: &Config) {
    if !enabled!(target: target::INIT, Level::INFO) {
        return;
    }
    info!(target: target::INIT, rank,
        "tbccl {}, rank {rank} of {size} on {}, process {}",
        env!("CARGO_PKG_VERSION"), host_name(), std::process::id());
    info!(target: target::INIT, rank, "machine: {}, {} {}",
        Processors::here(), std::env::consts::OS, std::env::consts::ARCH);
    let defaults = Config::default();
    let set = OPTIONS.iter().filter(|option| option.value(config) != option.value(&defaults));
    let set: Vec<String> = set.map(|option| format!("{}={}", option.env, option.value(config))).collect();
    let set = if set.is_empty() { "none".to_owned() } else { set.join(" ") };
    info!(target: target::INIT, rank, "options that are set: {set}");
}

/// Tells the transport in use, and the reason.
pub(super) fn transport(comm: &Communicator, given: Transport, spans_hosts: bool) {
    let why = match given {
        Transport::Auto if spans_hosts => "ranks reach the rendezvous over TCP, so hosts may differ",
        Transport::Auto => "all ranks reach the rendezvous on this host",
        _ => "TBCCL_TRANSPORT or the program names it",
    };
    info!(target: target::INIT, rank = comm.rank().0, "transport {}: {why}", comm.transport());
}

/// Tells the ranks, and the rails between them. `took` is the time since this rank has begun to join.
pub(super) fn joined(comm: &Communicator, identity: &Identity, took: Duration) {
    let rank = comm.rank().0;
    if identity.has_parent() {
        info!(target: target::INIT, rank, "{} has made a communicator: rank {rank} of {}, transport {}",
            identity.job(), comm.size(), comm.transport());
        return;
    }
    if !enabled!(target: target::INIT, Level::INFO) {
        return;
    }
    let host = match comm.peers.rendezvous_rank {
        Some(host) => format!("rank {host}"),
        None => "the launcher".to_owned(),
    };
    let ranks = by_host(comm.members());
    info!(target: target::BOOTSTRAP, rank,
        "joined in {took:.1?}; {host} runs the rendezvous; ranks by host: {ranks}");
    let peers = comm.peers.others().map(|peer| (peer, comm.rails(peer)));
    let with_rails = peers.filter(|(_, rails)| !rails.is_empty()).collect::<Vec<_>>();
    for (peer, rails) in with_rails.iter().take(MAX_PEERS) {
        info!(target: target::INIT, rank, "rails to rank {peer}: {}", rail_names(rails));
    }
    if let Some(more) = with_rails.len().checked_sub(MAX_PEERS).filter(|more| *more > 0) {
        info!(target: target::INIT, rank, "rails to {more} more ranks: see `tbccl ping`");
    }
}

fn rail_names(rails: &[RailInfo]) -> String {
    let one = |rail: &RailInfo| {
        let mut text = format!("{} to {}", rail.ours, rail.theirs);
        if let Some(gigabits) = rail.gigabits {
            let _ = write!(text, " at {gigabits} Gb/s");
        }
        text.push_str(if rail.is_thunderbolt { " over Thunderbolt" } else { "" });
        text.push_str(if rail.is_up { ", up" } else { ", down" });
        text
    };
    rails.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Returns the ranks of each host, like `a: 0-3, b: 4-5 8`.
fn by_host(names: &[PeerName]) -> String {
    let mut hosts: Vec<(&str, Vec<(u32, u32)>)> = Vec::new();
    for name in names {
        let rank = name.rank.0;
        let at = hosts.iter().position(|(host, _)| *host == name.host).unwrap_or_else(|| {
            hosts.push((&name.host, Vec::new()));
            hosts.len() - 1
        });
        match hosts[at].1.last_mut().filter(|(_, last)| *last + 1 == rank) {
            Some((_, last)) => *last = rank,
            None => hosts[at].1.push((rank, rank)),
        }
    }
    let range = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let host = |(host, ranges): &(&str, Vec<(u32, u32)>)| {
        format!("{host}: {}", ranges.iter().map(range).collect::<Vec<_>>().join(" "))
    };
    hosts.iter().map(host).collect::<Vec<_>>().join(", ")
}

/// Tells how the rank waits and reduces, the thresholds of protocols, and what selection goes by.
pub(super) fn settings(
    (rank, is_first): (Rank, bool),
    (wait, threads): (&WaitPolicy, u32),
    (thresholds, protocols): (Thresholds, &Protocols),
    policy: &Policy,
) {
    let rank = rank.0;
    if !is_first || !enabled!(target: target::INIT, Level::INFO) {
        return;
    }
    info!(target: target::INIT, rank,
        "waits: {} polls, then yields for {:?}, then sleeps up to {:?}; reduces with up to {threads} threads",
        wait.spin_polls, wait.yield_for, wait.max_sleep);
    let source =
        if thresholds == Thresholds::DEFAULT { "defaults" } else { "calibration of rank 0's machine" };
    info!(target: target::CALIBRATION, rank,
        "thresholds by {source}: read by system call: {}, unchanged messages {}; without copies: from {} B \
         per operation, {} per combined message",
        from(protocols.gather_pull_min_bytes), from(protocols.unchanged_pull_min_bytes),
        protocols.direct_min_bytes,
        from(protocols.combined_direct_min_bytes));
    let mut sources = Vec::new();
    if !policy.overrides.rules.is_empty() || !policy.overrides.names.is_empty() {
        sources.push("options");
    }
    sources.extend(policy.tuned.is_some().then_some("measurements"));
    sources.extend(policy.model.is_some().then_some("the model"));
    sources.push(if policy.oversubscribed { "thresholds for few cores" } else { "thresholds" });
    info!(target: target::SELECTION, rank, "algorithms by {}", sources.join(", then "));
}

fn from(limit: usize) -> String {
    if limit == usize::MAX { "never".to_owned() } else { format!("from {limit} B") }
}

/// Tells a failure of the communicator.
pub(super) fn failed(rank: Rank, error: &Error) {
    error!(target: target::FAILURE, rank = rank.0, "{error}");
}

/// Tells the end of a communicator, with its counters.
pub(super) fn closed(comm: &Communicator) {
    if !enabled!(target: target::INIT, Level::INFO) {
        return;
    }
    let stats = comm.stats();
    let state = if comm.failed.is_some() { "failed" } else { "closed" };
    info!(target: target::INIT, rank = comm.rank().0,
        "communicator {state}: {} of {} calls done, {} messages and {} B received, {} B copied, {} sent \
         again, {} connections made anew",
        stats.finished, stats.begun, stats.links.received_messages, stats.links.moved_bytes,
        stats.links.copied_bytes, stats.links.retransmissions, stats.links.reconnections);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_told_by_host() {
        let name = |rank, host: &str| PeerName { rank: Rank(rank), pid: 1, host: host.to_owned() };
        let names = [name(0, "a"), name(1, "a"), name(2, "b"), name(3, "a"), name(4, "b"), name(5, "b")];
        assert_eq!(by_host(&names), "a: 0-1 3, b: 2 4-5");
    }
}
