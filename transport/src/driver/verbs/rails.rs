//! The cables to one peer: which are up, what happens when one goes down, and how it comes back.
//!
//! When something is wrong with a rail, either end makes its queue pairs dead first, so that nothing can arrive through them any more; it then tells the peer over another rail, repeats
//! there what was not acknowledged, and grants again what was to come. Once its port is active its queue pairs are made
//! new; the rail is used again when both ends have said so.
//!
//! Data queues alone can be made new in the same way, over the control queue: that is the answer to a message that was
//! lost between sends and receives that are matched by their order.
//!
//! Invariants: receives are posted to a data queue only while it is up, hence after the peer has made its end new; so no
//! message of an earlier life can meet them.

use super::{
    incoming::Incoming,
    outgoing::Outgoing,
    peer::{Env, Peer, RX_SLOTS},
    rail::{Rail, State},
    telling::Notice,
    wire::{Header, Kind, Mark, Tally},
};
use crate::TransportError;

/// Slots whose receives are posted anew together.
const REPOST_AT: usize = 8;

impl Peer {
    /// Makes our end of a rail new at the start, when the peer does the same; both know by the exchange that follows.
    pub(super) fn start_rail(&mut self, env: &mut Env<'_>, rail: usize) -> Result<(), TransportError> {
        let r = &mut self.rails[rail];
        r.renew(env, false).map_err(|error| TransportError::Rail { rail: r.name.clone(), error })?;
        self.rails[rail].control_state = State::Up;
        self.rails[rail].data_state = State::Up;
        if self.rails.len() == 1 {
            self.out.iter_mut().for_each(Outgoing::start_unsolicited);
            self.incoming.iter_mut().for_each(Incoming::start_unsolicited);
        }
        self.post_slots(env, rail)
    }

    /// Posts the receives of all slots that are not in the runtime's hands.
    fn post_slots(&mut self, env: &mut Env<'_>, rail: usize) -> Result<(), TransportError> {
        for slot in 0..RX_SLOTS {
            let kept = self.incoming.iter().any(|incoming| {
                incoming.eager.iter().any(|message| usize::from(message.rail) == rail && message.slot == slot)
            });
            if !kept && !self.repost(env, rail, slot)? {
                if self.rails[rail].free.len() + 1 == RX_SLOTS as usize {
                    return self.take_down(env, rail, false, "the device takes no receives");
                }
                self.rails[rail].free.push(slot);
            }
        }
        Ok(())
    }

    /// Gives a slot back to its rail.
    #[inline]
    pub(super) fn release_slot(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        slot: u32,
    ) -> Result<(), TransportError> {
        self.rails[rail].free.push(slot);
        self.refill(env, rail)
    }

    /// Posts receives of free slots, several at a time. A device that takes few receives has fewer posted than slots:
    /// each that a message has used makes room for another one, whether the message stays in its slot or not.
    #[inline]
    pub(super) fn refill(&mut self, env: &mut Env<'_>, rail: usize) -> Result<(), TransportError> {
        if self.rails[rail].free.len() < REPOST_AT {
            return Ok(());
        }
        while let Some(slot) = self.rails[rail].free.pop() {
            if self.rails[rail].control_state.ours() && !self.repost(env, rail, slot)? {
                // When something has come there is room for one more.
                self.rails[rail].free.push(slot);
                break;
            }
        }
        Ok(())
    }

    /// Sends the trailer of a piece behind it.
    pub(super) fn send_trailer(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        lane: usize,
        (mark, digest): (Mark, u64),
    ) -> Result<(), TransportError> {
        let at = self.rails[rail].places.trailer_out(lane, mark.piece);
        let header = Header { digest, ..Header::new(Kind::Trailer, Tally::default()) };
        let run = self.rails[rail].write_message(env, at, header, Some(mark))?;
        let Some(data) = &mut self.rails[rail].data else { return Ok(()) };
        match data[lane].send(run, false) {
            Ok(true) => Ok(()),
            Ok(false) => self.take_down(env, rail, true, "the send queue is full"),
            Err(error) => self.take_down(env, rail, true, &error.to_string()),
        }
    }

    /// A data queue has received something where a piece was expected.
    pub(super) fn data_came(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        lane: usize,
        (piece, bytes): (u32, u32),
    ) -> Result<(), TransportError> {
        if self.incoming[lane].len_of(piece) != Some(bytes as usize) {
            return self.take_down(env, rail, true, "a message was lost");
        }
        self.piece_came(env, rail, (lane, piece))
    }

    /// A data queue has received something where a trailer was expected.
    pub(super) fn trailer_came(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        lane: usize,
        (piece, bytes): (u32, u32),
    ) -> Result<(), TransportError> {
        match self.rails[rail].trailer(env, lane, piece, bytes as usize) {
            Some((mark, digest)) => {
                self.incoming[lane].check_operation(piece, digest, None);
                self.checksum_of(env, mark)
            }
            None => self.take_down(env, rail, true, "a message was lost"),
        }
    }

    /// Something is wrong with a rail, or with its data queues alone: ends its use at this end and tells the peer.
    #[cold]
    pub(super) fn take_down(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        data_only: bool,
        cause: &str,
    ) -> Result<(), TransportError> {
        let state = if data_only { self.rails[rail].data_state } else { self.rails[rail].control_state };
        if !state.ours() || self.broken.is_some() {
            return Ok(());
        }
        self.fence(rail, data_only, cause);
        self.notices.push_back(Notice::RailDown { rail: rail as u8, data_only, cause: cause.to_owned() });
        self.go_on_without(env, rail, data_only)
    }

