//! Epochs of the placed queues: their renewal, and continuation of pieces after it.

use super::Peer;
use crate::{
    TransportError,
    driver::verbs::{
        bandwidth,
        env::Env,
        notice::Notice,
        wire::{ANY_RAIL, MAX_RAILS, Ready},
    },
};

impl Peer {
    /// Begins the next epoch, because the placed queues match wrongly or their rails have changed.
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

    /// Resets the placed queues of this end in the present epoch, and reports that to the peer.
    fn renew_placed(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        let Some(placed) = &mut self.placed else { return Ok(()) };
        placed.send.stop();
        placed.recv.stop();
        let any_chosen = self.rails.iter().any(|rail| rail.is_chosen && rail.is_up());
        let mut ready = Ready { epoch: placed.epoch.number(), first: placed.recv.done(), ..Ready::default() };
        for (index, rail) in self.rails.iter_mut().enumerate() {
            rail.fence_placed();
            rail.set_source(env.ports[rail.port()].gid_index());
            if rail.is_up() && (rail.is_chosen || !any_chosen) && rail.connect_placed().is_ok() {
                ready.rails |= 1 << index;
                ready.costs[index] = rail.bandwidth.cost();
            }
        }
        placed.epoch.renewed(ready);
        self.counters.reconnections += 1;
        if ready.rails == 0 {
            self.notices.push_back(Notice::PlacedReady(Ready { via: ANY_RAIL, ..ready }));
        }
        for via in (0..MAX_RAILS as u32).filter(|via| ready.rails >> via & 1 == 1) {
            self.notices.push_back(Notice::PlacedReady(Ready { via, ..ready }));
        }
        self.resume_placed(env)
    }

    /// Takes in that the peer has begun an epoch.
    pub(super) fn peer_began_epoch(&mut self, env: &mut Env<'_>, epoch: u32) -> Result<(), TransportError> {
        let Some(placed) = &mut self.placed else {
            return Err(self.protocol("news of a queue that does not exist"));
        };
        if placed.epoch.peer_began(epoch) { self.renew_placed(env) } else { Ok(()) }
    }

    /// Takes in the peer's report, which came by a rail, that its placed queues are new.
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
            self.counters.retransmissions += u64::from(again);
        }
        self.post_receives(env)?;
        self.post_pieces(env)
    }

    /// Begins an epoch if the rails of the placed queues are not all rails that are up, or their bandwidth
    /// has changed much.
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
        if placed.epoch.is_up() && self.rails.len() > 1 && placed.send.is_look_due() {
            let mut costs = [bandwidth::UNKNOWN_COST; MAX_RAILS];
            rails.for_each(|index| costs[index] = self.rails[index].bandwidth.cost());
            if placed.epoch.is_outdated(&costs) {
                return self.begin_epoch(env, "the speed of its rails has changed");
            }
        }
        Ok(())
    }
}
