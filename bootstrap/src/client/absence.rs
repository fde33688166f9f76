//! Errors of ranks that wait for others at a rendezvous: which rank is missing, and why.
//!
//! A rank whose connection breaks, or which is refused, looks for a death that explains it, where another
//! rank has the rendezvous. This module reads no connection.

use crate::{connect::RendezvousHost, error::Error};
use topology::Rank;

/// Advice at the end of errors of a connection to a rendezvous whose host is not known.
pub const LAUNCHER_ADVICE: &str = "is the launcher (tbccl run), or without one rank 0, still running?";

/// Returns the error for a connection that failed while doing `action`: the death of a rank, if that is why.
pub(super) fn broken(
    rendezvous_host: Option<&RendezvousHost>,
    action: &str,
    e: &dyn std::fmt::Display,
) -> Error {
    match rendezvous_host {
        None => Error::Rendezvous(format!("{action}: {e}; {LAUNCHER_ADVICE}")),
        Some(host) => match host.cause() {
            Some((rank, how)) => died_during_start(host, rank, &how),
            None => out_of_reach(host, action, e),
        },
    }
}

/// Returns the error for a rendezvous of another rank that can't be reached.
pub(super) fn out_of_reach(host: &RendezvousHost, action: &str, e: &dyn std::fmt::Display) -> Error {
    let ended = "it has ended, or does not make this communicator";
    Error::Absent { ranks: vec![Rank(host.rank)], why: format!("{action} at {}: {e}; {ended}", host.label()) }
}

/// Returns the error for a refusal, which names missing ranks if `absent` is not empty, or the death that is
/// why they are missing.
pub(super) fn refused(why: String, absent: &[u32], rendezvous_host: Option<&RendezvousHost>) -> Error {
    let Some(host) = rendezvous_host.filter(|_| !absent.is_empty()) else { return Error::Rendezvous(why) };
    match host.cause() {
        Some((rank, how)) if !absent.contains(&rank) => died_during_start(host, rank, &how),
        _ => Error::Absent { ranks: absent.iter().copied().map(Rank).collect(), why },
    }
}

/// Returns the error for a rank that died before all ranks of another rank's rendezvous had started.
pub(super) fn died_during_start(host: &RendezvousHost, rank: u32, how: &str) -> Error {
    let why = format!("{} {how} while the job was starting", host.label_of(rank));
    Error::Absent { ranks: vec![Rank(rank)], why }
}
