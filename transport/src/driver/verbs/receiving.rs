//! What a peer says: messages that have arrived in slots.
//!
//! A header is checked, its counters are learnt from, and what it brings goes where it belongs: small messages to their
//! lane, grants to `outgoing`, news of rails to `rails`. Sequenced messages are taken in order and once.

use super::{
    incoming::RxMessage,
    pace,
    peer::{Env, FIRST_PATIENCE, Peer, read},
    wire::{ASK, Grant, Header, Kind, LANES, MISSING, Mark, is_before, message_checksum},
};
use crate::TransportError;
use std::time::Instant;

impl Peer {
    /// Takes in a message that has arrived in a slot of a rail. True when the slot stays in use.
    pub(super) fn receive(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        slot: u32,
        bytes: usize,
    ) -> Result<bool, TransportError> {
        let at = self.rails[rail].slot(slot);
        let Some((header, kind)) = self.parse(env, at, bytes)? else { return Ok(false) };
        self.learn(env, &header);
        let payload = at + size_of::<Header>();
        let mark = || (header.len as usize == size_of::<Mark>()).then(|| read::<Mark>(env.memory, payload));
        match kind {
            Kind::Ack => {
                self.ack_now |= header.flags & ASK != 0;
                if header.flags & MISSING != 0 && self.repeated != Some(self.acked) && self.acked != self.next
                {
                    self.repeated = Some(self.acked);
                    self.repeat(env)?;
                }
                Ok(false)
            }
            Kind::Goodbye => {
                self.gone = true;
                Ok(false)
            }
            Kind::Probe => {
                let mark = mark().ok_or_else(|| self.protocol("a broken probe"))?;
                self.answer(env, rail, mark)?;
                Ok(false)
            }
            Kind::Reply => {
                let mark = mark().ok_or_else(|| self.protocol("a broken reply"))?;
                self.was_sent(env, rail, mark)?;
                Ok(false)
            }
            Kind::Trailer => Err(self.protocol("a trailer outside of its queue")),
            _ => self.receive_sequenced(env, rail, slot, (header, kind, payload)),
        }
    }

    /// The header of a message, unless it is broken and will be repeated.
    fn parse(
        &mut self,
        env: &Env<'_>,
        at: usize,
        bytes: usize,
    ) -> Result<Option<(Header, Kind)>, TransportError> {
        if bytes < size_of::<Header>() {
            return Err(self.protocol("a message that is too short"));
        }
        let header = read::<Header>(env.memory, at);
        let checked = header.checked(bytes);
        let is_whole = || checked.is_ok() && header.crc == message_checksum(env.memory.bytes(at, bytes));
        if env.rules.checksum && !is_whole() {
            self.asked_for = Some(self.expected);
            self.ack_now = true;
            return Ok(None);
        }
        checked.map(Some).map_err(|what| self.protocol(what))
    }

    /// Takes in the counters of a message. They only grow; an older message says nothing new.
    #[inline]
    fn learn(&mut self, env: &Env<'_>, header: &Header) {
        let tally = header.tally;
        if is_before(self.acked, tally.ack) && !is_before(self.next, tally.ack) {
            self.acked = tally.ack;
            self.repeated = None;
            self.patience = FIRST_PATIENCE;
            self.waiting_since = (self.acked != self.next && !env.rules.reliable).then(Instant::now);
        }
        if let Some((rail, cost)) = pace::heard(header.pace)
            && let Some(rail) = self.rails.get_mut(rail)
        {
            rail.incoming_cost = Some(cost);
        }
        for lane in 0..LANES {
            self.out[lane].raise_limit(tally.eager_limits[lane]);
            self.out[lane].arrived_before(tally.pieces_done[lane]);
            self.out[lane].taken_before(tally.pieces_taken[lane]);
        }
    }

    fn receive_sequenced(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        slot: u32,
        (header, kind, payload): (Header, Kind, usize),
    ) -> Result<bool, TransportError> {
        if header.seq != self.expected {
            // One we have had is acknowledged again; of one that is too early, the missing one is asked for.
            if is_before(self.expected, header.seq) {
                self.ack_now |= self.asked_for != Some(self.expected);
                self.asked_for = Some(self.expected);
            } else {
                self.ack_now = true;
            }
            return Ok(false);
        }
        self.expected = self.expected.wrapping_add(1);
        self.asked_for = None;
        let len = header.len as usize;
        let broken = self.protocol("a message without what it is about");
        let marked = || {
            if len < size_of::<Mark>() { Err(broken) } else { Ok(read::<Mark>(env.memory, payload)) }
        };
        match kind {
            Kind::Eager => {
                let message = RxMessage {
                    rail: rail as u8,
                    slot,
                    at: payload,
                    len,
                    digest: header.digest,
                    message: header.message,
                    flags: header.flags,
                };
                self.incoming[usize::from(header.lane)].eager.push_back(message);
                return Ok(true);
            }
            Kind::Grants => {
                for i in 0..len / size_of::<Grant>() {
                    let grant = read::<Grant>(env.memory, payload + i * size_of::<Grant>());
                    self.granted(env, grant)?;
                }
            }
            Kind::Sent => {
                let mark = marked()?;
                self.checksum_of(env, mark)?;
            }
            Kind::Arrived => {
                let mark = marked()?;
                self.had_arrived(env, mark)?;
            }
            Kind::Unsolicited => {
                let mark = marked()?;
                self.unsolicited_from(env, mark)?;
            }
            Kind::RailDown => {
                let (at, told) = (payload + size_of::<Mark>(), len - size_of::<Mark>().min(len));
                let data_only = marked()?.piece != 0;
                let cause = text(env.memory.bytes(at, told));
                self.peer_took_down(env, usize::from(header.rail), (data_only, &cause))?;
            }
            Kind::RailReady => {
                let data_only = marked()?.piece != 0;
                self.peer_is_ready(env, usize::from(header.rail), data_only)?;
            }
            _ => return Err(self.protocol("a sequenced message of no known kind")),
        }
        Ok(false)
    }
}

/// What a peer says in words, for people to read.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().filter(|c| !c.is_control()).collect()
}
