//! Messages that have arrived in slots.
//!
//! A header is checked, its counters are taken in, and the message goes where it belongs: fragments to their
//! stream, grants to `granted`, news of rails to `rails`. Sequenced messages are taken in order and once; one
//! that comes early stays in its slot.

use super::Peer;
use crate::{
    TransportError,
    driver::verbs::{
        bandwidth,
        env::Env,
        handshake::Heard,
        notice::Notice,
        sequence::Acceptance,
        stream::{Bytes, Fragment, Stream},
        wire::{ASK, Grant, Header, Kind, MISSING, Mark, Ready, Selective, message_checksum, nearest},
    },
    verbs::PostError,
};

/// A message in a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inbound {
    header: Header,
    kind: Kind,
    pub(super) rail: u8,
    pub(super) queue: u8,
    pub(super) slot: u32,
    /// Offset of the payload in the slab.
    at: usize,
}

impl Peer {
    /// Takes in a message of `bytes` bytes that has arrived in a slot.
    pub(super) fn receive(
        &mut self,
        env: &mut Env<'_>,
        (rail, queue, slot): (usize, u8, u32),
        bytes: usize,
    ) -> Result<(), TransportError> {
        let at = self.rails[rail].slot(usize::from(queue), slot);
        let Some((header, kind)) = self.parse(env, at, bytes)? else {
            return self.put_back(env, rail, queue, slot);
        };
        let inbound = Inbound { header, kind, rail: rail as u8, queue, slot, at: at + size_of::<Header>() };
        let heard = self.rails[rail].handshake.hear(kind == Kind::Hello, header.life, header.their_life);
        match heard {
            Heard::Accept => {}
            Heard::Opened => self.rail_opened(env, rail)?,
            Heard::Ignore => return self.put_back(env, rail, queue, slot),
            Heard::Answer => {
                self.put_back(env, rail, queue, slot)?;
                let answer = if self.rails[rail].is_up() { Kind::Pong } else { Kind::Hello };
                return self.send_word(env, rail, answer, &[]).map(drop);
            }
            Heard::Restart => return self.restart_rail(env, rail),
        }
        self.rails[rail].pulse.beat();
        self.take_counters(&header);
        if kind.is_sequenced() {
            return self.receive_sequenced(env, inbound);
        }
        self.put_back(env, rail, queue, slot)?;
        self.receive_word(env, &inbound)
    }

    /// The header of a message, unless it is damaged and will be repeated.
    fn parse(
        &mut self,
        env: &Env<'_>,
        at: usize,
        bytes: usize,
    ) -> Result<Option<(Header, Kind)>, TransportError> {
        if bytes < size_of::<Header>() {
            return Err(self.protocol("a message that is too short"));
        }
        let header = env.memory.read::<Header>(at);
        let checked = header.checked(bytes);
        let is_whole = || {
            let len = size_of::<Header>() + usize::from(header.len);
            checked.is_ok() && header.crc == message_checksum(env.memory.bytes(at, len))
        };
        if env.rules.checksum && !is_whole() {
            self.is_missing = true;
            self.ack_now = true;
            return Ok(None);
        }
        checked.map(|kind| Some((header, kind))).map_err(|what| self.protocol(what))
    }

    /// Takes in the counters of a message. They only grow; an older message has no effect.
    #[inline]
    fn take_counters(&mut self, header: &Header) {
        self.acknowledge(header.ack);
        if let Some(stream) = self.streams.find(header.stream) {
            let Stream { send, granted, .. } = &mut self.streams[stream];
            send.raise_limit(header.limit);
            granted.send.arrived_before(header.done);
        }
        if let Some(placed) = &mut self.placed {
            placed.send.arrived_before(header.done);
        }
        if let Some((rail, cost)) = bandwidth::decode(header.bandwidth)
            && let Some(rail) = self.rails.get_mut(rail)
        {
            rail.set_incoming_cost(cost);
        }
    }

