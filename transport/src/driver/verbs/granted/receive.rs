//! Announced messages, and pieces that arrive.
//!
//! Pieces go to registered memory of the caller, or to staging places, from which they are handed over in
//! place.
//!
//! Invariant: pieces are handed over in order and once.
//!
//! This module is pure.

use crate::driver::verbs::{
    staging::{ArrivedPiece, RecvStages},
    wire::{Mark, is_before},
};
use std::collections::VecDeque;

/// Messages that can be announced ahead.
const ANNOUNCED: usize = 64;
/// Pieces that are granted and not handed over.
const PIECES: usize = 128;

/// A message that is expected.
#[derive(Clone, Copy, Debug, Hash)]
pub(in crate::driver::verbs) struct Message {
    pub(in crate::driver::verbs) digest: u64,
    pub(in crate::driver::verbs) total: usize,
    /// Bytes granted so far.
    granted: usize,
    /// Offset in the slab; staging places when there is none.
    destination: Option<usize>,
}

/// A piece that has been granted and was not handed over.
#[derive(Clone, Copy, Debug, Hash)]
pub(in crate::driver::verbs) struct RecvPiece {
    /// Number of its message among the bulk messages of the stream.
    message: u32,
    /// Offset in its message.
    pub(in crate::driver::verbs) offset: usize,
    pub(in crate::driver::verbs) len: usize,
    pub(in crate::driver::verbs) at: usize,
    pub(in crate::driver::verbs) is_staged: bool,
    /// The rail that it is granted on, and the life of that rail.
    pub(in crate::driver::verbs) rail: u8,
    pub(in crate::driver::verbs) life: u8,
    /// Whether its bytes have come, as its queue pair tells.
    pub(in crate::driver::verbs) is_here: bool,
    /// Its checksum, as the sender has told it.
    crc: Option<u32>,
    has_arrived: bool,
    /// Whether it waits for a rail to be granted on.
    pub(in crate::driver::verbs) is_held: bool,
    /// Number of grants before the latest one.
    pub(in crate::driver::verbs) attempt: u8,
}

/// The incoming direction of a stream.
#[derive(Clone, Debug, Hash)]
pub(in crate::driver::verbs) struct GrantedRecv {
    /// Expected messages in order, and the number of the first.
    messages: VecDeque<Message>,
    first_message: u32,
    /// Pieces in order, and the number of the first.
    pieces: VecDeque<RecvPiece>,
    first_piece: u32,
    /// All pieces before this one have arrived.
    done: u32,
    told_done: u32,
    /// Granted pieces that have not arrived, and those among them that wait for a rail.
    outstanding: usize,
    held: usize,
    stages: RecvStages,
}

impl GrantedRecv {
    pub(super) fn new(stages: RecvStages) -> GrantedRecv {
        GrantedRecv {
            messages: VecDeque::new(),
            first_message: 0,
            pieces: VecDeque::new(),
            first_piece: 0,
            done: 0,
            told_done: 0,
            outstanding: 0,
            held: 0,
            stages,
        }
    }

    /// Whether a piece is granted that has not arrived, so that the peer may write to its place.
    pub(super) fn is_granted(&self) -> bool {
        self.outstanding > self.held
    }

