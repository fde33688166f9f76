//! Bulk messages by remote writes: writing of pieces, and pieces that arrive.

use super::Peer;
use crate::{
    RecvState, SendProgress, SendState, TransportError,
    driver::verbs::{
        checksum::checksum,
        env::Env,
        granted::{Came, SendPiece},
        notice::Notice,
        stream::Difference,
        wire::{Grant, Mark, is_before},
    },
    memory::{Span, SpanMut},
    verbs::{Operation, RemoteRun},
};
use std::time::Instant;

impl Peer {
    /// Sends pieces of a bulk message whose head has been sent.
    pub(super) fn send_granted(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        state: &mut SendState,
        src: Span<'_>,
        ready: usize,
    ) -> Result<SendProgress, TransportError> {
        let before = state.staged;
        while state.staged < ready {
            let Some(grant) = self.streams[stream].granted.send.next_grant() else {
                self.streams[stream].wants_word = true;
                break;
            };
            self.check_grant(&grant, state, src.len())?;
            let len = grant.len as usize;
            if state.staged + len > ready
                || !self.send_piece(env, stream, &grant, src.sub(state.staged, len))?
            {
                break;
            }
            self.streams[stream].granted.send.end_grant(grant.piece);
            state.staged += len;
        }
        if !self.notices.is_empty() {
            self.flush(env)?;
        }
        if state.staged < src.len() {
            return Ok(if state.staged > before { SendProgress::Advanced } else { SendProgress::Idle });
        }
        let send = &self.streams[stream].granted.send;
        let (end, is_copied) = (send.end(), send.is_last_copied());
        self.streams[stream].send.end_message(true);
        self.streams[stream].counters.sent_messages += 1;
        // A staged message is a copy, which is kept until it has arrived.
        if is_copied && !state.match_ack {
            return Ok(SendProgress::Complete);
        }
        state.awaits = Some(u64::from(end));
        Ok(SendProgress::Posted)
    }

    /// Checks that a grant is for the next part of this message.
    fn check_grant(&self, grant: &Grant, state: &SendState, total: usize) -> Result<(), TransportError> {
        if grant.digest != state.digest {
            return Err(TransportError::Mismatch { expected: state.digest, found: grant.digest });
        }
        if grant.total != total as u64 {
            return Err(TransportError::Length { expected: grant.total, found: total as u64 });
        }
        let left = total - state.staged;
        if grant.offset != state.staged as u64 || grant.len == 0 || grant.len as usize > left {
            return Err(self.protocol("a grant for another part of the message"));
        }
        Ok(())
    }

    /// Whether the rail of a grant is in the life that it was granted in. The peer grants the piece again if
    /// not.
    fn is_in_force(&self, grant: &Grant) -> bool {
        grant.life == self.rails[usize::from(grant.rail)].handshake.their_life()
    }

