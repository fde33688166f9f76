//! Bulk messages without remote writes: posting of pieces and of their receives.

use super::{Peer, TAKEN};
use crate::{
    RecvState, SendProgress, SendState, TransportError,
    driver::verbs::{
        checksum::checksum,
        env::Env,
        notice::Notice,
        placed::{Claim, SendPiece, relayed},
        rail::{PLACED, Posted},
        stream::{Stream, Way},
        wire::{Header, Kind, Mark, message_checksum},
    },
    memory::{Span, SpanMut},
    verbs::{Operation, PostError},
};
use std::time::Instant;

impl Peer {
    /// Returns the path of the present bulk message of a stream; `None` until the receiver has chosen it.
    pub(super) fn placed_way(&mut self, stream: usize) -> Option<Way> {
        let placed = self.placed.as_ref()?;
        let send = &mut self.streams[stream].send;
        send.way = send.way.or_else(|| placed.send_owner.way(stream, send.bulk()));
        send.way
    }

    /// Takes in that receives are posted for the bulk messages of a stream.
    pub(super) fn give_placed(&mut self, stream: usize, from: u32) {
        if let Some(placed) = &mut self.placed {
            placed.send_owner.give(stream, from);
        }
    }

    /// Takes in that a bulk message must travel in slots.
    pub(super) fn relay(&mut self, stream: usize, number: u32) {
        if let Some(placed) = &mut self.placed {
            placed.send_owner.relay(stream, number);
        }
    }

    /// Notes that a relayed bulk message has been sent.
    pub(super) fn relay_sent(&mut self, stream: usize) {
        let number = self.streams[stream].send.bulk();
        if let Some(placed) = &mut self.placed {
            placed.send_owner.relay_sent(stream, number);
        }
    }

    /// Answers a peer that wants the queues which a stream owns.
    pub(super) fn take_placed(&mut self, stream: usize) {
        let Stream { send, .. } = &self.streams[stream];
        let until = send.bulk().wrapping_add((send.way == Some(Way::Placed)).into());
        if let Some(placed) = &mut self.placed {
            placed.send_owner.take(stream);
            self.notices.push_back(Notice::Revoked { stream: self.streams[stream].number(), until });
        }
    }

    /// Sends pieces of a bulk message whose head has been sent.
    pub(super) fn send_placed(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        state: &mut SendState,
        src: Span<'_>,
        ready: usize,
    ) -> Result<SendProgress, TransportError> {
        let before = state.staged;
        while state.staged < ready {
            let len = (src.len() - state.staged).min(env.rules.piece_len(src.len()));
            if state.staged + len > ready
                || !self.add_piece(env, stream, state.digest, src.sub(state.staged, len))?
            {
                break;
            }
            state.staged += len;
            // The device sends it while the next one is copied.
            self.post_pieces(env)?;
            if env.rules.yields_after_piece(src.len()) && self.is_last_piece_copied() {
                break;
            }
        }
        self.post_pieces(env)?;
        let Some(placed) = &self.placed else { return Ok(SendProgress::Idle) };
        if state.staged == src.len() {
            let (end, is_copied) = (placed.send.end(), placed.send.is_last_copied());
            let stream = &mut self.streams[stream];
            stream.send.end_message(true);
            stream.counters.sent_messages += 1;
            // A staged message is a copy, which is kept until it has arrived.
            let is_taken = is_copied && !state.match_ack;
            if is_taken && self.has_placed_taken(end) {
                return Ok(SendProgress::Complete);
            }
            state.awaits = Some(u64::from(end) | if is_taken { TAKEN } else { 0 });
            return Ok(SendProgress::Posted);
        }
        self.streams[stream].wants_word = true;
        Ok(if state.staged > before { SendProgress::Advanced } else { SendProgress::Idle })
    }

    fn is_last_piece_copied(&self) -> bool {
        self.placed.as_ref().is_some_and(|placed| placed.send.is_last_copied())
    }

    /// Whether the device has taken all pieces before this one.
    pub(super) fn has_placed_taken(&self, end: u32) -> bool {
        self.placed.as_ref().is_some_and(|placed| placed.send.has_posted(end))
    }

    /// Whether a bulk message has arrived whose last piece is before this number.
    pub(super) fn has_placed_arrived(&self, end: u32) -> bool {
        self.placed.as_ref().is_some_and(|placed| placed.send.has_arrived(end))
    }

    /// Adds a piece; false when there is no room for it.
    fn add_piece(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        digest: u64,
        src: Span<'_>,
    ) -> Result<bool, TransportError> {
        let Some(placed) = &mut self.placed else { return Ok(false) };
        let send = &mut placed.send;
        if send.len() >= env.rules.window || !send.is_open() {
            return Ok(false);
        }
        let (at, stage, crc) = match env.locate(src.as_ptr(), src.len()) {
            Some(at) => (at, None, env.sum(at, src.len())),
            None => {
                let Some((stage, at)) = send.take_stage() else { return Ok(false) };
                self.streams[stream].counters.copied_bytes += src.len() as u64;
                (at, Some(stage), env.stage(at, src))
            }
        };
        let stream = self.streams[stream].number();
        send.push(SendPiece { at, len: src.len(), stage, stream, crc, digest });
        Ok(true)
    }

