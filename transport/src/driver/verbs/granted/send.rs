//! Pieces on their way to a peer.
//!
//! A piece is written to the place of its grant, from registered memory or from a staging place. It is kept
//! until it is known to have arrived: by the completion of a reliable queue pair, or by the peer's counter.
//!
//! The sender may know of an arrival earlier than the peer: a piece that has arrived by a rail that failed
//! before the peer polled its completion is granted again. Its sender, whose memory may be in other use by
//! then, answers that it has arrived.
//!
//! Invariants: pieces are numbered without gaps; a piece is kept until it has arrived, so that it can be sent
//! again.
//!
//! This module is pure.

use crate::driver::verbs::{
    staging::SendStages,
    wire::{Grant, is_before},
};
use std::collections::VecDeque;

/// Grants and pieces of a stream; more than any peer grants.
const PIECES: usize = 256;

/// A piece that has been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::driver::verbs) struct SendPiece {
    pub(in crate::driver::verbs) at: usize,
    pub(in crate::driver::verbs) len: usize,
    /// The staging place that holds it.
    pub(in crate::driver::verbs) stage: Option<u32>,
    pub(in crate::driver::verbs) has_arrived: bool,
    pub(in crate::driver::verbs) digest: u64,
    pub(in crate::driver::verbs) total: u64,
    pub(in crate::driver::verbs) crc: u32,
    /// Attempt of its latest grant, and the rail by which it was last sent.
    pub(in crate::driver::verbs) attempt: u8,
    pub(in crate::driver::verbs) rail: u8,
}

/// The outgoing direction of a stream.
#[derive(Clone, Debug, Hash)]
pub(in crate::driver::verbs) struct GrantedSend {
    /// Grants of pieces that were not sent yet, in order.
    grants: VecDeque<Grant>,
    /// Grants of pieces that are sent again, in order; they go before new ones.
    again: VecDeque<Grant>,
    /// Pieces that are not known to have arrived, and the number of the first.
    pieces: VecDeque<SendPiece>,
    first: u32,
    stages: SendStages,
}

impl GrantedSend {
    pub(super) fn new(stages: SendStages) -> GrantedSend {
        GrantedSend {
            grants: VecDeque::new(),
            again: VecDeque::new(),
            pieces: VecDeque::new(),
            first: 0,
            stages,
        }
    }

    /// Drops all grants and pieces. Later pieces have later numbers.
    pub(super) fn clear(&mut self) {
        self.grants.clear();
        self.again.clear();
        while !self.pieces.is_empty() {
            self.pop();
        }
    }

    /// Drops all grants: the peer's end of the stream has ended.
    pub(in crate::driver::verbs) fn drop_grants(&mut self) {
        self.grants.clear();
        self.again.clear();
    }

    /// Number of the next new piece.
    #[inline]
    pub(in crate::driver::verbs) fn end(&self) -> u32 {
        self.first.wrapping_add(self.pieces.len() as u32)
    }

    /// Keeps the grant of a piece that has not been sent, in place of an earlier one; false when there is no
    /// room.
    pub(in crate::driver::verbs) fn keep_grant(&mut self, grant: Grant) -> bool {
        let later = self.grants.iter().position(|kept| !is_before(kept.piece, grant.piece));
        match later {
            Some(at) if self.grants[at].piece == grant.piece => self.grants[at] = grant,
            _ if self.grants.len() >= PIECES => return false,
            Some(at) => self.grants.insert(at, grant),
            None => self.grants.push_back(grant),
        }
        true
    }

    /// Takes in the peer's counter: it has received all pieces before this one.
    #[inline]
    pub(in crate::driver::verbs) fn arrived_before(&mut self, done: u32) {
        while is_before(self.first, done) && !self.pieces.is_empty() {
            self.pop();
        }
    }

    /// Notes that a completion of a rail confirms a piece. If the piece was sent again by another rail, its
    /// memory is in use until that one completes.
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
            self.stages.put_back(piece.stage);
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

    /// The grant of the next new piece, if it is here.
    #[inline]
    pub(in crate::driver::verbs) fn next_grant(&self) -> Option<Grant> {
        self.grants.front().filter(|grant| grant.piece == self.end()).copied()
    }

    /// Drops the grant of a new piece that has been sent.
    pub(in crate::driver::verbs) fn end_grant(&mut self, number: u32) {
        self.grants.pop_front_if(|first| first.piece == number);
    }

    /// Takes a staging place; returns its number and its offset.
    pub(in crate::driver::verbs) fn take_stage(&mut self) -> Option<(u32, usize)> {
        self.stages.take()
    }

    /// Adds the piece with the next number.
    pub(in crate::driver::verbs) fn push(&mut self, piece: SendPiece) {
        self.pieces.push_back(piece);
    }

    /// Removes the latest piece, which could not be posted.
    pub(in crate::driver::verbs) fn undo_push(&mut self) {
        if let Some(piece) = self.pieces.pop_back() {
            self.stages.put_back(piece.stage);
        }
    }

