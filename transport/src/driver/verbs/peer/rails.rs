//! Rails to one peer: failure and return of cables.
//!
//! An end that finds a problem with a rail makes its queue pairs dead first, so that nothing arrives through
//! them any more. It then tells the peer by another rail, and sends unacknowledged messages again. Once the
//! port is active, the queue pairs are reset, and a handshake by the rail itself opens it again
//! (`handshake`). A rail that does not answer is given up too (`pulse`).
//!
//! A peer without a rail is waited for, since a cable that was pulled may be plugged in again. It is
//! unreachable only after `Rules::cable_wait`.

use super::{Break, Peer};
use crate::{
    TransportError,
    driver::verbs::{env::Env, notice::Notice, pulse::Pulse, rail::Rail, wire::Kind},
    verbs::Access,
};
use events::{
    target,
    tracing::{debug, info, warn},
};
use std::time::{Duration, Instant};

/// Wait for a rail that the user is told about: a rail that is only made new is back much sooner.
const TELL_AFTER: Duration = Duration::from_millis(250);

impl Peer {
    /// Connects a rail for the first time. The peer does the same, and the exchange that follows tells both.
    pub(in crate::driver::verbs) fn start_rail(
        &mut self,
        env: &mut Env<'_>,
        index: usize,
    ) -> Result<(), TransportError> {
        let rail = &mut self.rails[index];
        rail.set_source(env.ports[rail.port()].gid_index());
        let connected = rail.connect(env.rules.access(), |_, _| false).and_then(|()| rail.connect_placed());
        connected.map_err(|error| TransportError::Rail { rail: rail.ends().name.clone(), error })?;
        self.post_slots(env, index)
    }

    /// Posts the receives of all slots without a message.
    fn post_slots(&mut self, env: &mut Env<'_>, index: usize) -> Result<(), TransportError> {
        for queue in 0..self.rails[index].slot_queues.len() {
            let rail = &mut self.rails[index];
            let refused = match rail.post_slots(env, queue, usize::MAX)? {
                Ok(refused) => refused,
                Err(error) => return self.take_down(env, index, &error.to_string()),
            };
            self.counters.refused += refused;
            let pool = &self.rails[index].slot_queues[queue].1;
            if pool.free() == pool.count() as usize {
                return self.take_down(env, index, "the device takes no receives");
            }
        }
        Ok(())
    }

    /// Ends the use of a rail at this end, because of a problem, and tells the peer.
    #[cold]
    pub(super) fn take_down(
        &mut self,
        env: &mut Env<'_>,
        index: usize,
        cause: &str,
    ) -> Result<(), TransportError> {
        if !self.rails[index].handshake.is_alive() || self.broken.is_some() {
            return Ok(());
        }
        let life = self.rails[index].handshake.life();
        self.fence(index, cause);
        self.notices.push_back(Notice::RailDown { rail: index as u8, life, cause: cause.to_owned() });
        self.go_on_without(env, index)
    }

    /// Makes the queue pairs of a rail dead: nothing arrives through them from now on.
    fn fence(&mut self, index: usize, cause: &str) {
        let rail = &mut self.rails[index];
        rail.cause = cause.to_owned();
        if rail.is_up() {
            rail.attempts.restart();
            warn!(target: target::VERBS, "the rail {} is down: {cause}", rail.ends().name);
        }
        rail.fence();
        // Its messages are sent again, behind the marks of other rails.
        self.rails.iter_mut().for_each(|rail| rail.mark = None);
        self.sequence.forget_rail(index as u8);
        self.streams.iter_mut().for_each(|stream| stream.granted.send.forget_rail(index));
        // These pieces are granted again by `regrant_rail`, and must not be granted twice.
        self.grants.retain(|grant| usize::from(grant.rail) != index);
    }

    fn go_on_without(&mut self, env: &mut Env<'_>, index: usize) -> Result<(), TransportError> {
        self.tell_all();
        self.regrant_rail(env, index)?;
        self.check_epoch(env)?;
        self.flush(env)
    }

