//! Announced messages, and pieces that arrive.
//!
//! Pieces go to registered memory of the caller, or to staging places, from which they are handed over in place.
//!
//! Invariant: pieces are handed over in order and once.

use super::STAGES;
use crate::{
    RecvProgress, RecvState, Sink, TransportError,
    driver::verbs::{
        peer::{Env, Peer},
        wire::{Mark, checksum},
    },
    memory::SpanMut,
};
use std::collections::VecDeque;

/// Messages that can be announced ahead.
const ANNOUNCED: usize = 64;
/// Pieces that are granted and not handed over.
pub(super) const PIECES: usize = 128;

/// A message that is expected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) digest: u64,
    pub(super) total: usize,
    /// Bytes granted so far.
    pub(super) granted: usize,
    /// Offset in the slab; staging places when there is none.
    pub(super) destination: Option<usize>,
}

/// A piece that has been granted and was not handed over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Number of its message among the bulk messages of the stream.
    pub(super) message: u32,
    /// Offset in its message.
    pub(super) offset: usize,
    pub(super) len: usize,
    pub(super) at: usize,
    pub(super) is_staged: bool,
    /// The rail that it is granted on, and the life of that rail.
    pub(super) rail: u8,
    pub(super) life: u8,
    /// Whether its bytes are here, as its queue pair tells.
    pub(super) is_here: bool,
    /// Its checksum, as the sender tells.
    pub(super) crc: Option<u32>,
    pub(super) has_arrived: bool,
    /// Whether it waits for a rail to be granted on.
    pub(super) is_held: bool,
    /// Number of grants before the latest one.
    pub(super) attempt: u8,
}

/// The incoming direction of a stream.
#[derive(Debug)]
pub(in crate::driver::verbs) struct GrantedRecv {
    /// Expected messages in order, and the number of the first.
    pub(super) messages: VecDeque<Message>,
    pub(super) first_message: u32,
    /// Pieces in order, and the number of the first.
    pub(super) pieces: VecDeque<Piece>,
    pub(super) first_piece: u32,
    /// All pieces before this one have arrived.
    done: u32,
    told_done: u32,
    /// Granted pieces that have not arrived, and those of them that wait for a rail.
    pub(super) outstanding: usize,
    pub(super) held: usize,
    stage_base: usize,
}

impl GrantedRecv {
    pub(super) fn new(stage_base: usize) -> GrantedRecv {
        GrantedRecv {
            messages: VecDeque::with_capacity(ANNOUNCED),
            first_message: 0,
            pieces: VecDeque::with_capacity(PIECES),
            first_piece: 0,
            done: 0,
            told_done: 0,
            outstanding: 0,
            held: 0,
            stage_base,
        }
    }

    #[inline]
    pub(in crate::driver::verbs) fn done(&self) -> u32 {
        self.done
    }

    #[inline]
    pub(in crate::driver::verbs) fn done_told(&mut self) {
        self.told_done = self.done;
    }

    /// Whether the peer should be told of the pieces that have been received.
    #[inline]
    pub(in crate::driver::verbs) fn owes_done(&self) -> bool {
        let untold = self.done.wrapping_sub(self.told_done);
        untold >= 4 || untold > 0 && self.outstanding == 0
    }

    /// Whether the peer does not know of all pieces that have been received.
    pub(in crate::driver::verbs) fn has_untold_done(&self) -> bool {
        self.done != self.told_done
    }

    /// Number of the next piece to be granted.
    pub(super) fn end(&self) -> u32 {
        self.first_piece.wrapping_add(self.pieces.len() as u32)
    }

    pub(super) fn piece_mut(&mut self, number: u32) -> Option<&mut Piece> {
        self.pieces.get_mut(number.wrapping_sub(self.first_piece) as usize)
    }

    /// The staging place of a piece, if it is free.
    pub(super) fn stage(&self, number: u32, piece_bytes: usize) -> Option<usize> {
        let is_free = number.wrapping_sub(self.first_piece) < STAGES;
        is_free.then_some(self.stage_base + (number % STAGES) as usize * piece_bytes)
    }

    /// The message of a piece.
    pub(super) fn message_of(&self, piece: &Piece) -> &Message {
        &self.messages[piece.message.wrapping_sub(self.first_message) as usize]
    }

    /// The first piece that waits for a rail.
    pub(super) fn first_held(&self) -> Option<u32> {
        if self.held == 0 {
            return None;
        }
        let index = self.pieces.iter().position(|piece| piece.is_held)?;
        Some(self.first_piece.wrapping_add(index as u32))
    }

    /// Notes that a piece is to be granted when there is a rail for it.
    pub(super) fn hold(&mut self, number: u32) {
        if let Some(piece) = self.piece_mut(number).filter(|piece| !piece.is_held) {
            piece.is_held = true;
            self.held += 1;
        }
    }

    /// Notes that a piece is complete.
    fn complete(&mut self, number: u32) {
        if let Some(piece) = self.piece_mut(number)
            && !piece.has_arrived
        {
            piece.has_arrived = true;
            self.outstanding -= 1;
        }
        while self.piece_mut(self.done).is_some_and(|piece| piece.has_arrived) {
            self.done = self.done.wrapping_add(1);
        }
    }
}

