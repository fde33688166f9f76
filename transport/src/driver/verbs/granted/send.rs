//! Pieces on their way to a peer.
//!
//! A piece is written to the place of its grant, from registered memory or from a staging place. It is kept until
//! it is known to have arrived: by the completion of a reliable queue pair, or by the peer's counter.
//!
//! A completion may know more than the peer: a piece that has arrived by a rail that fell before the peer looked
//! is granted again. Its sender, whose memory may be in other use by then, answers that it has arrived.
//!
//! Invariants: pieces are numbered without gaps; a piece is kept until it has arrived, so that it can be sent again.

use super::STAGES;
use crate::{
    SendProgress, SendState, TransportError,
    driver::verbs::{
        notice::Notice,
        peer::{Env, Peer},
        wire::{Grant, Mark, checksum, immediate, is_before},
    },
    memory::Span,
    verbs::{Operation, RemoteRun},
};
use std::{collections::VecDeque, time::Instant};

/// Grants and pieces of a stream; more than any peer grants.
const PIECES: usize = 256;
/// A piece that has been sent.
#[derive(Clone, Copy, Debug)]
struct Piece {
    at: usize,
    len: usize,
    /// The staging place that it lies in.
    stage: Option<u32>,
    has_arrived: bool,
    digest: u64,
    total: u64,
    crc: u32,
    /// Attempt of its latest grant, and the rail by which it was last sent.
    attempt: u8,
    rail: u8,
}

/// The outgoing direction of a stream.
#[derive(Debug)]
pub(in crate::driver::verbs) struct GrantedSend {
    /// Grants of pieces that were not sent yet, in order.
    grants: VecDeque<Grant>,
    /// Grants of pieces that are sent again, in order; they go before new ones.
    again: VecDeque<Grant>,
    /// Pieces that are not known to have arrived, and the number of the first.
    pieces: VecDeque<Piece>,
    first: u32,
    /// Free staging places.
    stages: Vec<u32>,
    stage_base: usize,
    stage_bytes: usize,
}

impl GrantedSend {
    pub(super) fn new(stage_base: usize, stage_bytes: usize) -> GrantedSend {
        GrantedSend {
            grants: VecDeque::with_capacity(PIECES),
            again: VecDeque::new(),
            pieces: VecDeque::with_capacity(PIECES),
            first: 0,
            stages: (0..STAGES).collect(),
            stage_base,
            stage_bytes,
        }
    }

    /// Number of the next new piece.
    fn end(&self) -> u32 {
        self.first.wrapping_add(self.pieces.len() as u32)
    }

    /// Keeps the grant of a piece that has not been sent, in place of an earlier one; false when there is no room.
    fn keep_grant(&mut self, grant: Grant) -> bool {
        let later = self.grants.iter().position(|kept| !is_before(kept.piece, grant.piece));
        match later {
            Some(at) if self.grants[at].piece == grant.piece => self.grants[at] = grant,
            _ if self.grants.len() >= PIECES => return false,
            Some(at) => self.grants.insert(at, grant),
            None => self.grants.push_back(grant),
        }
        true
    }

    /// The peer has received all pieces before this one.
    #[inline]
    pub(in crate::driver::verbs) fn arrived_before(&mut self, done: u32) {
        while is_before(self.first, done) && !self.pieces.is_empty() {
            self.pop();
        }
    }

