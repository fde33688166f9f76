//! Metrics of all ranks on this host, for its endpoint.
//!
//! Other processes of the host are asked through the rendezvous, as for the report of a hang: no process
//! needs a socket for it, and a rank answers while it computes or waits.

use super::{control::Control, ledger, report::snapshots_of_host, status};
use crate::{
    metrics::{self, HostMetrics, MetricsAddress, Source},
    why::ProcessStatus,
};
use bootstrap::{Presence, Snapshot};
use std::collections::{BTreeMap, BTreeSet};

/// Serves the metrics of this host at an address, from the process of a communicator.
pub(super) fn serve(address: MetricsAddress, control: &Control) {
    let own = &control.names()[control.rank().index()];
    let first = control.names().iter().find(|name| name.host == own.host);
    let warns = first.filter(|first| first.rank == own.rank).map(|first| first.rank.0);
    metrics::serve(address, warns, Source { collect: of_host, jobs: ledger::jobs });
}

/// Returns the metrics of all ranks on this host. Waits for other processes for a second or two at most.
fn of_host() -> HostMetrics {
    let own = status::of_process();
    let mut host = HostMetrics { ranks: own.metrics, silent: Vec::new() };
    for snapshot in snapshots_of_host() {
        add(&mut host, (&own.host, own.pid), &snapshot);
    }
    // Ranks of one process whose numbers are equal, in other jobs or communicators, keep one series.
    let mut seen = BTreeSet::new();
    host.ranks.retain(|rank| seen.insert((rank.job, rank.rank)));
    host.silent.retain(|(job, rank, ..)| seen.insert((*job, *rank)));
    host
}

/// Adds the other processes of this host in a snapshot.
fn add(host: &mut HostMetrics, (own_host, own_pid): (&str, u32), snapshot: &Snapshot) {
    let presences: BTreeMap<u32, &Presence> = (0..).zip(&snapshot.ranks).collect();
    for (rank, pid, of_host) in &snapshot.members.ranks {
        if of_host != own_host || *pid == own_pid || host.ranks.iter().any(|known| known.pid == *pid) {
            continue;
        }
        match presences.get(rank) {
            Some(Presence::Answered(text)) => {
                // A rank of another version may answer otherwise.
                let status: Option<ProcessStatus> = serde_json::from_str(text).ok();
                host.ranks.extend(status.map(|status| status.metrics).unwrap_or_default());
            }
            Some(Presence::Silent(_) | Presence::Died(_)) if snapshot.members.job.is_empty() => {
                host.silent.push((snapshot.members.id, *rank, *pid, of_host.clone()));
            }
            _ => {}
        }
    }
}