    /// Takes in an unsequenced message.
    fn receive_word(&mut self, env: &mut Env<'_>, inbound: &Inbound) -> Result<(), TransportError> {
        let (header, rail) = (&inbound.header, usize::from(inbound.rail));
        let len = usize::from(header.len);
        match inbound.kind {
            Kind::Ack => {
                if header.flags & ASK != 0 {
                    self.answer(header.stream);
                }
                if len == size_of::<Selective>() {
                    let Selective { received } = env.memory.read(inbound.at);
                    if header.flags & MISSING != 0 {
                        self.counters.retransmissions += self.sequence.lose(header.ack, received) as u64;
                    }
                } else if header.flags & MISSING != 0 {
                    // A damaged message: nothing later has arrived.
                    self.counters.retransmissions += self.sequence.forget_all() as u64;
                }
                self.post_unsent(env)
            }
            Kind::Goodbye => {
                self.is_gone = true;
                Ok(())
            }
            Kind::Ping => self.send_word(env, rail, Kind::Pong, &[]).map(drop),
            Kind::Hello | Kind::Pong => Ok(()),
            Kind::Probe | Kind::Reply if len != size_of::<Mark>() => Err(self.protocol("a broken probe")),
            Kind::Probe => self.answer_probe(env, rail, env.memory.read(inbound.at)),
            Kind::Reply => self.was_sent(env, env.memory.read(inbound.at)),
            _ => Err(self.protocol("an unsequenced message of no such kind")),
        }
    }

    /// Takes in a sequenced message, and all that waited for it.
    #[inline]
    fn receive_sequenced(&mut self, env: &mut Env<'_>, inbound: Inbound) -> Result<(), TransportError> {
        let (rail, queue) = (usize::from(inbound.rail), usize::from(inbound.queue));
        let header = &inbound.header;
        let (seq, previous) = (header.seq, nearest(header.previous, header.seq));
        if self.received.pass(seq) {
            self.rails[rail].slot_queues[queue].1.keep();
            self.note_loss(env, seq, previous);
            self.deliver(env, &inbound)?;
            return self.refill(env, rail, queue);
        }
        match self.received.accept(seq, inbound) {
            Acceptance::New => self.rails[rail].slot_queues[queue].1.keep(),
            acceptance => {
                // Its acknowledgement may be lost, and messages before it.
                self.ack_now = true;
                self.is_missing |= self.received.has_gap();
                self.put_back(env, rail, inbound.queue, inbound.slot)?;
                return match acceptance {
                    Acceptance::Invalid => Err(self.protocol("a message that is too early")),
                    _ => Ok(()),
                };
            }
        }
        self.note_loss(env, seq, previous);
        while let Some(inbound) = self.received.pop() {
            self.deliver(env, &inbound)?;
        }
        self.refill(env, rail, queue)
    }

    /// Notes whether the message before one that has arrived is lost, since queue pairs keep their order. A
    /// message that was repeated may follow a later one.
    #[inline]
    fn note_loss(&mut self, env: &Env<'_>, seq: u32, previous: u32) {
        if !env.rules.reliable && previous != seq && !self.received.has(previous) {
            self.is_missing = true;
            self.ack_now = true;
        }
    }

    /// Delivers a sequenced message whose turn it is.
    #[inline]
    fn deliver(&mut self, env: &mut Env<'_>, inbound: &Inbound) -> Result<(), TransportError> {
        let &Inbound { ref header, rail, queue, slot, at, .. } = inbound;
        let stream = self.streams.find(header.stream).filter(|stream| !self.streams[*stream].is_ended);
        if let Some(stream) = stream
            && matches!(inbound.kind, Kind::Eager | Kind::Head)
        {
            let len = usize::from(header.len);
            let pool = &mut self.rails[usize::from(rail)].slot_queues[usize::from(queue)].1;
            let bytes = if pool.is_crowded() {
                pool.release(slot);
                Bytes::Heap(env.memory.bytes(at, len).into())
            } else {
                Bytes::Slot { rail, queue, slot, at }
            };
            let has_credit = self.streams[stream].recv.push(Fragment::new(header, bytes));
            return if has_credit { Ok(()) } else { Err(self.protocol("a message without credit")) };
        }
        let delivered = match inbound.kind {
            // The stream is closed here.
            Kind::Eager | Kind::Head => Ok(()),
            Kind::Placed | Kind::Relay | Kind::Revoke | Kind::Revoked | Kind::Ended => {
                self.deliver_to_stream(env, inbound.kind, header)
            }
            _ => self.deliver_control(env, inbound),
        };
        self.rails[usize::from(rail)].slot_queues[usize::from(queue)].1.release(slot);
        delivered
    }

