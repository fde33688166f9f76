//! Bulk messages without remote writes: pieces that meet receives in their final places.
//!
//! Devices that count in frames match sends with receives by their order, and hold a send until its receive is
//! posted (TN3205). So the receiver posts the receives of the pieces that it expects, in the order of the plan,
//! straight into registered memory, and the sender sends at once: nothing asks and nothing is copied. Each piece
//! is followed by a trailer that names it and has its checksum. Pieces are numbered in each direction, and the
//! rail of a piece follows from its number.
//!
//! | module | content |
//! |---|---|
//! | `epoch` | when the queues of both ends are new; the rails of pieces |
//! | `owner` | the stream that may use the queues |
//! | `send`, `receive` | one direction each |
//!
//! Invariants: receives are posted in the order of their pieces' numbers, and only while both ends' queues are
//! new; a piece counts as received only if its trailer follows it and its checksum is right.

mod epoch;
#[cfg(test)]
mod model;
mod owner;
mod receive;
mod send;

use super::{
    notice::Notice,
    pace,
    peer::{Env, Peer, Rules},
    wire::{ANY_RAIL, MAX_RAILS, Ready},
};
use crate::TransportError;
use epoch::Epoch;
use receive::PlacedRecv;
pub(super) use receive::is_relayed;
use send::PlacedSend;

/// Staging places, in each direction.
const STAGES: u32 = 8;

/// Both directions.
#[derive(Debug)]
pub(super) struct Placed {
    epoch: Epoch,
    send: PlacedSend,
    recv: PlacedRecv,
}

/// Bytes of the slab that staging needs.
pub(super) fn staging_bytes(rules: &Rules) -> usize {
    2 * STAGES as usize * rules.piece_bytes
}

impl Placed {
    /// The first epoch over that many rails. Staging places begin at the offset `base`.
    pub(super) fn new(rails: usize, base: usize, rules: &Rules) -> Placed {
        let half = STAGES as usize * rules.piece_bytes;
        Placed {
            epoch: Epoch::new(rails),
            send: PlacedSend::new(base, rules.piece_bytes),
            recv: PlacedRecv::new(base + half),
        }
    }

    /// Pieces received in all.
    #[inline]
    pub(super) fn done(&self) -> u32 {
        self.recv.done()
    }

    /// Whether the peer should be told of the pieces that have been received.
    #[inline]
    pub(super) fn owes_done(&self) -> bool {
        self.recv.owes_done()
    }

    #[inline]
    pub(super) fn done_told(&mut self) {
        self.recv.done_told();
    }

    /// Whether the peer does not know of all pieces that have been received.
    pub(super) fn has_untold_done(&self) -> bool {
        self.recv.has_untold_done()
    }

    /// Takes in the peer's counter.
    #[inline]
    pub(super) fn arrived_before(&mut self, done: u32) {
        self.send.arrived_before(done);
    }

    /// Whether all pieces that were sent have arrived.
    pub(super) fn is_sent(&self) -> bool {
        self.send.is_idle()
    }

    /// Whether nothing is under way in either direction.
    pub(super) fn is_idle(&self) -> bool {
        self.send.is_idle() && self.recv.is_idle()
    }

    /// Whether pieces can travel.
    pub(super) fn is_up(&self) -> bool {
        self.epoch.is_up()
    }
}

impl Peer {
    /// Begins the next epoch: the placed queues match wrongly, or their rails have changed.
    #[cold]
    pub(super) fn begin_epoch(&mut self, env: &mut Env<'_>, cause: &str) -> Result<(), TransportError> {
        let Some(placed) = &mut self.placed else { return Ok(()) };
        if self.broken.is_some() {
            return Ok(());
        }
        placed.epoch.begin();
        let epoch = placed.epoch.number();
        self.notices.push_back(Notice::PlacedDown { epoch, cause: cause.to_owned() });
        self.renew_placed(env)
    }

    /// Makes the placed queues of this end new in the present epoch, and tells the peer.
    fn renew_placed(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        let Some(placed) = &mut self.placed else { return Ok(()) };
        placed.send.stop();
        placed.recv.stop();
        let any_chosen = self.rails.iter().any(|rail| rail.is_chosen && rail.is_up());
        let mut ready = Ready { epoch: placed.epoch.number(), first: placed.recv.done(), ..Ready::default() };
        for (index, rail) in self.rails.iter_mut().enumerate() {
            rail.fence_placed();
            if rail.is_up() && (rail.is_chosen || !any_chosen) && rail.connect_placed().is_ok() {
                ready.rails |= 1 << index;
                ready.costs[index] = rail.pace.cost();
            }
        }
        placed.epoch.renewed(ready);
        self.streams[0].counters.reconnections += 1;
        if ready.rails == 0 {
            self.notices.push_back(Notice::PlacedReady(Ready { via: ANY_RAIL, ..ready }));
        }
        for via in (0..MAX_RAILS as u32).filter(|via| ready.rails >> via & 1 == 1) {
            self.notices.push_back(Notice::PlacedReady(Ready { via, ..ready }));
        }
        self.resume_placed(env)
    }

    /// The peer has begun an epoch.
    pub(super) fn peer_began_epoch(&mut self, env: &mut Env<'_>, epoch: u32) -> Result<(), TransportError> {
        let Some(placed) = &mut self.placed else {
            return Err(self.protocol("news of a queue that does not exist"));
        };
        if placed.epoch.peer_began(epoch) { self.renew_placed(env) } else { Ok(()) }
    }

    /// The peer's placed queues are new, as it tells by a rail.
    pub(super) fn peer_renewed_placed(
        &mut self,
        env: &mut Env<'_>,
        ready: Ready,
        by_rail: usize,
    ) -> Result<(), TransportError> {
        let Some(placed) = &mut self.placed else {
            return Err(self.protocol("news of a queue that does not exist"));
        };
        if placed.epoch.peer_renewed(ready, by_rail) && placed.epoch.needs_renewal() {
            return self.renew_placed(env);
        }
        self.resume_placed(env)
    }

    /// Goes on with pieces as far as the epoch allows.
    fn resume_placed(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        let Some(placed) = &mut self.placed else { return Ok(()) };
        if !placed.epoch.is_up() {
            return Ok(());
        }
        if let Some(first) = placed.epoch.first_outgoing() {
            let Some(again) = placed.send.resume(first) else {
                return Err(self.protocol("a piece number that it can't expect"));
            };
            self.streams[0].counters.retransmissions += u64::from(again);
        }
        self.post_receives(env)?;
        self.post_pieces(env)
    }

    /// Brings the rails of the placed queues up to date: all rails that are up, and no other one.
    pub(super) fn check_epoch(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        let Some(placed) = &self.placed else { return Ok(()) };
        let any_chosen = self.rails.iter().any(|rail| rail.is_chosen && rail.is_up());
        let is_wanted = |index: usize| {
            let rail = &self.rails[index];
            rail.is_up() && (rail.is_chosen || !any_chosen)
        };
        let rails = 0..self.rails.len();
        if !placed.epoch.needs_renewal() && rails.clone().any(|i| is_wanted(i) != placed.epoch.offers(i)) {
            return self.begin_epoch(env, "its rails have changed");
        }
        if placed.epoch.is_up() && self.rails.len() > 1 && placed.send.is_measured() {
            let mut costs = [pace::UNKNOWN_COST; MAX_RAILS];
            rails.for_each(|index| costs[index] = self.rails[index].pace.cost());
            if placed.epoch.is_outdated(&costs) {
                return self.begin_epoch(env, "the speed of its rails has changed");
            }
        }
        Ok(())
    }
}
