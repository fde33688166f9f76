//! Saying where pieces are to go.
//!
//! Whoever receives grants: pieces of announced messages, in order, as many as may be under way, each on the rail by
//! which it is expected to arrive first. Pieces that are lost, or that were to come by a rail that has gone
//! down, are granted again; those for which no device takes a receive wait until there is room.
//!
//! Invariant: on each data queue receives are posted in the order of the grants that are sent for them.
//!
//! What becomes of pieces that arrive is in `incoming`.

use super::{
    incoming::{ANNOUNCED, GRANTED, Message, Piece},
    landing::offset_of,
    outgoing::goes_in_pieces,
    pace::{self, Candidate},
    peer::{Env, Peer},
    rail::{Rail, Taken},
    telling::Notice,
    wire::{Grant, LANES, Mark, is_before},
};
use crate::{RecvState, TransportError, memory::SpanMut};

impl Peer {
    /// Takes note of a message to come; false when there is no room for the note.
    pub(super) fn announce(
        &mut self,
        env: &mut Env<'_>,
        lane: usize,
        state: &mut RecvState,
        destination: Option<SpanMut<'_>>,
    ) -> Result<bool, TransportError> {
        if !goes_in_pieces(state.size, state.len) {
            return Ok(true);
        }
        if state.announced.is_some() {
            return Ok(true);
        }
        let incoming = &mut self.incoming[lane];
        if incoming.messages.len() == ANNOUNCED {
            return Ok(false);
        }
        state.announced = Some(incoming.first_message + incoming.messages.len() as u64);
        let destination = destination.and_then(|span| env.locate(span.as_mut_ptr(), span.len()));
        incoming.messages.push_back(Message {
            digest: state.digest,
            total: state.len,
            granted: 0,
            destination,
        });
        self.grant_more(env, lane)?;
        self.flush(env)?;
        Ok(true)
    }

