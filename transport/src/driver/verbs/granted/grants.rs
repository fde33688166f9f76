//! Grants: which pieces may be written where, and by which rail.
//!
//! Pieces of announced messages are granted in order, each on the rail by which it is expected to arrive first, as
//! many as may be in flight. Pieces that are lost, or were to come by a rail that has fallen, are granted again.

use super::receive::{Message, PIECES, Piece};
use crate::{
    TransportError,
    driver::verbs::{
        pace::{self, Candidate},
        peer::{Env, Peer},
        rail::Rail,
        wire::{Grant, is_before},
    },
};

impl Peer {
    /// Grants pieces of expected messages, as many as may be in flight.
    pub(in crate::driver::verbs) fn grant_more(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
    ) -> Result<(), TransportError> {
        while let Some(number) = self.granted[stream].recv.first_held() {
            let len = self.granted[stream].recv.piece_mut(number).map_or(0, |piece| piece.len);
            let Some(rail) = self.best_rail(len) else { return Ok(()) };
            self.grant_piece(env, stream, number, rail)?;
        }
        let mut index = 0;
        while let Some(message) = self.granted[stream].recv.messages.get(index).copied() {
            if message.granted == message.total {
                index += 1;
                continue;
            }
            let recv = &self.granted[stream].recv;
            let is_full = recv.outstanding >= env.rules.window || recv.pieces.len() == PIECES;
            if is_full || !self.grant_next(env, stream, index, &message)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Grants the next piece of a message; false when that is not possible now.
    fn grant_next(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        index: usize,
        message: &Message,
    ) -> Result<bool, TransportError> {
        let len = (message.total - message.granted).min(env.rules.piece_len(message.total));
        let Some(rail) = self.best_rail(len) else { return Ok(false) };
        let recv = &mut self.granted[stream].recv;
        let number = recv.end();
        let place = match message.destination {
            Some(at) => Some(at + message.granted),
            None => recv.stage(number, env.rules.piece_bytes),
        };
        let Some(at) = place else { return Ok(false) };
        recv.pieces.push_back(Piece {
            message: recv.first_message.wrapping_add(index as u32),
            offset: message.granted,
            len,
            at,
            is_staged: message.destination.is_none(),
            rail: rail as u8,
            life: 0,
            is_here: false,
            crc: None,
            has_arrived: false,
            is_held: false,
            attempt: 0,
        });
        recv.messages[index].granted += len;
        recv.outstanding += 1;
        self.grant_piece(env, stream, number, rail)?;
        Ok(true)
    }

    /// The rail by which a piece is expected to arrive first; a chosen one if there is one.
    fn best_rail(&self, bytes: usize) -> Option<usize> {
        let up = self.rails.iter().enumerate().filter(|(_, rail)| rail.is_up());
        let any_chosen = up.clone().any(|(_, rail)| rail.is_chosen);
        let used = up.filter(|(_, rail)| rail.is_chosen || !any_chosen);
        let candidate = |(rail, r): (usize, &Rail)| Candidate {
            rail,
            under_way: r.incoming_bytes,
            cost: r.incoming_cost,
        };
        pace::first(used.map(candidate), bytes as u64, self.grants_made)
    }

    /// Grants a piece on a rail.
    fn grant_piece(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        number: u32,
        rail: usize,
    ) -> Result<(), TransportError> {
        let recv = &mut self.granted[stream].recv;
        let Some(piece) = recv.piece_mut(number) else { return Ok(()) };
        let was_held = std::mem::take(&mut piece.is_held);
        piece.rail = rail as u8;
        piece.life = self.rails[rail].life();
        piece.is_here = false;
        piece.crc = None;
        let piece = *piece;
        recv.held -= usize::from(was_held);
        let message = *recv.message_of(&piece);
        self.grants_made += 1;
        self.rails[rail].incoming_bytes += piece.len as u64;
        let place = env.keys(&self.rails[rail]).remote(piece.at)?;
        self.grants.push(Grant {
            address: place.address,
            digest: message.digest,
            offset: piece.offset as u64,
            total: message.total as u64,
            piece: number,
            len: piece.len as u32,
            rkey: place.rkey,
            stream: stream as u8,
            rail: rail as u8,
            attempt: piece.attempt,
            life: piece.life,
        });
        Ok(())
    }

    /// Grants a piece again that is lost, or was granted on a rail that is dead.
    pub(super) fn grant_again(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        number: u32,
    ) -> Result<(), TransportError> {
        let Some(piece) = self.granted[stream].recv.piece_mut(number) else { return Ok(()) };
        piece.attempt = piece.attempt.wrapping_add(1);
        let piece = *piece;
        if !piece.is_here && !piece.is_held {
            self.rails[usize::from(piece.rail)].forget_incoming(piece.len as u64);
        }
        match self.best_rail(piece.len) {
            Some(rail) => self.grant_piece(env, stream, number, rail),
            None => {
                // It is granted again when a rail comes back.
                self.granted[stream].recv.hold(number);
                Ok(())
            }
        }
    }

    /// Grants all pieces again that are expected by a rail in another life than its present one.
    pub(in crate::driver::verbs) fn regrant_rail(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
    ) -> Result<(), TransportError> {
        for stream in 0..self.granted.len() {
            let mut number = self.granted[stream].recv.done();
            while is_before(number, self.granted[stream].recv.end()) {
                let (life, is_up) = (self.rails[rail].life(), self.rails[rail].is_up());
                let is_void = |piece: &mut Piece| {
                    let is_expected = !piece.has_arrived && !piece.is_held;
                    is_expected && usize::from(piece.rail) == rail && (piece.life != life || !is_up)
                };
                if self.granted[stream].recv.piece_mut(number).is_some_and(is_void) {
                    self.grant_again(env, stream, number)?;
                }
                number = number.wrapping_add(1);
            }
            self.grant_more(env, stream)?;
        }
        Ok(())
    }
}
