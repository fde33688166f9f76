//! The steps of a receiver without memory and devices, for the model of both ends.

use super::*;

impl PlacedRecv {
    /// Announces a message of that many pieces of one byte, which begins at the offset 0.
    pub(in super::super) fn announce(&mut self, pieces: usize) {
        let destination = Some(0);
        self.messages.push_back(Message { stream: 0, number: 0, total: pieces, divided: 0, destination });
    }

    /// Number of the first piece that was not handed over.
    pub(in super::super) fn first(&self) -> u32 {
        self.first_piece
    }

    /// The next piece whose receives are posted, as in [`Peer::post_receives`], and its place.
    pub(in super::super) fn post(&mut self, window: u32) -> Option<(u32, usize)> {
        if self.next - self.done >= window || self.next == self.end() && !self.divide(1) {
            return None;
        }
        let number = self.next;
        self.next += 1;
        Some((number, self.piece_mut(number)?.at))
    }

    /// As in [`Peer::piece_came`].
    pub(in super::super) fn came(&mut self, number: u32) {
        if let Some(piece) = self.piece_mut(number) {
            piece.is_here = true;
        }
    }

    /// As in [`Peer::trailer_came`]; false when a message was lost.
    pub(in super::super) fn trailer(&mut self, number: u32) -> bool {
        match self.piece_mut(number) {
            Some(piece) if !piece.is_here => return false,
            Some(_) => self.complete(number),
            None => {}
        }
        true
    }

    /// Hands over the first piece, if it has arrived, as in [`Peer::hand_over_placed`]; returns its place.
    pub(in super::super) fn hand_over(&mut self) -> Option<usize> {
        let piece = self.pieces.pop_front_if(|piece| piece.has_arrived)?;
        self.first_piece = self.first_piece.wrapping_add(1);
        Some(piece.at)
    }
}