    fn deliver_control(&mut self, env: &mut Env<'_>, inbound: &Inbound) -> Result<(), TransportError> {
        let Inbound { header, rail, at, .. } = inbound;
        let (len, value) = (usize::from(header.len), header.value);
        let is_mark = len == size_of::<Mark>();
        match inbound.kind {
            Kind::Grants => {
                for index in 0..len / size_of::<Grant>() {
                    self.take_grant(env, env.memory.read(at + index * size_of::<Grant>()))?;
                }
                Ok(())
            }
            Kind::Sent if is_mark => self.piece_sent(env, usize::from(*rail), env.memory.read(*at)),
            Kind::Arrived if is_mark => self.had_arrived(env, env.memory.read(*at)),
            Kind::RailDown => {
                let cause = text(env.memory.bytes(*at, len));
                self.peer_took_down(env, value as usize, header.flags, &cause)
            }
            Kind::PlacedDown => self.peer_began_epoch(env, value),
            Kind::PlacedReady if len == size_of::<Ready>() => {
                self.peer_renewed_placed(env, env.memory.read(*at), usize::from(*rail))
            }
            _ => Err(self.protocol("a message without its contents")),
        }
    }

    /// Delivers a control message about a stream.
    fn deliver_to_stream(
        &mut self,
        env: &mut Env<'_>,
        kind: Kind,
        header: &Header,
    ) -> Result<(), TransportError> {
        let (number, value) = (header.stream, header.value);
        let open = self.streams.find(number).filter(|stream| !self.streams[*stream].is_ended);
        match (kind, open) {
            (Kind::Placed, Some(stream)) => self.give_placed(stream, value),
            (Kind::Relay, Some(stream)) => self.relay(stream, value),
            (Kind::Revoke, Some(stream)) => self.take_placed(stream),
            // Nothing will be sent on it any more.
            (Kind::Revoke, None) => self.notices.push_back(Notice::Revoked { stream: number, until: value }),
            (Kind::Revoked, _) => {
                if let Some(stream) = self.streams.find(number) {
                    self.placed_revoked(stream, value);
                }
            }
            (Kind::Ended, _) => {
                if let Some(stream) = self.streams.find(number) {
                    return self.peer_ended(env, stream);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Answers a question for the counters of a stream, or for those of none.
    fn answer(&mut self, number: u32) {
        self.ack_now = true;
        self.is_missing |= self.received.has_gap();
        if let Some(stream) = self.streams.find(number) {
            self.streams[stream].must_tell = true;
            self.streams.touch(stream);
        }
    }

    /// Returns a slot whose message is not kept.
    #[inline]
    pub(super) fn put_back(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        queue: u8,
        slot: u32,
    ) -> Result<(), TransportError> {
        let queue = usize::from(queue);
        self.rails[rail].slot_queues[queue].1.put_back(slot);
        self.refill(env, rail, queue)
    }

    /// Frees a slot whose message the runtime has taken.
    #[inline]
    pub(super) fn release(
        &mut self,
        env: &mut Env<'_>,
        (rail, queue, slot): (u8, u8, u32),
    ) -> Result<(), TransportError> {
        let (rail, queue) = (usize::from(rail), usize::from(queue));
        self.rails[rail].slot_queues[queue].1.release(slot);
        self.refill(env, rail, queue)
    }

    /// Posts receives for free slots, several at a time. A device that takes few receives has fewer posted
    /// than there are slots; each message that arrives makes room for another one.
    #[inline]
    fn refill(&mut self, env: &mut Env<'_>, rail: usize, queue: usize) -> Result<(), TransportError> {
        match self.rails[rail].refill(env, queue)? {
            Ok(refused) => {
                self.counters.refused += refused;
                Ok(())
            }
            Err(error) => self.slots_failed(env, rail, error),
        }
    }

    /// Posts some receives for free slots, while the rank waits; returns whether none is left to be posted.
    pub(in crate::driver::verbs) fn refill_idle(
        &mut self,
        env: &mut Env<'_>,
    ) -> Result<bool, TransportError> {
        for rail in 0..self.rails.len() {
            for queue in 0..self.rails[rail].slot_queue_count() {
                if !self.rails[rail].needs_refill(queue) {
                    continue;
                }
                match self.rails[rail].refill_idle(env, queue)? {
                    Ok(0) => return Ok(false),
                    // The device takes more once it has used some.
                    Ok(refused) => self.counters.refused += refused,
                    Err(error) => return self.slots_failed(env, rail, error).map(|()| true),
                }
            }
        }
        Ok(true)
    }

    #[cold]
    fn slots_failed(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        error: PostError,
    ) -> Result<(), TransportError> {
        self.take_down(env, rail, &error.to_string())
    }
}

/// Text of a peer, for people to read.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().filter(|c| !c.is_control()).collect()
}
