//! Pieces on their way to a peer.
//!
//! A piece lies in registered memory of the caller, or in a staging place. It is kept until the peer's
//! counter tells that it has arrived; in a new epoch pieces are sent again from the first one that the peer
//! lacks.
//!
//! This module is pure.

use crate::driver::verbs::{staging::SendStages, wire::is_before};
use std::collections::VecDeque;

/// Pieces between looks at the bandwidth of rails.
const LOOK_EVERY: u32 = 1024;

/// A piece that is not known to have arrived.
#[derive(Clone, Copy, Debug, Hash)]
pub(in crate::driver::verbs) struct SendPiece {
    pub(in crate::driver::verbs) at: usize,
    pub(in crate::driver::verbs) len: usize,
    /// The staging place that holds it.
    pub(in crate::driver::verbs) stage: Option<u32>,
    /// Number of its stream.
    pub(in crate::driver::verbs) stream: u32,
    pub(in crate::driver::verbs) crc: u32,
    pub(in crate::driver::verbs) digest: u64,
}

/// The outgoing direction.
#[derive(Clone, Debug, Hash)]
pub(in crate::driver::verbs) struct PlacedSend {
    /// Pieces that have not arrived, and the number of the first.
    pieces: VecDeque<SendPiece>,
    first: u32,
    /// Number of the next piece to be posted in this epoch.
    next: u32,
    /// Pieces since the bandwidth of rails was last looked at.
    since_look: u32,
    /// Whether posted pieces were dropped: the receiver tells the number of the next one.
    is_cut: bool,
    stages: SendStages,
}

impl PlacedSend {
    pub(super) fn new(stages: SendStages) -> PlacedSend {
        let pieces = VecDeque::with_capacity(64);
        PlacedSend { pieces, first: 0, next: 0, since_look: 0, is_cut: false, stages }
    }

    /// Number of the next new piece.
    pub(in crate::driver::verbs) fn end(&self) -> u32 {
        self.first.wrapping_add(self.pieces.len() as u32)
    }