    /// Grants pieces of expected messages, as many as may be under way.
    pub(super) fn grant_more(&mut self, env: &mut Env<'_>, lane: usize) -> Result<(), TransportError> {
        while let Some(number) = self.incoming[lane].first_held() {
            let len = self.incoming[lane].len_of(number).unwrap_or(0);
            let Some(rail) = self.best_rail(lane, len) else { return Ok(()) };
            self.send_grant(env, lane, number, rail)?;
            if self.incoming[lane].first_held() == Some(number) {
                return Ok(());
            }
        }
        let mut index = 0;
        while let Some(message) = self.incoming[lane].messages.get(index).copied() {
            if message.granted == message.total {
                index += 1;
                continue;
            }
            let incoming = &self.incoming[lane];
            let full = incoming.outstanding >= env.rules.window || incoming.pieces.len() == GRANTED;
            if full || !self.grant(env, lane, index, &message)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Grants the next piece of a message; false when that is not possible now.
    fn grant(
        &mut self,
        env: &mut Env<'_>,
        lane: usize,
        index: usize,
        message: &Message,
    ) -> Result<bool, TransportError> {
        let len = (message.total - message.granted).min(env.rules.piece_bytes);
        let Some(rail) = self.best_rail(lane, len) else { return Ok(false) };
        let incoming = &mut self.incoming[lane];
        let number = incoming.next_piece();
        let lands = env.rules.lands(message.total as u64)
            && incoming.is_unsolicited(&env.rules, number, 0, message.total);
        let destination = message.destination.filter(|_| !lands);
        let is_staged = destination.is_none();
        if is_staged && !incoming.has_landing(number) {
            return Ok(false);
        }
        let landing = incoming.staging_base + offset_of(number, env.rules.piece_bytes);
        let at = destination.map_or(landing, |at| at + message.granted);
        incoming.pieces.push_back(Piece {
            message: incoming.first_message + index as u64,
            offset: message.granted,
            len,
            at,
            is_staged,
            rail: rail as u8,
            is_here: false,
            crc: None,
            arrived: false,
            is_held: false,
            since: None,
            said: 0,
            attempt: 0,
            life: 0,
            foreign: None,
        });
        incoming.messages[index].granted += len;
        incoming.outstanding += 1;
        self.send_grant(env, lane, number, rail)?;
        if lands && self.incoming[lane].early.take(number) {
            self.piece_came(env, rail, (lane, number))?;
        }
        Ok(true)
    }

    /// Pieces of a lane that are to come by a rail.
    fn expected_on(&self, rail: usize, lane: usize) -> usize {
        let to_come = |p: &&Piece| usize::from(p.rail) == rail && !p.arrived && !p.is_held;
        self.incoming[lane].pieces.iter().filter(to_come).count()
    }

    /// The rail by which a piece of a lane is expected to arrive first; a chosen one if there is one.
    fn best_rail(&self, lane: usize, bytes: usize) -> Option<usize> {
        let has_room = |(index, rail): &(usize, &Rail)| {
            let limit = rail.piece_limits[lane];
            rail.takes_pieces(lane) && (limit == usize::MAX || self.expected_on(*index, lane) < limit)
        };
        let up = self.rails.iter().enumerate().filter(has_room);
        let any_chosen = up.clone().any(|(_, rail)| rail.is_chosen);
        let used = up.filter(|(_, rail)| rail.is_chosen || !any_chosen);
        let candidate = |(rail, r): (usize, &Rail)| Candidate {
            rail,
            under_way: r.incoming_bytes,
            cost: r.incoming_cost,
        };
        pace::first(used.map(candidate), bytes as u64, self.granted)
    }

    /// Makes ready for a piece on a rail, and tells the peer.
    fn send_grant(
        &mut self,
        env: &mut Env<'_>,
        lane: usize,
        number: u32,
        rail: usize,
    ) -> Result<(), TransportError> {
        let incoming = &mut self.incoming[lane];
        let Some(piece) = incoming.piece_mut(number) else { return Ok(()) };
        let was_held = std::mem::take(&mut piece.is_held);
        piece.rail = rail as u8;
        piece.life = self.rails[rail].piece_life();
        piece.is_here = false;
        piece.crc = None;
        piece.since = None;
        piece.said = 0;
        piece.foreign = None;
        let piece = *piece;
        incoming.held -= usize::from(was_held);
        let message = incoming.messages[(piece.message - incoming.first_message) as usize];
        let is_unsolicited = incoming.is_unsolicited(&env.rules, number, piece.attempt, message.total);
        self.granted += 1;
        self.rails[rail].incoming_bytes += piece.len as u64;
        let mut grant = Grant {
            address: 0,
            digest: message.digest,
            offset: piece.offset as u64,
            total: message.total as u64,
            piece: number,
            len: piece.len as u32,
            rkey: 0,
            lane: lane as u8,
            rail: rail as u8,
            attempt: piece.attempt,
        };
        if is_unsolicited && env.rules.one_sided {
            return Ok(());
        }
        if env.rules.one_sided {
            let place = env.keys(&self.rails[rail]).remote(piece.at)?;
            (grant.address, grant.rkey) = (place.address, place.rkey);
        } else {
            match self.rails[rail].expect_piece(env, lane, number, (piece.at, piece.len))? {
                Ok(Taken::Both) => {}
                Ok(taken) => return self.hold(env, lane, number, (rail, taken)),
                Err(error) => return self.take_down(env, rail, true, &error.to_string()),
            }
        }
        if !is_unsolicited {
            self.grants.push(grant);
        }
        Ok(())
    }

    /// Lets the peer send pieces without grants from now on, where both ends know their places: with one rail, on
    /// devices that hold sends, it is the next receive of the lane's queue. Called when all grants of earlier
    /// pieces have been sent, since these must be sent before.
    pub(super) fn allow_unsolicited(&mut self, env: &Env<'_>) {
        let [rail] = &self.rails[..] else { return };
        for lane in 0..LANES {
            let incoming = &mut self.incoming[lane];
            let is_behind = incoming.unsolicited_from.is_some() || incoming.held > 0;
            if is_behind || !env.rules.holds_sends() || !rail.takes_pieces(lane) {
                continue;
            }
            let piece = incoming.next_piece();
            incoming.unsolicited_from = Some(piece);
            let mark = Mark { piece, crc: 0, lane: lane as u32, attempt: 0 };
            self.notices.push_back(Notice::Unsolicited(mark));
        }
    }

    /// A device takes fewer receives than it has said: from now on it is asked for no more, and this piece waits.
    #[cold]
    fn hold(
        &mut self,
        env: &mut Env<'_>,
        lane: usize,
        number: u32,
        (rail, taken): (usize, Taken),
    ) -> Result<(), TransportError> {
        self.counters[lane].refused += 1;
        self.incoming[lane].hold(number);
        let len = self.incoming[lane].len_of(number).unwrap_or(0) as u64;
        self.rails[rail].is_not_to_come(len);
        let limit = self.expected_on(rail, lane);
        if limit == 0 {
            return self.take_down(env, rail, false, "the device takes no receive of a piece");
        }
        self.rails[rail].piece_limits[lane] = limit;
        if taken == Taken::Piece {
            return self.take_down(env, rail, true, "the device takes fewer receives than it has said");
        }
        Ok(())
    }

    /// Grants a piece that is lost, or was on a rail that is dead, once more.
    pub(super) fn grant_again(
        &mut self,
        env: &mut Env<'_>,
        lane: usize,
        number: u32,
    ) -> Result<(), TransportError> {
        let Some(piece) = self.incoming[lane].piece_mut(number).copied() else { return Ok(()) };
        if let Some(piece) = self.incoming[lane].piece_mut(number) {
            piece.attempt = piece.attempt.wrapping_add(1);
        }
        if !piece.is_here && !piece.is_held {
            self.rails[usize::from(piece.rail)].is_not_to_come(piece.len as u64);
        }
        match self.best_rail(lane, piece.len) {
            Some(rail) => self.send_grant(env, lane, number, rail),
            None => {
                // It is granted again when a rail comes back, or has room.
                self.incoming[lane].hold(number);
                Ok(())
            }
        }
    }

    /// Grants again all pieces that were expected on a rail in an earlier life of it.
    pub(super) fn regrant_rail(&mut self, env: &mut Env<'_>, rail: usize) -> Result<(), TransportError> {
        for lane in 0..LANES {
            let mut number = self.incoming[lane].done;
            while is_before(number, self.incoming[lane].next_piece()) {
                let (life, takes) = (self.rails[rail].piece_life(), self.rails[rail].takes_pieces(lane));
                let is_void =
                    |p: &mut Piece| !p.arrived && usize::from(p.rail) == rail && (p.life != life || !takes);
                if self.incoming[lane].piece_mut(number).is_some_and(is_void) {
                    self.grant_again(env, lane, number)?;
                }
                number = number.wrapping_add(1);
            }
            self.grant_more(env, lane)?;
        }
        Ok(())
    }
}