    /// Sends a new piece; false when there is no room for it.
    fn send_piece(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        grant: &Grant,
        src: Span<'_>,
    ) -> Result<bool, TransportError> {
        let rail = &self.rails[usize::from(grant.rail)];
        if !rail.has_room(0, 0) {
            env.ports[rail.port()].found_full();
            return Ok(false);
        }
        let is_in_force = self.is_in_force(grant);
        let send = &mut self.streams[stream].granted.send;
        if !is_in_force || send.has_repetitions() {
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
        let piece = SendPiece {
            at,
            len: src.len(),
            stage,
            has_arrived: false,
            digest: grant.digest,
            total: grant.total,
            crc,
            attempt: grant.attempt,
            rail: grant.rail,
        };
        self.streams[stream].granted.send.push(piece);
        let posted = self.post_piece(env, grant, &piece)?;
        if !posted {
            self.streams[stream].granted.send.undo_push();
        }
        Ok(posted)
    }

    /// Writes a piece to the place of its grant; false when the queue pair refuses it for lack of room.
    fn post_piece(
        &mut self,
        env: &mut Env<'_>,
        grant: &Grant,
        piece: &SendPiece,
    ) -> Result<bool, TransportError> {
        let index = usize::from(grant.rail);
        // The bandwidth of rails follows from their completions. It counts only where there is a choice.
        let several = self.rails.len() > 1;
        let rail = &mut self.rails[index];
        let run = env.ports[rail.port()].keys.run(piece.at, piece.len)?;
        let place = RemoteRun { address: grant.address, rkey: grant.rkey };
        let operation = Operation::WriteImm(place, grant.immediate);
        let confirms = (env.rules.completions_confirm(), several);
        match rail.control().send_piece(run, operation, (grant.stream, grant.piece), confirms) {
            Ok(false) => return Ok(false),
            Ok(true) => {}
            Err(error) => {
                self.take_down(env, index, &error.to_string())?;
                return Ok(true);
            }
        }
        rail.sent_bytes += piece.len as u64;
        if several {
            rail.bandwidth.posted(piece.len as u64, Instant::now());
        }
        if !env.rules.reliable || env.rules.checksum {
            let attempt = u32::from(grant.attempt);
            let mark = Mark { piece: grant.piece, crc: piece.crc, stream: grant.stream, attempt };
            self.notices.push_back(Notice::Sent { mark, rail: grant.rail });
        }
        Ok(true)
    }

    /// Sends pieces again that were granted again, as far as there is room.
    #[inline]
    pub(super) fn repeat_pieces(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        self.has_repetitions = false;
        for stream in self.streams.indices() {
            if self.streams.get(stream).is_none() {
                continue;
            }
            while let Some(grant) = self.streams[stream].granted.send.next_repetition() {
                match self.streams[stream].granted.send.piece(grant.piece) {
                    Some(piece)
                        if !piece.has_arrived
                            && (piece.attempt != grant.attempt || !self.is_in_force(&grant)) => {}
                    Some(piece) if !piece.has_arrived => {
                        let has_room = self.rails[usize::from(grant.rail)].has_room(0, 0);
                        if !has_room || !self.post_piece(env, &grant, &piece)? {
                            break;
                        }
                        self.streams[stream].granted.send.repeated(&grant);
                        self.streams[stream].counters.retransmissions += 1;
                    }
                    _ if env.rules.completions_confirm() => self.notices.push_back(arrived(&grant)),
                    _ => {}
                }
                self.streams[stream].granted.send.end_repetition(&grant);
            }
            self.has_repetitions |= self.streams[stream].granted.send.has_repetitions();
        }
        Ok(())
    }

    /// Takes in a grant: of a new piece, or of one that was sent and has been lost.
    pub(super) fn take_grant(&mut self, env: &mut Env<'_>, grant: Grant) -> Result<(), TransportError> {
        if usize::from(grant.rail) >= self.rails.len() {
            return Err(self.protocol("a grant for a rail that does not exist"));
        }
        let Some(stream) = self.streams.find(grant.stream).filter(|stream| !self.streams[*stream].is_ended)
        else {
            return Ok(());
        };
        let send = &mut self.streams[stream].granted.send;
        if !is_before(grant.piece, send.end()) {
            let has_room = send.keep_grant(grant);
            return if has_room { Ok(()) } else { Err(self.protocol("more grants than pieces")) };
        }
        let piece = send.note_attempt(&grant);
        if let Some(piece) = piece {
            let difference = if piece.digest != grant.digest {
                Some(Difference::Digest { expected: piece.digest, found: grant.digest })
            } else {
                let (expected, found) = (grant.total, piece.total);
                (expected != found).then_some(Difference::Length { expected, found })
            };
            if difference.is_some() {
                self.streams[stream].difference = difference;
                return Ok(());
            }
        }
        match piece {
            Some(piece) if piece.len == grant.len as usize && !piece.has_arrived => {
                send.repeat(grant);
                self.repeat_pieces(env)
            }
            Some(piece) if !piece.has_arrived => Err(self.protocol("a grant for more or less than it was")),
            piece if env.rules.completions_confirm() => {
                if piece.is_none() && !send.is_freed(grant.piece) {
                    return Err(self.protocol("a grant for a piece that was never announced"));
                }
                self.notices.push_back(arrived(&grant));
                Ok(())
            }
            _ => Err(self.protocol("a grant for a piece that it has had, or that was never announced")),
        }
    }

    /// Announces a bulk message of a stream; false when it must be announced again later.
    pub(super) fn announce_granted(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        state: &mut RecvState,
        destination: Option<SpanMut<'_>>,
    ) -> Result<bool, TransportError> {
        let recv = &mut self.streams[stream].granted.recv;
        if recv.is_full() {
            return Ok(false);
        }
        let destination = destination.and_then(|span| env.locate(span.as_mut_ptr(), span.len()));
        state.announced = Some(recv.announce(state.digest, state.len, destination).into());
        self.grant_more(env, stream)?;
        self.flush(env)?;
        Ok(true)
    }

    /// Takes in that a piece has been written by a rail.
    pub(super) fn written(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        (stream, number): (usize, u32),
    ) -> Result<(), TransportError> {
        let recv = &mut self.streams[stream].granted.recv;
        if recv.piece(number).is_none() {
            // Pieces of a stream that has ended may still come.
            let is_ended = self.streams[stream].is_ended;
            return if is_ended { Ok(()) } else { Err(self.protocol("a piece that was not granted")) };
        }
        let Some(len) = recv.written(number, rail) else {
            // Nothing can write for an earlier grant any more, unless a device does not keep its order.
            return Err(self.protocol("a piece again that had arrived"));
        };
        self.rails[rail].forget_incoming(len as u64);
        self.settle(env, stream, number)
    }

    /// Takes in the message that a piece has been sent. It is behind the piece if both came by the same rail.
    pub(super) fn piece_sent(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        mark: Mark,
    ) -> Result<(), TransportError> {
        let Some(stream) = self.streams.find(mark.stream) else { return Ok(()) };
        match self.streams[stream].granted.recv.was_sent(&mark, rail) {
            Came::Stale => Ok(()),
            Came::Lost => self.grant_again(env, stream, mark.piece),
            Came::Noted => self.settle(env, stream, mark.piece),
        }
    }

    /// Completes a piece if its bytes have come and, with checksums, are right.
    fn settle(&mut self, env: &mut Env<'_>, stream: usize, number: u32) -> Result<(), TransportError> {
        let recv = &mut self.streams[stream].granted.recv;
        let Some((piece, crc)) = recv.unsettled(number) else { return Ok(()) };
        if env.rules.checksum {
            let Some(crc) = crc else { return Ok(()) };
            if crc != checksum(env.memory.bytes(piece.at, piece.len)) {
                return self.grant_again(env, stream, number);
            }
        }
        recv.complete(number);
        self.streams.touch(stream);
        self.grant_more(env, stream)
    }

    /// Takes in that a piece which was granted again had arrived before. Its completion came by a rail that
    /// had failed, and was ignored.
    pub(super) fn had_arrived(&mut self, env: &mut Env<'_>, mark: Mark) -> Result<(), TransportError> {
        if !env.rules.completions_confirm() {
            return Err(self.protocol("word of a piece that it need not give"));
        }
        let Some(stream) = self.streams.find(mark.stream) else { return Ok(()) };
        let Some((rail, len)) = self.streams[stream].granted.recv.had_arrived(mark.piece) else {
            return Ok(());
        };
        self.rails[rail].forget_incoming(len);
        self.settle(env, stream, mark.piece)
    }
}

/// Returns the answer to a grant of a piece that had arrived before.
fn arrived(grant: &Grant) -> Notice {
    let attempt = grant.attempt.into();
    Notice::Arrived(Mark { piece: grant.piece, crc: 0, stream: grant.stream, attempt })
}