    /// Drops all messages and pieces. Later pieces have later numbers.
    pub(super) fn clear(&mut self) {
        self.first_message = self.first_message.wrapping_add(self.messages.len() as u32);
        self.first_piece = self.end();
        self.done = self.first_piece;
        self.messages.clear();
        self.pieces.clear();
        (self.outstanding, self.held) = (0, 0);
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

    /// Whether no further message can be announced now.
    pub(in crate::driver::verbs) fn is_full(&self) -> bool {
        self.messages.len() == ANNOUNCED
    }

    /// Adds a message, which goes to registered memory at the offset `destination`, if that is given. Returns
    /// its number among the bulk messages of the stream.
    pub(in crate::driver::verbs) fn announce(
        &mut self,
        digest: u64,
        total: usize,
        destination: Option<usize>,
    ) -> u32 {
        let number = self.first_message.wrapping_add(self.messages.len() as u32);
        self.messages.push_back(Message { digest, total, granted: 0, destination });
        number
    }

    /// Number of the next piece to be granted.
    pub(in crate::driver::verbs) fn end(&self) -> u32 {
        self.first_piece.wrapping_add(self.pieces.len() as u32)
    }

    fn piece_mut(&mut self, number: u32) -> Option<&mut RecvPiece> {
        self.pieces.get_mut(number.wrapping_sub(self.first_piece) as usize)
    }

    /// A piece that has been granted and was not handed over.
    pub(in crate::driver::verbs) fn piece(&self, number: u32) -> Option<RecvPiece> {
        self.pieces.get(number.wrapping_sub(self.first_piece) as usize).copied()
    }

    /// The first message that is not granted completely, from the one at `index` on: its index, its bytes,
    /// and those that are granted. `None` while as many pieces are granted as may be.
    pub(in crate::driver::verbs) fn ungranted(
        &self,
        index: usize,
        window: usize,
    ) -> Option<(usize, usize, usize)> {
        let mut messages = self.messages.iter().enumerate().skip(index);
        let (index, message) = messages.find(|(_, message)| message.granted < message.total)?;
        let is_full = self.outstanding >= window || self.pieces.len() == PIECES;
        (!is_full).then_some((index, message.total, message.granted))
    }

    /// Divides a piece of `len` bytes off the message at `index`; returns its number, or `None` if there is
    /// no place for it.
    pub(in crate::driver::verbs) fn divide(&mut self, index: usize, len: usize) -> Option<u32> {
        let number = self.end();
        let message = &mut self.messages[index];
        let at = match message.destination {
            Some(at) => at + message.granted,
            None => self.stages.place(number, self.first_piece)?,
        };
        self.pieces.push_back(RecvPiece {
            message: self.first_message.wrapping_add(index as u32),
            offset: message.granted,
            len,
            at,
            is_staged: message.destination.is_none(),
            rail: 0,
            life: 0,
            is_here: false,
            crc: None,
            has_arrived: false,
            is_held: false,
            attempt: 0,
        });
        message.granted += len;
        self.outstanding += 1;
        Some(number)
    }

    /// Notes that a piece is granted on a rail in a life; returns the piece and its message.
    pub(in crate::driver::verbs) fn grant(
        &mut self,
        number: u32,
        rail: u8,
        life: u8,
    ) -> Option<(RecvPiece, Message)> {
        let piece = self.piece_mut(number)?;
        let was_held = std::mem::take(&mut piece.is_held);
        (piece.rail, piece.life) = (rail, life);
        piece.is_here = false;
        piece.crc = None;
        let piece = *piece;
        self.held -= usize::from(was_held);
        Some((piece, self.messages[piece.message.wrapping_sub(self.first_message) as usize]))
    }

    /// Begins the next attempt of a piece, which must be granted again; returns the piece.
    pub(in crate::driver::verbs) fn begin_attempt(&mut self, number: u32) -> Option<RecvPiece> {
        let piece = self.piece_mut(number)?;
        piece.attempt = piece.attempt.wrapping_add(1);
        Some(*piece)
    }

    /// Whether a piece is expected by a rail whose present life is not the one of its grant, or that is not
    /// up.
    pub(in crate::driver::verbs) fn is_void(
        &self,
        number: u32,
        rail: usize,
        (life, is_up): (u8, bool),
    ) -> bool {
        self.piece(number).is_some_and(|piece| {
            let is_expected = !piece.has_arrived && !piece.is_held;
            is_expected && usize::from(piece.rail) == rail && (piece.life != life || !is_up)
        })
    }

    /// The first piece that waits for a rail.
    pub(in crate::driver::verbs) fn first_held(&self) -> Option<u32> {
        if self.held == 0 {
            return None;
        }
        let index = self.pieces.iter().position(|piece| piece.is_held)?;
        Some(self.first_piece.wrapping_add(index as u32))
    }

    /// Notes that a piece is to be granted when there is a rail for it.
    pub(in crate::driver::verbs) fn hold(&mut self, number: u32) {
        if let Some(piece) = self.piece_mut(number).filter(|piece| !piece.is_held) {
            piece.is_held = true;
            self.held += 1;
        }
    }

    /// Notes that a piece has been written by a rail; returns its bytes, unless it was not expected by that
    /// rail.
    pub(in crate::driver::verbs) fn written(&mut self, number: u32, rail: usize) -> Option<usize> {
        let piece = self.piece_mut(number)?;
        if piece.is_here || piece.is_held || usize::from(piece.rail) != rail {
            return None;
        }
        piece.is_here = true;
        Some(piece.len)
    }

    /// Takes in the message, which came by a rail, that a piece has been sent. It is behind the piece if both
    /// came by the same rail.
    pub(in crate::driver::verbs) fn was_sent(&mut self, mark: &Mark, rail: usize) -> Came {
        let Some(piece) = self.piece_mut(mark.piece) else { return Came::Stale };
        if u32::from(piece.attempt) != mark.attempt || piece.is_held {
            return Came::Stale;
        }
        piece.crc = Some(mark.crc);
        if !piece.is_here && usize::from(piece.rail) == rail { Came::Lost } else { Came::Noted }
    }

    /// Notes that a piece had arrived before it was granted again. Returns its rail and its bytes, which are
    /// 0 if it waited for a rail; `None` if its arrival is known.
    pub(in crate::driver::verbs) fn had_arrived(&mut self, number: u32) -> Option<(usize, u64)> {
        let piece = self.piece_mut(number).filter(|piece| !piece.is_here)?;
        piece.is_here = true;
        let was_held = std::mem::take(&mut piece.is_held);
        let (rail, len) = (usize::from(piece.rail), piece.len as u64);
        self.held -= usize::from(was_held);
        Some((rail, if was_held { 0 } else { len }))
    }

    /// A piece whose bytes have come and are not checked yet, with its checksum as far as the sender has told
    /// it.
    pub(in crate::driver::verbs) fn unsettled(&self, number: u32) -> Option<(RecvPiece, Option<u32>)> {
        let piece = self.piece(number).filter(|piece| piece.is_here && !piece.has_arrived)?;
        Some((piece, piece.crc))
    }

    /// Notes that a piece is complete.
    pub(in crate::driver::verbs) fn complete(&mut self, number: u32) {
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

    /// Takes out the next piece of the first message, if it has arrived. `announced` is the number of the
    /// message that the caller receives.
    pub(in crate::driver::verbs) fn pop(&mut self, announced: Option<u64>) -> Option<ArrivedPiece> {
        let first = self.first_message;
        if announced != Some(first.into()) {
            return None;
        }
        let piece = self.pieces.pop_front_if(|piece| piece.has_arrived && piece.message == first)?;
        self.first_piece = self.first_piece.wrapping_add(1);
        let RecvPiece { offset, len, at, is_staged, .. } = piece;
        Some(ArrivedPiece { offset, len, at, is_staged })
    }

    /// Takes out the first message, all of whose pieces have been handed over.
    pub(in crate::driver::verbs) fn end_message(&mut self) {
        self.messages.pop_front();
        self.first_message = self.first_message.wrapping_add(1);
    }

    /// Numbers of the pieces that have not arrived, or arrived behind a missing one.
    pub(in crate::driver::verbs) fn numbers(&self) -> impl Iterator<Item = u32> + use<> {
        let (mut number, end) = (self.done, self.end());
        std::iter::from_fn(move || {
            let next = is_before(number, end).then_some(number);
            number = number.wrapping_add(1);
            next
        })
    }
}

/// Consequence of the message that a piece has been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::driver::verbs) enum Came {
    /// The message is of an earlier attempt, or of a piece that has been handed over.
    Stale,
    /// The piece is lost.
    Lost,
    /// The piece has come, or may still come by another rail.
    Noted,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::verbs::staging::staging;

    const PIECE: usize = 100;

    /// Grants all pieces that may be, on rail 0 in life 1.
    fn grant_all(recv: &mut GrantedRecv, window: usize) -> Vec<RecvPiece> {
        let mut granted = Vec::new();
        while let Some((index, total, granted_bytes)) = recv.ungranted(0, window) {
            let Some(number) = recv.divide(index, (total - granted_bytes).min(PIECE)) else { break };
            granted.extend(recv.grant(number, 0, 1).map(|(piece, _)| piece));
        }
        granted
    }

    fn expecting(total: usize, destination: Option<usize>) -> GrantedRecv {
        let mut recv = GrantedRecv::new(staging(0, 8, PIECE).1);
        assert_eq!(recv.announce(7, total, destination), 0);
        recv
    }

    fn mark(piece: u32, attempt: u32) -> Mark {
        Mark { piece, crc: 9, stream: 0, attempt }
    }

    #[test]
    fn pieces_are_granted_as_many_as_may_be_in_flight() {
        let mut recv = expecting(450, Some(5000));
        let places: Vec<(usize, usize)> =
            grant_all(&mut recv, 3).iter().map(|piece| (piece.at, piece.len)).collect();
        assert_eq!(places, [(5000, 100), (5100, 100), (5200, 100)]);
        recv.complete(1);
        assert_eq!((grant_all(&mut recv, 3).len(), recv.done()), (1, 0));
        let mut staged = expecting(20 * PIECE, None);
        assert_eq!(grant_all(&mut staged, 64).len(), 8, "places");
    }

    #[test]
    fn pieces_are_handed_over_in_order_and_once() {
        let mut recv = expecting(200, Some(0));
        grant_all(&mut recv, 8);
        assert_eq!((recv.written(1, 0), recv.written(1, 0), recv.written(0, 1)), (Some(100), None, None));
        recv.complete(1);
        assert!(recv.pop(Some(0)).is_none());
        recv.complete(0);
        assert!(recv.owes_done() && recv.pop(Some(1)).is_none(), "another message");
        assert_eq!(recv.pop(Some(0)).map(|piece| piece.offset), Some(0));
        assert_eq!(recv.pop(Some(0)).map(|piece| piece.offset), Some(100));
        recv.end_message();
        assert_eq!(recv.announce(7, 1, None), 1);
    }

    #[test]
    fn a_piece_is_lost_if_word_of_it_overtakes_it_on_its_rail() {
        let mut recv = expecting(200, Some(0));
        grant_all(&mut recv, 8);
        assert_eq!(recv.was_sent(&mark(0, 1), 0), Came::Stale);
        assert_eq!(recv.was_sent(&mark(0, 0), 1), Came::Noted, "by another rail");
        assert_eq!(recv.was_sent(&mark(0, 0), 0), Came::Lost);
        assert_eq!(recv.begin_attempt(0).map(|piece| piece.attempt), Some(1));
        recv.written(1, 0).expect("expected");
        assert_eq!(recv.was_sent(&mark(1, 0), 0), Came::Noted);
        assert_eq!(recv.unsettled(1).map(|(_, crc)| crc), Some(Some(9)));
        assert!(recv.unsettled(0).is_none());
    }

    #[test]
    fn pieces_of_a_failed_rail_wait_for_another_one() {
        let mut recv = expecting(200, Some(0));
        grant_all(&mut recv, 8);
        assert!(recv.is_void(0, 0, (2, true)) && recv.is_void(0, 0, (1, false)));
        assert!(!recv.is_void(0, 0, (1, true)) && !recv.is_void(0, 1, (2, true)));
        recv.numbers().for_each(|number| recv.hold(number));
        assert_eq!((recv.first_held(), recv.is_void(0, 0, (2, true))), (Some(0), false));
        assert_eq!(recv.grant(0, 1, 5).map(|(piece, _)| (piece.rail, piece.life)), Some((1, 5)));
        assert_eq!(recv.first_held(), Some(1));
        assert_eq!(recv.had_arrived(1), Some((0, 0)), "it waited");
        assert_eq!((recv.had_arrived(0), recv.had_arrived(0)), (Some((1, 100)), None));
        assert_eq!(recv.first_held(), None);
    }
}