    /// A piece has arrived, as a completion of a rail tells. If it was sent again by another rail, its memory is
    /// in use until that one completes.
    pub(in crate::driver::verbs) fn arrived(&mut self, number: u32, rail: usize) {
        let index = number.wrapping_sub(self.first) as usize;
        if let Some(piece) = self.pieces.get_mut(index)
            && usize::from(piece.rail) == rail
        {
            piece.has_arrived = true;
        }
        while self.pieces.front().is_some_and(|piece| piece.has_arrived) {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some(piece) = self.pieces.pop_front() {
            self.stages.extend(piece.stage);
            self.first = self.first.wrapping_add(1);
        }
    }

    /// Drops the repetitions that were to go by a rail that has fallen.
    pub(in crate::driver::verbs) fn forget_rail(&mut self, rail: usize) {
        self.again.retain(|grant| usize::from(grant.rail) != rail);
    }

    /// Whether all pieces have arrived.
    pub(in crate::driver::verbs) fn is_idle(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether all pieces before this one have arrived.
    #[inline]
    pub(in crate::driver::verbs) fn has_arrived(&self, end: u32) -> bool {
        !is_before(self.first, end)
    }
}

impl Peer {
    /// Sends pieces of a bulk message whose head has been sent.
    pub(in crate::driver::verbs) fn send_granted(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        state: &mut SendState,
        src: Span<'_>,
        ready: usize,
    ) -> Result<SendProgress, TransportError> {
        let before = state.staged;
        while state.staged < ready {
            let send = &self.granted[stream].send;
            let Some(grant) = send.grants.front().filter(|grant| grant.piece == send.end()).copied() else {
                self.wants_word = true;
                break;
            };
            self.check_grant(&grant, state, src.len())?;
            let len = grant.len as usize;
            if state.staged + len > ready
                || !self.send_piece(env, stream, &grant, src.sub(state.staged, len))?
            {
                break;
            }
            self.granted[stream].send.grants.pop_front_if(|first| first.piece == grant.piece);
            state.staged += len;
        }
        if !self.notices.is_empty() {
            self.flush(env)?;
        }
        if state.staged < src.len() {
            return Ok(if state.staged > before { SendProgress::Advanced } else { SendProgress::Idle });
        }
        let send = &self.granted[stream].send;
        let (end, is_copied) = (send.end(), send.pieces.back().is_none_or(|piece| piece.stage.is_some()));
        self.streams[stream].send.end_message(true);
        self.streams[stream].counters.sent_messages += 1;
        // A staged message is a copy, which is kept until it has arrived.
        if is_copied && !state.match_ack {
            return Ok(SendProgress::Complete);
        }
        state.awaits = Some(u64::from(end));
        Ok(SendProgress::Posted)
    }

    /// Checks that a grant is for the present place of this very message.
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

    /// Whether the rail of a grant is in the life that it was granted in. If not, the peer grants the piece again.
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
        let has_room = self.is_in_force(grant) && self.rails[usize::from(grant.rail)].has_room(0, 0);
        let send = &mut self.granted[stream].send;
        if !has_room || !send.again.is_empty() {
            return Ok(false);
        }
        let (at, stage) = match env.locate(src.as_ptr(), src.len()) {
            Some(at) => (at, None),
            None => {
                let Some(stage) = send.stages.pop() else { return Ok(false) };
                let at = send.stage_base + stage as usize * send.stage_bytes;
                env.memory.put(at, src);
                self.streams[stream].counters.copied_bytes += src.len() as u64;
                (at, Some(stage))
            }
        };
        let crc = if env.rules.checksum { checksum(env.memory.bytes(at, src.len())) } else { 0 };
        let piece = Piece {
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
        self.granted[stream].send.pieces.push_back(piece);
        let posted = self.post_piece(env, stream, grant, &piece)?;
        if !posted {
            let send = &mut self.granted[stream].send;
            send.pieces.pop_back();
            send.stages.extend(stage);
        }
        Ok(posted)
    }

    /// Writes a piece to the place of its grant; false when the queue pair has less room than it seemed to have.
    fn post_piece(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        grant: &Grant,
        piece: &Piece,
    ) -> Result<bool, TransportError> {
        let index = usize::from(grant.rail);
        // The speed of rails follows from their completions, where there is a choice.
        let several = self.rails.len() > 1;
        let rail = &mut self.rails[index];
        let run = env.ports[rail.port()].keys.run(piece.at, piece.len)?;
        let place = RemoteRun { address: grant.address, rkey: grant.rkey };
        let operation = Operation::WriteImm(place, immediate(stream, grant.piece));
        let confirms = (env.rules.completions_confirm(), several);
        match rail.control().send_piece(run, operation, (stream, grant.piece), confirms) {
            Ok(false) => return Ok(false),
            Ok(true) => {}
            Err(error) => {
                self.take_down(env, index, &error.to_string())?;
                return Ok(true);
            }
        }
        if several {
            rail.pace.posted(piece.len as u64, Instant::now());
        }
        if !env.rules.reliable || env.rules.checksum {
            let attempt = u32::from(grant.attempt);
            let mark = Mark { piece: grant.piece, crc: piece.crc, stream: stream as u32, attempt };
            self.notices.push_back(Notice::Sent { mark, rail: grant.rail });
        }
        Ok(true)
    }

    /// Sends pieces again that were granted again, as far as there is room.
    #[inline]
    pub(in crate::driver::verbs) fn repeat_pieces(
        &mut self,
        env: &mut Env<'_>,
    ) -> Result<(), TransportError> {
        for stream in 0..self.granted.len() {
            while let Some(grant) = self.granted[stream].send.again.front().copied() {
                let send = &self.granted[stream].send;
                let index = grant.piece.wrapping_sub(send.first) as usize;
                match send.pieces.get(index).copied() {
                    Some(piece)
                        if !piece.has_arrived
                            && (piece.attempt != grant.attempt || !self.is_in_force(&grant)) => {}
                    Some(piece) if !piece.has_arrived => {
                        let has_room = self.rails[usize::from(grant.rail)].has_room(0, 0);
                        if !has_room || !self.post_piece(env, stream, &grant, &piece)? {
                            break;
                        }
                        if let Some(piece) = self.granted[stream].send.pieces.get_mut(index) {
                            piece.rail = grant.rail;
                        }
                        self.streams[stream].counters.retransmissions += 1;
                    }
                    _ if env.rules.completions_confirm() => self.notices.push_back(arrived(&grant)),
                    _ => {}
                }
                // Its rail may have fallen by this, and taken the grant with it.
                self.granted[stream].send.again.pop_front_if(|first| *first == grant);
            }
        }
        Ok(())
    }

    /// Takes in a grant: of a new piece, or of one that was sent and has been lost.
    pub(in crate::driver::verbs) fn take_grant(
        &mut self,
        env: &mut Env<'_>,
        grant: Grant,
    ) -> Result<(), TransportError> {
        let stream = usize::from(grant.stream);
        if stream >= self.granted.len() || usize::from(grant.rail) >= self.rails.len() {
            return Err(self.protocol("a grant for a stream or a rail that does not exist"));
        }
        let send = &mut self.granted[stream].send;
        if !is_before(grant.piece, send.end()) {
            let has_room = send.keep_grant(grant);
            return if has_room { Ok(()) } else { Err(self.protocol("more grants than pieces")) };
        }
        let index = grant.piece.wrapping_sub(send.first) as usize;
        if let Some(piece) = send.pieces.get_mut(index) {
            piece.attempt = grant.attempt;
            if piece.digest != grant.digest {
                return Err(TransportError::Mismatch { expected: piece.digest, found: grant.digest });
            }
            if piece.total != grant.total {
                return Err(TransportError::Length { expected: grant.total, found: piece.total });
            }
        }
        match send.pieces.get(index).copied() {
            Some(piece) if piece.len == grant.len as usize && !piece.has_arrived => {
                send.again.push_back(grant);
                self.repeat_pieces(env)
            }
            Some(piece) if !piece.has_arrived => Err(self.protocol("a grant for more or less than it was")),
            piece if env.rules.completions_confirm() => {
                if piece.is_none() && !is_before(grant.piece, send.first) {
                    return Err(self.protocol("a grant for a piece that was never announced"));
                }
                self.notices.push_back(arrived(&grant));
                Ok(())
            }
            _ => Err(self.protocol("a grant for a piece that it has had, or that was never announced")),
        }
    }
}

/// The answer to a grant of a piece that had arrived before.
fn arrived(grant: &Grant) -> Notice {
    let (stream, attempt) = (grant.stream.into(), grant.attempt.into());
    Notice::Arrived(Mark { piece: grant.piece, crc: 0, stream, attempt })
}