    /// Posts pieces, each with its trailer, as far as the epoch and the queues allow.
    pub(super) fn post_pieces(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        while let Some(placed) = &mut self.placed
            && placed.epoch.is_up()
            && let Some((number, piece)) = placed.send.unposted()
        {
            let (index, epoch) = (placed.epoch.outgoing_rail(number), placed.epoch.number());
            let several = self.rails.len() > 1;
            let rail = &mut self.rails[index];
            if !rail.has_room_for_piece(piece.len) {
                env.ports[rail.port()].found_full();
                return Ok(());
            }
            if !rail.is_up() {
                return Ok(());
            }
            let mark = Mark { piece: number, crc: piece.crc, stream: piece.stream, attempt: epoch };
            let header = Header { digest: piece.digest, stream: piece.stream, ..Header::new(Kind::Trailer) };
            let trailer = rail.write_trailer(env, number, &header, bytemuck::bytes_of(&mark))?;
            let bytes = env.ports[rail.port()].keys.run(piece.at, piece.len)?;
            let Some(queue) = rail.queue_mut(PLACED) else { return Ok(()) };
            let posted = queue.send_piece(bytes, Operation::Send, (0, number), (false, several));
            let posted = match posted {
                Ok(true) => queue.send_trailer(trailer).and_then(|is_posted| {
                    // There was room for both.
                    if is_posted { Ok(true) } else { Err(PostError::Full) }
                }),
                other => other,
            };
            if matches!(posted, Ok(true)) {
                rail.sent_bytes += piece.len as u64;
            }
            match posted {
                Ok(false) => return Ok(()),
                Ok(true) if several => rail.bandwidth.posted(piece.len as u64, Instant::now()),
                Ok(true) => {}
                Err(error) => return self.begin_epoch(env, &error.to_string()),
            }
            if let Some(placed) = &mut self.placed {
                placed.send.posted(number);
            }
        }
        Ok(())
    }

    /// Answers whether a piece has been sent in an epoch. Silence means that it has not.
    pub(super) fn answer_probe(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        mark: Mark,
    ) -> Result<(), TransportError> {
        let Some(placed) = &self.placed else { return Err(self.protocol("a probe for no queue")) };
        // Until the epoch is up, the positions are those of the epoch before.
        let is_present = placed.epoch.is_up() && placed.epoch.number() == mark.attempt;
        if is_present && placed.send.is_posted(mark.piece) {
            self.send_word(env, rail, Kind::Reply, bytemuck::bytes_of(&mark))?;
        }
        Ok(())
    }

    /// Announces a bulk message of a stream; false when it must be announced again later.
    pub(super) fn announce_placed(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        state: &mut RecvState,
        destination: Option<SpanMut<'_>>,
    ) -> Result<bool, TransportError> {
        let Some(placed) = &mut self.placed else { return Ok(true) };
        let recv = &mut placed.recv;
        if recv.is_full() {
            return Ok(false);
        }
        let (number, name) = (self.streams[stream].recv.announced, self.streams[stream].number());
        let claim = placed.recv_owner.claim(stream, number);
        match claim {
            Claim::Unknown => return Ok(false),
            Claim::Relay => {
                self.notices.push_back(Notice::Relay { stream: name, number });
                let is_idle = recv.is_idle();
                if let Some(owner) = is_idle.then(|| placed.recv_owner.revoke()).flatten() {
                    let Stream { recv, .. } = &self.streams[owner];
                    let announced = recv.announced;
                    self.notices
                        .push_back(Notice::Revoke { stream: self.streams[owner].number(), announced });
                }
                state.announced = Some(relayed(number));
            }
            Claim::Owner | Claim::NewOwner => {
                if claim == Claim::NewOwner {
                    self.notices.push_back(Notice::Placed { stream: name, from: number });
                }
                let destination = destination.and_then(|span| env.locate(span.as_mut_ptr(), span.len()));
                recv.announce(stream, number, state.len, destination);
                state.announced = Some(u64::from(number));
            }
        }
        self.streams[stream].recv.announced = number.wrapping_add(1);
        self.post_receives(env)?;
        self.flush(env)?;
        Ok(true)
    }

    /// Takes in that the sender has not begun the messages of a stream from `until` on.
    pub(super) fn placed_revoked(&mut self, stream: usize, until: u32) {
        if let Some(placed) = &mut self.placed {
            placed.recv_owner.revoked(stream, until);
        }
        self.end_owner();
    }