    /// Takes in that the peer's end of a rail is dead, in a life of that end.
    pub(super) fn peer_took_down(
        &mut self,
        env: &mut Env<'_>,
        index: usize,
        life: u8,
        cause: &str,
    ) -> Result<(), TransportError> {
        let Some(rail) = self.rails.get(index) else {
            return Err(self.protocol("news of a rail that does not exist"));
        };
        if rail.handshake.is_ended_by(life) {
            self.fence(index, &format!("the other end has given it up ({cause})"));
            return self.go_on_without(env, index);
        }
        Ok(())
    }

    /// Resets this end of a rail, since the peer's end is in a new life.
    pub(super) fn restart_rail(&mut self, env: &mut Env<'_>, index: usize) -> Result<(), TransportError> {
        self.fence(index, "the other end has made it new");
        self.go_on_without(env, index)?;
        if env.ports[self.rails[index].port()].is_active { self.open_rail(env, index) } else { Ok(()) }
    }

    /// Resets and connects this end of a rail, and sends the peer a `Hello` by it.
    fn open_rail(&mut self, env: &mut Env<'_>, index: usize) -> Result<(), TransportError> {
        let kept: Vec<(u8, u32)> = self.kept_slots(index as u8);
        let rail = &mut self.rails[index];
        rail.set_source(env.ports[rail.port()].gid_index());
        rail.handshake.renew();
        // The peer's end may still hold writes for grants of an earlier life.
        let connected = rail.connect(Access::Local, |queue, slot| kept.contains(&(queue, slot)));
        if let Err(error) = connected {
            rail.cause = error.to_string();
            rail.fence();
            debug!(target: target::VERBS, "the rail {} does not open yet: {error}", rail.ends().name);
            return Ok(());
        }
        debug!(target: target::VERBS, "the rail {} is made anew", rail.ends().name);
        self.counters.reconnections += 1;
        self.post_slots(env, index)?;
        if self.rails[index].handshake.is_alive() {
            self.send_word(env, index, Kind::Hello, &[])?;
        }
        Ok(())
    }

    /// The slots of a rail that hold messages, by queue pair and number.
    fn kept_slots(&self, rail: u8) -> Vec<(u8, u32)> {
        let early = self.received.iter().filter(|inbound| inbound.rail == rail);
        let early = early.map(|inbound| (inbound.queue, inbound.slot));
        early.chain(self.streams.iter().flat_map(|stream| stream.recv.slots(rail))).collect()
    }

    /// Goes on with all messages by a rail both of whose ends are new.
    pub(super) fn rail_opened(&mut self, env: &mut Env<'_>, index: usize) -> Result<(), TransportError> {
        let rail = &mut self.rails[index];
        rail.attempts.restart();
        info!(target: target::VERBS, "the rail {} is up again", rail.ends().name);
        if env.rules.one_sided
            && let Err(error) = rail.permit_writes()
        {
            return self.take_down(env, index, &error.to_string());
        }
        self.no_rail_since = None;
        self.has_told_wait = false;
        self.tell_all();
        // The message shows the peer that this end knows the peer's life.
        self.send_word(env, index, Kind::Ack, &[])?;
        self.regrant_rail(env, index)?;
        self.check_epoch(env)?;
        self.flush(env)
    }

    /// Prefers one rail, or none.
    pub(in crate::driver::verbs) fn prefer(
        &mut self,
        env: &mut Env<'_>,
        rail: Option<usize>,
    ) -> Result<(), TransportError> {
        for (index, one) in self.rails.iter_mut().enumerate() {
            one.is_chosen = rail.is_none_or(|rail| rail == index);
        }
        self.check_epoch(env)?;
        self.flush(env)
    }

    /// Sends a message by the queue pairs of all rails, which devices may close when idle. Placed queues have
    /// nothing that could be sent without a piece, so one end resets them while no piece is in flight.
    pub(super) fn keep_alive(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        for index in 0..self.rails.len() {
            if self.rails[index].is_up() {
                self.send_word(env, index, Kind::Ping, &[])?;
            }
        }
        let is_idle = self.placed.as_ref().is_some_and(|placed| placed.is_idle() && placed.epoch.is_up());
        if is_idle && self.is_lower_end {
            self.begin_epoch(env, "it had been silent for long")?;
        }
        Ok(())
    }

