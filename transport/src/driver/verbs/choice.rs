//! Which rails there are to a peer, and which of them are to be used.
//!
//! For those who want to know what a single cable does. Small messages take the rail that their sender prefers, pieces
//! of larger ones the rail that their receiver prefers, so both ends are told. What is under way stays where it is.
//!
//! Invariant: a preference never keeps a message back: while no preferred rail is up the others are used.

use super::engine::Engine;
use crate::{driver::RailInfo, verbs::gigabits};

/// The rails to a peer. A port that does not answer has no speed.
pub(super) fn rails(engine: &Engine, peer: u32) -> Vec<RailInfo> {
    let Some(peer) = engine.peers.get(peer as usize).and_then(Option::as_ref) else { return Vec::new() };
    let info = |rail: &super::rail::Rail| {
        let port = &engine.ports[rail.port];
        RailInfo {
            ours: port.name().to_owned(),
            theirs: rail.theirs.clone(),
            gigabits: port.context.port().ok().as_ref().and_then(gigabits),
            is_thunderbolt: port.context.is_thunderbolt(),
            is_up: port.is_active && rail.is_up(),
        }
    };
    peer.rails.iter().map(info).collect()
}

/// Prefers a rail to a peer, or none to the others.
pub(super) fn prefer(engine: &mut Engine, peer: u32, rail: Option<usize>) {
    let Some(peer) = engine.peers.get_mut(peer as usize).and_then(Option::as_mut) else { return };
    for (index, one) in peer.rails.iter_mut().enumerate() {
        one.is_chosen = rail.is_none_or(|rail| rail == index);
    }
}