impl Peer {
    /// Announces a bulk message of a stream; false when it must be announced again later.
    pub(in crate::driver::verbs) fn announce_granted(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        state: &mut RecvState,
        destination: Option<SpanMut<'_>>,
    ) -> Result<bool, TransportError> {
        let recv = &mut self.granted[stream].recv;
        if recv.messages.len() == ANNOUNCED {
            return Ok(false);
        }
        let number = recv.first_message.wrapping_add(recv.messages.len() as u32);
        state.announced = Some(number.into());
        let destination = destination.and_then(|span| env.locate(span.as_mut_ptr(), span.len()));
        recv.messages.push_back(Message { digest: state.digest, total: state.len, granted: 0, destination });
        self.grant_more(env, stream)?;
        self.flush(env)?;
        Ok(true)
    }

    /// A piece has been written.
    pub(in crate::driver::verbs) fn written(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        (stream, number): (usize, u32),
    ) -> Result<(), TransportError> {
        let Some(granted) = self.granted.get_mut(stream) else {
            return Err(self.protocol("a piece of a stream that does not exist"));
        };
        let Some(piece) = granted.recv.piece_mut(number) else {
            return Err(self.protocol("a piece that was not granted"));
        };
        if piece.is_here || piece.is_held || usize::from(piece.rail) != rail {
            return Ok(());
        }
        piece.is_here = true;
        let len = piece.len as u64;
        self.rails[rail].forget_incoming(len);
        self.settle(env, stream, number)
    }

    /// The sender has sent a piece, before this word of it if that came by the same rail.
    pub(in crate::driver::verbs) fn piece_sent(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        mark: Mark,
    ) -> Result<(), TransportError> {
        let stream = mark.stream as usize;
        let Some(granted) = self.granted.get_mut(stream) else {
            return Err(self.protocol("a checksum for a stream that does not exist"));
        };
        let Some(piece) = granted.recv.piece_mut(mark.piece) else { return Ok(()) };
        if u32::from(piece.attempt) != mark.attempt || piece.is_held {
            return Ok(());
        }
        piece.crc = Some(mark.crc);
        if !piece.is_here && usize::from(piece.rail) == rail {
            return self.grant_again(env, stream, mark.piece);
        }
        self.settle(env, stream, mark.piece)
    }

    /// Completes a piece if its bytes are here and, where that counts, have the right checksum.
    pub(super) fn settle(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        number: u32,
    ) -> Result<(), TransportError> {
        let recv = &mut self.granted[stream].recv;
        let Some(piece) = recv.piece_mut(number).copied() else { return Ok(()) };
        if !piece.is_here || piece.has_arrived {
            return Ok(());
        }
        if env.rules.checksum {
            let Some(crc) = piece.crc else { return Ok(()) };
            if crc != checksum(env.memory.bytes(piece.at, piece.len)) {
                return self.grant_again(env, stream, number);
            }
        }
        recv.complete(number);
        self.grant_more(env, stream)
    }

    /// The peer knows that a piece had arrived which was granted again: the completion came by a rail that had
    /// fallen, and was ignored.
    pub(in crate::driver::verbs) fn had_arrived(
        &mut self,
        env: &mut Env<'_>,
        mark: Mark,
    ) -> Result<(), TransportError> {
        let stream = mark.stream as usize;
        if stream >= self.granted.len() || !env.rules.completions_confirm() {
            return Err(self.protocol("word of a piece that it need not give"));
        }
        let recv = &mut self.granted[stream].recv;
        let Some(piece) = recv.piece_mut(mark.piece).filter(|piece| !piece.is_here) else {
            return Ok(());
        };
        piece.is_here = true;
        let was_held = std::mem::take(&mut piece.is_held);
        let (rail, len) = (usize::from(piece.rail), piece.len as u64);
        recv.held -= usize::from(was_held);
        if !was_held {
            self.rails[rail].forget_incoming(len);
        }
        self.settle(env, stream, mark.piece)
    }

    /// Hands over the pieces that have arrived of the message that is first in line.
    pub(in crate::driver::verbs) fn hand_over_granted(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        state: &mut RecvState,
        sink: &mut dyn Sink,
    ) -> Result<RecvProgress, TransportError> {
        let (recv, counters) = (&mut self.granted[stream].recv, &mut self.streams[stream].counters);
        let before = state.received;
        while let Some(piece) = recv.pieces.front().copied()
            && piece.has_arrived
            && piece.message == recv.first_message
            && state.announced == Some(recv.first_message.into())
        {
            if piece.is_staged {
                if sink.destination().is_some() {
                    counters.copied_bytes += piece.len as u64;
                }
                sink.write(piece.offset, env.memory.span(piece.at, piece.len));
            }
            state.received += piece.len;
            recv.pieces.pop_front();
            recv.first_piece = recv.first_piece.wrapping_add(1);
        }
        if state.received == before {
            self.check()?;
            return Ok(RecvProgress::Idle);
        }
        counters.moved_bytes += (state.received - before) as u64;
        let is_complete = state.received == state.len;
        if is_complete {
            recv.messages.pop_front();
            recv.first_message = recv.first_message.wrapping_add(1);
            counters.received_messages += 1;
            self.streams[stream].recv.end_message();
        }
        self.grant_more(env, stream)?;
        self.flush(env)?;
        Ok(if is_complete { RecvProgress::Complete } else { RecvProgress::Advanced })
    }
}