    /// Makes the queue pairs dead: nothing arrives through them from now on.
    fn fence(&mut self, index: usize, data_only: bool, cause: &str) {
        self.out.iter_mut().for_each(|out| out.forget_rail(index));
        self.incoming.iter_mut().for_each(|incoming| incoming.unsolicited_from = None);
        // They are granted again, and not twice.
        self.grants.retain(|grant| usize::from(grant.rail) != index);
        let rail = &mut self.rails[index];
        rail.cause = cause.to_owned();
        // A queue pair that can't be made dead belongs to a device that is gone.
        for queue in rail.data.iter().flatten() {
            let _ = queue.fail();
        }
        rail.data_state = State::DOWN;
        if !data_only {
            let _ = rail.control.fail();
            rail.control_state = State::DOWN;
        }
    }

    fn go_on_without(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        data_only: bool,
    ) -> Result<(), TransportError> {
        if data_only {
            self.renew_rail(env, rail, true)?;
        } else if self.active().is_none() {
            self.broken = Some(self.obituary(env));
            return self.check();
        } else {
            self.repeat(env)?;
        }
        self.regrant_rail(env, rail)?;
        self.flush(env)
    }

    /// What happened to each rail, and how our ports are now.
    fn obituary(&self, env: &Env<'_>) -> String {
        let one = |rail: &Rail| {
            let port = env.ports[rail.port].context.port();
            let state = port.ok().and_then(|port| port.state.name()).unwrap_or("silent");
            format!("{}: {}, our port is {state}", rail.name, rail.cause)
        };
        self.rails.iter().map(one).collect::<Vec<_>>().join("; ")
    }

    /// The peer has ended its use of a rail.
    pub(super) fn peer_took_down(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        (data_only, cause): (bool, &str),
    ) -> Result<(), TransportError> {
        let Some(state) =
            self.rails.get(rail).map(|r| if data_only { r.data_state } else { r.control_state })
        else {
            return Err(self.protocol("news of a rail that is not there"));
        };
        if state == State::Up {
            self.fence(rail, data_only, &format!("the other end has given it up ({cause})"));
            return self.go_on_without(env, rail, data_only);
        }
        // Ours have been dead since it was last up; what the peer made new meanwhile is dead again.
        let r = &mut self.rails[rail];
        r.data_state = r.data_state.without_theirs();
        if !data_only {
            r.control_state = r.control_state.without_theirs();
        }
        Ok(())
    }

    /// The peer's end of a rail is new.
    pub(super) fn peer_is_ready(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        data_only: bool,
    ) -> Result<(), TransportError> {
        let Some(r) = self.rails.get_mut(rail) else {
            return Err(self.protocol("news of a rail that is not there"));
        };
        r.data_state = r.data_state.with_theirs();
        if !data_only {
            r.control_state = r.control_state.with_theirs();
        }
        if r.is_up() { self.regrant_rail(env, rail) } else { Ok(()) }
    }

    /// Makes our end of a rail new and says so. If that fails it stays down, and is tried again later.
    fn renew_rail(&mut self, env: &mut Env<'_>, rail: usize, data_only: bool) -> Result<(), TransportError> {
        if let Err(error) = self.rails[rail].renew(env, data_only) {
            self.rails[rail].cause = error.to_string();
            return Ok(());
        }
        if !data_only {
            self.post_slots(env, rail)?;
        }
        let r = &mut self.rails[rail];
        r.data_state = r.data_state.with_ours();
        if !data_only {
            r.control_state = r.control_state.with_ours();
        }
        self.counters[0].reconnections += 1;
        self.notices.push_back(Notice::RailReady { rail: rail as u8, data_only });
        if self.rails[rail].is_up() { self.regrant_rail(env, rail) } else { Ok(()) }
    }

    /// Gives the queue pairs of a rail something to do. Data queues have nothing that could be sent without a piece: they
    /// are made new, by one end, while no piece is under way.
    pub(super) fn keep_alive(&mut self, env: &mut Env<'_>, rail: usize) -> Result<(), TransportError> {
        if !self.rails[rail].is_up() {
            return Ok(());
        }
        self.say(env, rail, Kind::Ack, None)?;
        let r = &self.rails[rail];
        let idle = self.out.iter().all(Outgoing::is_idle) && self.incoming.iter().all(Incoming::is_idle);
        if r.data.is_some() && r.data_state == State::Up && idle && r.is_lower_end {
            self.take_down(env, rail, true, "it had been silent for long")?;
        }
        Ok(())
    }

    /// Compares rails with their ports: takes down those whose port is down, and makes new those whose port is back.
    pub(super) fn look_at_ports(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        for rail in 0..self.rails.len() {
            let active = env.ports[self.rails[rail].port].is_active;
            let r = &self.rails[rail];
            if !active && r.control_state.ours() {
                let device = env.ports[r.port].name().to_owned();
                self.take_down(env, rail, false, &format!("the port of {device} is down"))?;
            } else if active && !r.control_state.ours() && self.broken.is_none() {
                self.renew_rail(env, rail, false)?;
            } else if active && r.is_up() && r.data.is_some() && !r.data_state.ours() {
                self.renew_rail(env, rail, true)?;
            }
        }
        Ok(())
    }
}
