//! Grants: the places of pieces, and the choice of their rails.
//!
//! Pieces of announced messages are granted in order, each on the rail by which it is expected to arrive
//! first, as many as may be in flight. Pieces that are lost, or were expected by a rail that has failed, are
//! granted again.

use super::Peer;
use crate::{
    TransportError,
    driver::verbs::{
        bandwidth,
        env::Env,
        rail::Rail,
        wire::{Grant, immediate},
    },
};

impl Peer {
    /// Grants pieces of expected messages, as many as may be in flight.
    pub(super) fn grant_more(&mut self, env: &mut Env<'_>, stream: usize) -> Result<(), TransportError> {
        while let Some(number) = self.streams[stream].granted.recv.first_held() {
            let len = self.streams[stream].granted.recv.piece(number).map_or(0, |piece| piece.len);
            let Some(rail) = self.best_rail(len) else { return Ok(()) };
            self.grant_piece(env, stream, number, rail)?;
        }
        let mut index = 0;
        while let Some((next, total, granted)) =
            self.streams[stream].granted.recv.ungranted(index, env.rules.window)
        {
            index = next;
            let len = (total - granted).min(env.rules.piece_len(total));
            let Some(rail) = self.best_rail(len) else { return Ok(()) };
            let Some(number) = self.streams[stream].granted.recv.divide(index, len) else { return Ok(()) };
            self.grant_piece(env, stream, number, rail)?;
        }
        Ok(())
    }

    /// Selects the rail by which a piece is expected to arrive first, of the preferred ones if any of them is
    /// up.
    fn best_rail(&self, bytes: usize) -> Option<usize> {
        let up = self.rails.iter().enumerate().filter(|(_, rail)| rail.is_up());
        let any_chosen = up.clone().any(|(_, rail)| rail.is_chosen);
        let used = up.filter(|(_, rail)| rail.is_chosen || !any_chosen);
        let candidate = |(index, rail): (usize, &Rail)| rail.incoming(index);
        bandwidth::select_rail(used.map(candidate), bytes as u64, self.grants_made)
    }

    /// Grants a piece on a rail.
    fn grant_piece(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        number: u32,
        rail: usize,
    ) -> Result<(), TransportError> {
        let life = self.rails[rail].life();
        let granted = self.streams[stream].granted.recv.grant(number, rail as u8, life);
        let Some((piece, message)) = granted else { return Ok(()) };
        self.grants_made += 1;
        self.rails[rail].expect_incoming(piece.len as u64);
        let place = env.keys(self.rails[rail].port()).remote(piece.at)?;
        self.grants.push(Grant {
            address: place.address,
            digest: message.digest,
            offset: piece.offset as u64,
            total: message.total as u64,
            piece: number,
            len: piece.len as u32,
            rkey: place.rkey,
            stream: self.streams[stream].number(),
            immediate: immediate(stream, number),
            rail: rail as u8,
            attempt: piece.attempt,
            life: piece.life,
            zero: 0,
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
        let Some(piece) = self.streams[stream].granted.recv.begin_attempt(number) else { return Ok(()) };
        if !piece.is_here && !piece.is_held {
            self.rails[usize::from(piece.rail)].forget_incoming(piece.len as u64);
        }
        match self.best_rail(piece.len) {
            Some(rail) => self.grant_piece(env, stream, number, rail),
            None => {
                // The piece is granted again when a rail comes back.
                self.streams[stream].granted.recv.hold(number);
                Ok(())
            }
        }
    }

    /// Grants all pieces again that are expected by a rail in another life than its present one.
    pub(super) fn regrant_rail(&mut self, env: &mut Env<'_>, rail: usize) -> Result<(), TransportError> {
        for stream in self.streams.indices() {
            if self.streams.get(stream).is_none() {
                continue;
            }
            for number in self.streams[stream].granted.recv.numbers() {
                let present = (self.rails[rail].life(), self.rails[rail].is_up());
                if self.streams[stream].granted.recv.is_void(number, rail, present) {
                    self.grant_again(env, stream, number)?;
                }
            }
            self.grant_more(env, stream)?;
        }
        Ok(())
    }
}