    /// Pieces that are not known to have arrived.
    pub(in crate::driver::verbs) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether all pieces have arrived.
    pub(in crate::driver::verbs) fn is_idle(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether all pieces before this one have arrived.
    pub(in crate::driver::verbs) fn has_arrived(&self, end: u32) -> bool {
        !is_before(self.first, end)
    }

    /// Whether the latest piece lies in a staging place, or has arrived.
    pub(in crate::driver::verbs) fn is_last_copied(&self) -> bool {
        self.pieces.back().is_none_or(|piece| piece.stage.is_some())
    }

    /// Whether pieces of a stream are not known to have arrived.
    pub(in crate::driver::verbs) fn has_pieces_of(&self, stream: u32) -> bool {
        self.pieces.iter().any(|piece| piece.stream == stream)
    }

    /// Whether a piece can be added: the number that it will have is known.
    pub(in crate::driver::verbs) fn is_open(&self) -> bool {
        !self.is_cut
    }

    /// Drops the pieces of a stream from the first one that may not have arrived. Returns whether one of them
    /// was posted: then its queue pair must be reset, since the device may still send it.
    ///
    /// Pieces of other streams are in front of them, and have arrived: the receiver gives the queues to one
    /// stream at a time.
    pub(in crate::driver::verbs) fn forget(&mut self, stream: u32) -> bool {
        let mut is_posted = false;
        while let Some(piece) = self.pieces.pop_back_if(|piece| piece.stream == stream) {
            self.stages.put_back(piece.stage);
            is_posted |= is_before(self.end(), self.next);
        }
        self.is_cut |= is_posted;
        is_posted
    }

    /// Takes a staging place; returns its number and its offset.
    pub(in crate::driver::verbs) fn take_stage(&mut self) -> Option<(u32, usize)> {
        self.stages.take()
    }

    /// Adds a piece, which is not posted yet.
    pub(in crate::driver::verbs) fn push(&mut self, piece: SendPiece) {
        self.pieces.push_back(piece);
    }

    /// Whether a piece is to be posted.
    #[inline]
    pub(in crate::driver::verbs) fn has_unposted(&self) -> bool {
        is_before(self.next, self.end())
    }

    /// The next piece to be posted, and its number.
    #[inline]
    pub(in crate::driver::verbs) fn unposted(&self) -> Option<(u32, SendPiece)> {
        if !self.has_unposted() {
            return None;
        }
        Some((self.next, self.pieces[self.next.wrapping_sub(self.first) as usize]))
    }

    /// Notes that a piece has been posted with its trailer.
    #[inline]
    pub(in crate::driver::verbs) fn posted(&mut self, number: u32) {
        self.next = number.wrapping_add(1);
        self.since_look = self.since_look.saturating_add(1);
    }

    /// Whether all pieces before this one have been posted in this epoch.
    pub(in crate::driver::verbs) fn has_posted(&self, end: u32) -> bool {
        !is_before(self.next, end)
    }

    /// Whether a piece has been posted in this epoch.
    pub(in crate::driver::verbs) fn is_posted(&self, number: u32) -> bool {
        is_before(number, self.next)
    }

    /// Takes in the peer's counter: all pieces before this one have arrived.
    #[inline]
    pub(in crate::driver::verbs) fn arrived_before(&mut self, done: u32) {
        // A piece that was not posted can't have arrived.
        while is_before(self.first, done) && is_before(self.first, self.next) {
            let Some(piece) = self.pieces.pop_front() else { break };
            self.stages.put_back(piece.stage);
            self.first = self.first.wrapping_add(1);
        }
    }

    /// Ends an epoch: nothing is posted until [`PlacedSend::resume`].
    pub(in crate::driver::verbs) fn stop(&mut self) {
        self.since_look = 0;
    }

    /// Begins an epoch, in which the pieces from the peer's first missing one on are posted. Returns the
    /// number of pieces that are sent again; `None` for a piece that was never sent.
    pub(in crate::driver::verbs) fn resume(&mut self, first: u32) -> Option<u32> {
        self.arrived_before(first);
        if std::mem::take(&mut self.is_cut) {
            (self.first, self.next) = (first, first);
        }
        if is_before(first, self.first) || is_before(self.next, first) {
            return None;
        }
        let again = self.next.wrapping_sub(first);
        self.next = first;
        Some(again)
    }

    /// Whether it is time to look at the bandwidth of rails.
    pub(in crate::driver::verbs) fn is_look_due(&self) -> bool {
        self.since_look >= LOOK_EVERY
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::verbs::staging::staging;

    fn with_pieces(count: u32) -> PlacedSend {
        let mut send = PlacedSend::new(staging(0, 8, 100).0);
        for number in 0..count {
            let stage = send.take_stage().map(|(stage, _)| stage);
            send.push(SendPiece { at: number as usize, len: 1, stage, stream: 0, crc: 0, digest: 0 });
        }
        send
    }

    fn post_all(send: &mut PlacedSend) -> u32 {
        std::iter::from_fn(|| send.unposted().map(|(number, _)| send.posted(number))).count() as u32
    }

    #[test]
    fn pieces_are_kept_until_they_have_arrived() {
        let mut send = with_pieces(8);
        assert!(send.take_stage().is_none() && send.is_last_copied());
        send.arrived_before(3);
        assert_eq!(send.len(), 8, "none has been posted");
        assert_eq!(post_all(&mut send), 8);
        send.arrived_before(3);
        assert!(send.has_arrived(3) && !send.has_arrived(4) && !send.is_idle());
        assert_eq!(std::iter::from_fn(|| send.take_stage()).count(), 3);
        send.arrived_before(2);
        assert_eq!(send.len(), 5, "an older counter has no effect");
    }

    #[test]
    fn a_new_epoch_sends_again_from_the_first_missing_piece() {
        let mut send = with_pieces(6);
        assert_eq!(post_all(&mut send), 6);
        assert_eq!(send.resume(2), Some(4));
        assert_eq!(send.unposted().map(|(number, piece)| (number, piece.at)), Some((2, 2)));
        assert!(send.is_posted(1) && !send.is_posted(2));
        assert_eq!(send.resume(1), None, "piece 1 had arrived");
        assert_eq!(send.resume(5), None, "piece 4 has not been posted again");
    }
}