    /// Whether the latest piece lies in a staging place, or has arrived.
    pub(in crate::driver::verbs) fn is_last_copied(&self) -> bool {
        self.pieces.back().is_none_or(|piece| piece.stage.is_some())
    }

    /// A piece that is kept.
    pub(in crate::driver::verbs) fn piece(&self, number: u32) -> Option<SendPiece> {
        self.pieces.get(number.wrapping_sub(self.first) as usize).copied()
    }

    /// Notes the attempt of the latest grant of a piece; returns the piece, unless it has arrived and is not
    /// kept.
    pub(in crate::driver::verbs) fn note_attempt(&mut self, grant: &Grant) -> Option<SendPiece> {
        let piece = self.pieces.get_mut(grant.piece.wrapping_sub(self.first) as usize)?;
        piece.attempt = grant.attempt;
        Some(*piece)
    }

    /// Whether a piece has arrived and is not kept any more.
    pub(in crate::driver::verbs) fn is_freed(&self, number: u32) -> bool {
        is_before(number, self.first)
    }

    /// Adds a grant by which a piece must be sent again.
    pub(in crate::driver::verbs) fn repeat(&mut self, grant: Grant) {
        self.again.push_back(grant);
    }

    /// Whether pieces must be sent again.
    pub(in crate::driver::verbs) fn has_repetitions(&self) -> bool {
        !self.again.is_empty()
    }

    /// The first grant by which a piece must be sent again.
    #[inline]
    pub(in crate::driver::verbs) fn next_repetition(&self) -> Option<Grant> {
        self.again.front().copied()
    }

    /// Drops a grant that has been dealt with. Its rail may have failed by this, and taken the grant with it.
    pub(in crate::driver::verbs) fn end_repetition(&mut self, grant: &Grant) {
        self.again.pop_front_if(|first| *first == *grant);
    }

    /// Notes the rail by which a piece has been sent again.
    pub(in crate::driver::verbs) fn repeated(&mut self, grant: &Grant) {
        if let Some(piece) = self.pieces.get_mut(grant.piece.wrapping_sub(self.first) as usize) {
            piece.rail = grant.rail;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::verbs::staging::staging;
    use bytemuck::Zeroable;

    fn grant(piece: u32, attempt: u8) -> Grant {
        Grant { piece, attempt, ..Grant::zeroed() }
    }

    fn with_pieces(count: u32) -> GrantedSend {
        let mut send = GrantedSend::new(staging(0, 8, 100).0);
        for number in 0..count {
            let stage = send.take_stage().map(|(stage, _)| stage);
            let (at, len, has_arrived) = (number as usize, 1, false);
            let piece =
                SendPiece { at, len, stage, has_arrived, digest: 0, total: 0, crc: 0, attempt: 0, rail: 0 };
            send.push(piece);
        }
        send
    }

    #[test]
    fn grants_are_used_in_the_order_of_their_pieces() {
        let mut send = with_pieces(1);
        [3, 2, 1].into_iter().for_each(|piece| assert!(send.keep_grant(grant(piece, 0))));
        assert!(send.keep_grant(grant(1, 1)), "in place of the earlier one");
        assert_eq!(send.next_grant(), Some(grant(1, 1)));
        send.end_grant(1);
        assert_eq!(send.next_grant(), None, "piece 1 was not sent");
        let mut many = with_pieces(0);
        assert!((0..PIECES as u32).all(|piece| many.keep_grant(grant(piece, 0))));
        assert!(!many.keep_grant(grant(PIECES as u32, 0)));
    }

    #[test]
    fn pieces_are_kept_until_they_have_arrived() {
        let mut send = with_pieces(8);
        assert!(send.take_stage().is_none());
        send.arrived(1, 0);
        assert_eq!(send.piece(0).map(|piece| piece.at), Some(0), "piece 0 has not arrived");
        send.arrived(0, 0);
        assert!(send.piece(1).is_none() && send.has_arrived(2) && send.is_freed(1) && !send.is_freed(2));
        send.arrived_before(5);
        assert_eq!(std::iter::from_fn(|| send.take_stage()).count(), 5);
        send.undo_push();
        assert_eq!(send.end(), 7);
    }

    #[test]
    fn a_piece_sent_again_by_another_rail_is_in_use_until_that_one_completes() {
        let mut send = with_pieces(1);
        let again = Grant { rail: 1, ..grant(0, 1) };
        assert_eq!(send.note_attempt(&again).map(|piece| piece.attempt), Some(1));
        send.repeat(again);
        assert_eq!(send.next_repetition(), Some(again));
        send.repeated(&again);
        send.end_repetition(&again);
        send.arrived(0, 0);
        assert!(!send.is_idle() && !send.has_repetitions());
        send.arrived(0, 1);
        assert!(send.is_idle());
    }

    #[test]
    fn a_failed_rail_repeats_nothing() {
        let mut send = with_pieces(2);
        send.repeat(Grant { rail: 1, ..grant(0, 1) });
        send.repeat(grant(1, 1));
        send.forget_rail(1);
        assert_eq!(send.next_repetition(), Some(grant(1, 1)));
    }
}