    pub(super) fn end_owner(&mut self) {
        if let Some(placed) = &mut self.placed
            && placed.recv.is_idle()
        {
            placed.recv_owner.end(|stream| self.streams[stream].recv.announced);
        }
    }

    /// Posts the receives of expected pieces, in order, as far as the epoch and the device allow.
    pub(super) fn post_receives(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        loop {
            let Some(placed) = &mut self.placed else { return Ok(()) };
            if !placed.epoch.is_up() {
                return Ok(());
            }
            let Some(next) = placed.recv.unposted(env.rules.window, |total| env.rules.piece_len(total))
            else {
                return Ok(());
            };
            let rail = placed.epoch.incoming_rail(next.number);
            let posted =
                self.rails[rail].expect_piece(env, next.number, (next.at, next.len), next.already)?;
            match posted {
                Ok(Posted::Both) => placed.recv.posted_both(),
                Ok(posted) => {
                    self.counters.refused += 1;
                    if !placed.recv.refused(posted) {
                        return self.take_down(env, rail, "the device takes no receives of a piece");
                    }
                    return Ok(());
                }
                Err(PostError::Full) => return Ok(()),
                Err(error) => return self.begin_epoch(env, &error.to_string()),
            }
        }
    }

    /// Takes in that a message has arrived where a piece was expected.
    pub(super) fn piece_came(
        &mut self,
        env: &mut Env<'_>,
        (number, bytes): (u32, u32),
    ) -> Result<(), TransportError> {
        let Some(placed) = &mut self.placed else { return Ok(()) };
        if placed.recv.came(number, bytes) { Ok(()) } else { self.begin_epoch(env, "a message was lost") }
    }

    /// Takes in that a message has arrived where a trailer was expected.
    pub(super) fn trailer_came(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        (number, bytes): (u32, u32),
    ) -> Result<(), TransportError> {
        let Some(mark) = self.trailer(env, rail, number, bytes as usize) else {
            return self.begin_epoch(env, "a message was lost");
        };
        let Some(placed) = &mut self.placed else { return Ok(()) };
        let Some(piece) = placed.recv.piece(number) else { return Ok(()) };
        if !piece.is_here {
            return self.begin_epoch(env, "a message was lost");
        }
        if env.rules.checksum && mark.crc != checksum(env.memory.bytes(piece.at, piece.len)) {
            return self.begin_epoch(env, "a message was damaged");
        }
        placed.recv.complete(number);
        self.post_receives(env)
    }

    /// Returns the mark of a trailer, if it is whole and of that piece.
    fn trailer(&self, env: &Env<'_>, rail: usize, piece: u32, bytes: usize) -> Option<Mark> {
        if bytes != size_of::<Header>() + size_of::<Mark>() {
            return None;
        }
        let placed = self.placed.as_ref()?;
        let epoch = placed.epoch.number();
        let stream = self.streams.get(placed.recv.stream_of(piece)?)?.number();
        let at = self.rails[rail].trailer_in(piece);
        let header = env.memory.read::<Header>(at);
        let kind = header.checked(bytes).ok()?;
        let mark = env.memory.read::<Mark>(at + size_of::<Header>());
        let is_whole = !env.rules.checksum || header.crc == message_checksum(env.memory.bytes(at, bytes));
        let is_of_piece = mark.piece == piece && mark.stream == stream && mark.attempt == epoch;
        let is_ours = kind == Kind::Trailer && is_of_piece;
        (is_whole && is_ours).then_some(mark)
    }

    /// Takes in the reply that the peer has sent a piece, which has not arrived yet. The reply went by
    /// another queue.
    pub(super) fn was_sent(&mut self, env: &mut Env<'_>, mark: Mark) -> Result<(), TransportError> {
        let Some(placed) = &mut self.placed else { return Err(self.protocol("a reply for no queue")) };
        let is_current = placed.epoch.number() == mark.attempt;
        if is_current && placed.recv.was_sent(mark.piece) {
            return self.begin_epoch(env, "a message was lost");
        }
        Ok(())
    }

    /// Asks about the next piece if it has kept this rank waiting.
    pub(in crate::driver::verbs) fn probe_placed(
        &mut self,
        env: &mut Env<'_>,
        now: Instant,
    ) -> Result<(), TransportError> {
        let Some(placed) = &mut self.placed else { return Ok(()) };
        let Some(piece) = placed.recv.overdue(placed.epoch.is_up(), now) else { return Ok(()) };
        let mark = Mark { piece, crc: 0, stream: 0, attempt: placed.epoch.number() };
        let rail = placed.epoch.incoming_rail(piece);
        if self.rails[rail].is_up() {
            self.send_word(env, rail, Kind::Probe, bytemuck::bytes_of(&mark))?;
        }
        Ok(())
    }
}
