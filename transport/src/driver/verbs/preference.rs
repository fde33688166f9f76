//! The rails to a peer, and the user's preference of one of them.
//!
//! A preference serves to measure a single cable. It must be set at both ends, since the receiver chooses the
//! rail of a granted piece. Messages in flight stay on their rail.
//!
//! Invariant: a preference never delays a message. While no preferred rail is up, the others are used.

use super::{engine::Engine, rail::Rail};
use crate::{driver::RailInfo, verbs::gigabits};

/// Returns the rails to a peer. A port that does not answer has no bandwidth.
pub(super) fn rails(engine: &Engine, peer: u32) -> Vec<RailInfo> {
    let Some(peer) = engine.peers.get(peer as usize).and_then(Option::as_ref) else { return Vec::new() };
    let info = |rail: &Rail| {
        let port = &engine.ports[rail.port()];
        RailInfo {
            ours: port.name().to_owned(),
            theirs: rail.ends().theirs.clone(),
            gigabits: port.context.port().ok().as_ref().and_then(gigabits),
            is_thunderbolt: port.context.is_thunderbolt(),
            is_up: port.is_active && rail.is_up(),
            sent_bytes: Some(rail.sent_bytes),
            received_bytes: None,
        }
    };
    peer.rails().iter().map(info).collect()
}

/// Prefers one rail to a peer, or none.
pub(super) fn prefer(engine: &mut Engine, peer: u32, rail: Option<usize>) {
    let Ok((peer, mut env)) = engine.peer(peer as usize) else { return };
    // The next call finds a failure again.
    let _ = peer.prefer(&mut env, rail);
}
