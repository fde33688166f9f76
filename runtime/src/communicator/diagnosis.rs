//! Diagnosis of ended runs: the reason why a call cannot go on, from the state of the other ranks.
//!
//! This module ends no runs, and raises only the death of a peer that was not known yet.

use super::watch::CallWatch;
use crate::{
    agreement::Failure,
    error::{Error, Place},
    executor::Stop,
};
use rustix::io::Errno;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use topology::Rank;
use transport::TransportError;

/// Turns the reason why a run ended into an error for people.
pub(super) fn explain(stop: Stop, watch: &mut CallWatch<'_>) -> Error {
    let (step, peer, error) = match stop {
        Stop::Watch(error) => return error,
        Stop::Link { step, peer, error } => (step, error.peer().map_or(peer, Rank), error),
    };
    if let Some(error) = watch.peers.timed_out.take() {
        return error;
    }
    let cause = match error {
        TransportError::Mismatch { found, expected } => match watch.find(peer, found) {
            Some(theirs) => Some(watch.mismatch(peer, expected, theirs)),
            None => watch.failure_meanwhile(|| step.clone()),
        },
        // No process of this number is left, so news of its end will come.
        TransportError::Unreadable { ref source, .. }
            if source.raw_os_error() == Some(Errno::SRCH.raw_os_error()) =>
        {
            failure_soon(watch, peer, &step, REPORT_TIMEOUT)
        }
        // A process that cannot be read or reached has most likely just ended; the launcher reports it in a
        // moment.
        // A peer to which no cable works may have given up for that reason, and left.
        TransportError::NoRail { .. } => failure_soon(watch, peer, &step, NEWS_TIMEOUT)
            .filter(|cause| !matches!(cause, Error::PeerLeft { .. })),
        TransportError::Unreadable { .. }
        | TransportError::Unreachable { .. }
        | TransportError::Lost { .. }
        | TransportError::Protocol { .. } => failure_soon(watch, peer, &step, NEWS_TIMEOUT),
        // The peer has ended or left, or its call has failed, and news of that will come.
        TransportError::Closed { .. } | TransportError::Revoked { .. } => {
            // No longer than a wait for a peer that is silent: a connection may have been reset at both ends.
            failure_soon(watch, peer, &step, REPORT_TIMEOUT.min(watch.timeout.max(NEWS_TIMEOUT)))
        }
        _ => None,
    };
    cause.unwrap_or_else(|| Error::Link {
        peer: watch.peers.names[peer.index()].clone(),
        error: Arc::new(error),
        place: Box::new(place(watch, step)),
    })
}

fn place(watch: &CallWatch<'_>, step: String) -> Place {
    Place { rank: watch.peers.rank, call: watch.call(), step: Some(step), waited: watch.waited }
}

/// Timeout for news of a peer that may not come.
const NEWS_TIMEOUT: Duration = Duration::from_millis(500);

/// Timeout for news of a peer that are almost certain to come, over a rendezvous that may be short of a core.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Rounds of waiting before a peer that has left is taken to have left without a reason: the reason may be in
/// flight.
const MAX_LEAVE_ROUNDS: u32 = 20;

/// Waits briefly for news of the peer: it has died, failed, or failed because it is in another call; or it
/// has closed its communicator, and its connections with it; or the rendezvous has ended, which fails all.
fn failure_soon(watch: &mut CallWatch<'_>, peer: Rank, step: &str, within: Duration) -> Option<Error> {
    let others: Vec<Rank> = watch.peers.others().collect();
    let asked = Instant::now();
    for round in 0.. {
        watch.peers.keep_in_touch();
        if let Some(error) = watch.failure_meanwhile(|| step.to_owned()) {
            return Some(error);
        }
        if let Some(how) = watch.peers.death_of(peer) {
            let failure = watch.peers.raise(Failure::Died { rank: peer, how });
            return Some(watch.peers.error_of(failure, place(watch, step.to_owned())));
        }
        if let Err(error) = watch.look_for_mismatch(&others.iter().copied()) {
            return Some(error);
        }
        if round >= MAX_LEAVE_ROUNDS && watch.peers.agreement.has_left_in_good_order(peer) {
            let peer = watch.peers.names[peer.index()].clone();
            return Some(Error::PeerLeft { peer, place: Box::new(place(watch, step.to_owned())) });
        }
        if watch.peers.launcher_gone {
            // The peer has failed for that, and no news of another reason can come.
            return Some(watch.without_rendezvous(place(watch, step.to_owned())));
        }
        let within = if watch.peers.hears_news() { within } else { within.min(NEWS_TIMEOUT) };
        if asked.elapsed() >= within {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}