    /// Compares rails with their ports: takes down rails whose port is down, and opens rails whose port is
    /// back.
    pub(in crate::driver::verbs) fn look_at_rails(
        &mut self,
        env: &mut Env<'_>,
        now: Instant,
    ) -> Result<(), TransportError> {
        for index in 0..self.rails.len() {
            let port = &env.ports[self.rails[index].port()];
            let (is_active, device) = (port.is_active && port.failure.is_none(), port.name());
            if !is_active && self.rails[index].handshake.is_alive() {
                let cause = match &port.failure {
                    Some(failure) => format!("{device} has failed: {failure}"),
                    None => format!("the port of {device} is down"),
                };
                self.take_down(env, index, &cause)?;
            }
            let rail = &mut self.rails[index];
            if !is_active || rail.is_up() || !rail.attempts.is_due(now) {
                continue;
            }
            let is_stuck = rail.attempts.is_exhausted();
            if rail.handshake.is_opening() && !is_stuck {
                self.send_word(env, index, Kind::Hello, &[])?;
            } else {
                rail.fence();
                self.open_rail(env, index)?;
            }
        }
        self.look_for_rail(env, now)?;
        self.check_epoch(env)
    }

    /// Waits for a rail if none is up and something is expected of the peer, up to a time limit.
    fn look_for_rail(&mut self, env: &Env<'_>, now: Instant) -> Result<(), TransportError> {
        if self.active().is_some() || self.is_gone || !self.expects_word(now) {
            self.no_rail_since = None;
            self.has_told_wait = false;
            return Ok(());
        }
        let since = *self.no_rail_since.get_or_insert(now);
        let waited = now.saturating_duration_since(since);
        if waited >= env.rules.cable_wait {
            self.broken = Some(Break::NoRail(self.rail_failures(env)));
            return self.check();
        }
        if waited >= TELL_AFTER && !self.has_told_wait {
            self.has_told_wait = true;
            (env.notify)(&format!(
                "no cable to rank {} works ({}); waiting up to {:?} for one to come back",
                self.rank,
                self.rail_failures(env),
                env.rules.cable_wait
            ));
        }
        Ok(())
    }

    /// Describes the failure of each rail, and the state of this rank's port.
    fn rail_failures(&self, env: &Env<'_>) -> String {
        let one = |rail: &Rail| {
            let port = env.ports[rail.port()].context.port();
            let state = port.ok().and_then(|port| port.state.name()).unwrap_or("silent");
            format!("{}: {}, our port is {state}", rail.ends().name, rail.cause)
        };
        self.rails.iter().map(one).collect::<Vec<_>>().join("; ")
    }

    /// Pings rails that have been quiet, and takes down those that stay silent.
    pub(in crate::driver::verbs) fn check_pulses(
        &mut self,
        env: &mut Env<'_>,
        now: Instant,
    ) -> Result<(), TransportError> {
        let is_expected = self.expects_word(now);
        for index in 0..self.rails.len() {
            let rail = &mut self.rails[index];
            if !rail.is_up() {
                continue;
            }
            if rail.pulse.look(now, is_expected) {
                // A queue pair without room for a ping does not answer either.
                self.send_word(env, index, Kind::Ping, &[])?;
                self.rails[index].pulse.ping(now);
            }
            let rail = &self.rails[index];
            let others =
                self.rails.iter().enumerate().filter(|(other, rail)| *other != index && rail.is_up());
            let others: Vec<Pulse> = others.map(|(_, rail)| rail.pulse).collect();
            if rail.pulse.is_silent(now, others.iter(), rail.attempts.silences(now)) {
                self.rails[index].attempts.note_silence(now);
                self.take_down(env, index, "it does not answer")?;
            } else if rail.pulse.has_answered() {
                self.rails[index].attempts.note_answer();
            }
        }
        Ok(())
    }
}
