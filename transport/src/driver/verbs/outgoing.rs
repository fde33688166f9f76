//! Messages on their way to a peer, on one lane.
//!
//! A small message is copied into a slot and is then on its way. A larger one is cut into pieces by the *receiver*: it
//! grants places for them, in order, and each piece goes from the sender's registered memory, or from a staging place
//! that it was copied to, right there. The sender's memory is free again once its last piece is known to have arrived:
//! by the completion of a reliable queue pair, or by the peer's counter.
//!
//! A completion may know more than the peer: a piece that has arrived on a rail that went down before the peer had looked
//! at its completions is granted again. Its sender, whose memory may be in other use by then, says that it has arrived.
//!
//! Invariants: pieces are numbered per lane without gaps; a piece is kept until it has arrived, so that it can be sent
//! again when the peer grants it again.

use super::{
    landing::{HEAD_BYTES, LANDINGS, PieceHead, offset_of},
    peer::{Env, Peer, Rules},
    rail::Rail,
    telling::Notice,
    wire::{CONFIRM, Grant, Kind, Mark, PAYLOAD_BYTES, checksum, immediate, is_before},
};
use crate::{
    SendProgress, SendState, SizeClass, TransportError,
    memory::Span,
    verbs::{Operation, PostError, RemoteRun},
};
use std::{collections::VecDeque, time::Instant};

/// Pieces of a lane that are granted and not known to have arrived: more than any peer grants.
pub(super) const PIECES: usize = 256;

/// Does a message of this length go in pieces? Both ends ask the same.
#[inline]
pub(super) fn goes_in_pieces(size: SizeClass, len: usize) -> bool {
    len > PAYLOAD_BYTES || size == SizeClass::Bulk && len > 0
}

/// Messages up to this length are copied before they are sent.
const COPIED_BYTES: u64 = 32 << 10;

/// In a grant whose rail has gone down: the peer will grant the piece again.
const FORGOTTEN: u8 = u8::MAX;

/// Marks a wait for an eager message to be matched, in [`SendState`].
const MATCH: u64 = 1 << 32;

/// A piece that has been sent.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Where its bytes are.
    at: usize,
    len: usize,
    /// The staging place that they lie in, to be given back.
    staging: Option<u32>,
    arrived: bool,
    /// Names the operation and the bytes of its message.
    digest: u64,
    total: u64,
    crc: u32,
    /// Of the latest grant of it.
    attempt: u16,
    /// By which it was last sent.
    rail: u8,
}

impl Piece {
    /// Returns our own grant of a piece, by its number, that is sent once more.
    fn grant(&self, lane: usize, piece: u32) -> Grant {
        Grant {
            address: 0,
            digest: self.digest,
            offset: 0,
            total: self.total,
            piece,
            len: self.len as u32,
            rkey: 0,
            lane: lane as u8,
            rail: 0,
            attempt: self.attempt,
        }
    }
}

/// One lane's outgoing side.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// The number of the message that is next to be sent.
    pub(super) message: u32,
    /// Eager messages sent, and how many may be.
    sent: u32,
    limit: u32,
    /// Grants that are not used yet, in the order of their pieces. Pieces between them need none.
    grants: VecDeque<Grant>,
    /// Grants of pieces that are to be sent once more, in order; they go before new ones.
    again: VecDeque<Grant>,
    /// All pieces before this one have been handed over by the peer.
    taken: u32,
    /// Pieces sent that are not known to have arrived, the oldest first.
    pieces: VecDeque<Piece>,
    /// The number of the first of these.
    arrived: u32,
    /// Free staging places, by offset.
    staging: Vec<u32>,
    staging_base: usize,
    /// Pieces from this number on need no grant.
    unsolicited_from: Option<u32>,
}

impl Outgoing {
    /// `staging` places of a piece each begin at `staging_base`.
    pub(super) fn new(limit: u32, staging_base: usize, staging: u32) -> Outgoing {
        Outgoing {
            message: 0,
            sent: 0,
            limit,
            grants: VecDeque::with_capacity(PIECES),
            again: VecDeque::new(),
            taken: 0,
            pieces: VecDeque::with_capacity(PIECES),
            arrived: 0,
            staging: (0..staging).collect(),
            staging_base,
            unsolicited_from: None,
        }
    }

    /// All pieces need no grant, until the rail falls.
    pub(super) fn start_unsolicited(&mut self) {
        self.unsolicited_from = Some(self.next());
    }

    /// The number of the next new piece.
    fn next(&self) -> u32 {
        self.arrived.wrapping_add(self.pieces.len() as u32)
    }

    /// Returns the grant of the next piece of a message: the peer's, or our own where none is needed.
    fn next_grant(&self, lane: usize, rules: &Rules, state: &SendState, total: usize) -> Option<Grant> {
        let piece = self.next();
        if let Some(grant) = self.grants.front().filter(|grant| grant.piece == piece) {
            return Some(*grant);
        }
        let is_allowed = self.unsolicited_from.is_some_and(|first| !is_before(piece, first));
        let has_place = match rules.one_sided {
            true => piece.wrapping_sub(self.taken) < LANDINGS,
            false => self.pieces.len() < rules.window,
        };
        if !is_allowed || !has_place || !rules.may_be_unsolicited(total as u64) {
            return None;
        }
        let len = (total - state.staged).min(rules.piece_bytes);
        Some(Grant {
            address: 0,
            digest: state.digest,
            offset: state.staged as u64,
            total: total as u64,
            piece,
            len: len as u32,
            rkey: 0,
            lane: lane as u8,
            rail: 0,
            attempt: 0,
        })
    }

    /// Keeps the grant of a piece that has not been sent, in the place of an earlier grant of it; false when there is
    /// no room.
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

    /// Takes note that the piece of a grant has been sent.
    fn use_grant(&mut self, grant: &Grant) {
        self.grants.pop_front_if(|first| first.piece == grant.piece);
    }

    #[inline]
    pub(super) fn has_credit(&self) -> bool {
        is_before(self.sent, self.limit)
    }

    pub(super) fn use_credit(&mut self) {
        self.sent = self.sent.wrapping_add(1);
        self.message = self.message.wrapping_add(1);
    }

    #[inline]
    pub(super) fn raise_limit(&mut self, limit: u32) {
        if is_before(self.limit, limit) {
            self.limit = limit;
        }
    }

    /// The peer has received all pieces before this one.
    #[inline]
    pub(super) fn arrived_before(&mut self, done: u32) {
        while is_before(self.arrived, done) && !self.pieces.is_empty() {
            self.pop();
        }
    }

    /// The peer has handed over all pieces before this one.
    #[inline]
    pub(super) fn taken_before(&mut self, taken: u32) {
        if is_before(self.taken, taken) {
            self.taken = taken;
        }
    }

    /// A piece has arrived, as its queue pair says. If it is on its way once more on another rail, its memory is in use
    /// until that one says so.
    pub(super) fn arrived(&mut self, number: u32, rail: usize) {
        let index = number.wrapping_sub(self.arrived) as usize;
        if let Some(piece) = self.pieces.get_mut(index)
            && usize::from(piece.rail) == rail
        {
            piece.arrived = true;
        }
        while self.pieces.front().is_some_and(|piece| piece.arrived) {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some(piece) = self.pieces.pop_front() {
            self.staging.extend(piece.staging);
            self.arrived = self.arrived.wrapping_add(1);
        }
    }

    /// Grants of a rail that has gone down are void.
    pub(super) fn forget_rail(&mut self, rail: usize) {
        for grant in self.grants.iter_mut().filter(|grant| usize::from(grant.rail) == rail) {
            grant.rail = FORGOTTEN;
        }
        self.again.retain(|grant| usize::from(grant.rail) != rail);
        self.unsolicited_from = None;
    }

    /// Nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Is what a send waits for over?
    #[inline]
    fn is_over(&self, awaits: u64, credits: u32) -> bool {
        let number = awaits as u32;
        if awaits & MATCH != 0 {
            is_before(number, self.limit.wrapping_sub(credits))
        } else {
            !is_before(self.arrived, number)
        }
    }
}

/// Whether the piece of a grant of our own is written to its landing place.
fn lands(env: &Env<'_>, grant: &Grant) -> bool {
    env.rules.one_sided && grant.address == 0
}

impl Rail {
    /// Writes a piece to its landing place, behind its head. A copy lies behind its head here, too; other bytes are
    /// written by themselves before the head.
    fn post_landed(
        &mut self,
        env: &mut Env<'_>,
        lane: usize,
        number: u32,
        piece: &Piece,
    ) -> Result<Result<bool, PostError>, TransportError> {
        let place = self.far.landings[lane * LANDINGS as usize + (number % LANDINGS) as usize];
        let head = PieceHead {
            digest: piece.digest,
            total: piece.total,
            piece: number,
            len: piece.len as u32,
            crc: 0,
            zero: 0,
        };
        let head = if env.rules.checksum { head.with_checksum(piece.crc) } else { head };
        let operation = Operation::WriteImm(place, immediate(lane, number));
        let head_at = match piece.staging {
            Some(_) => piece.at - HEAD_BYTES,
            None => self.places.trailer_out(lane, number),
        };
        env.memory.put(head_at, Span::from(bytemuck::bytes_of(&head)));
        let confirms = env.rules.completions_confirm();
        let keys = env.keys(self);
        if piece.staging.is_some() {
            let run = keys.run(head_at, HEAD_BYTES + piece.len)?;
            return Ok(self.control.send_piece(run, operation, (lane, number), (confirms, false)));
        }
        let bytes = keys.run(piece.at, piece.len)?;
        let run = keys.run(head_at, size_of::<PieceHead>())?;
        let behind = RemoteRun { address: place.address + HEAD_BYTES as u64, ..place };
        Ok(match self.control.send_piece(bytes, Operation::Write(behind), (lane, number), (false, false)) {
            Ok(true) => self.control.send_piece(run, operation, (lane, number), (confirms, false)),
            other => other,
        })
    }
}

impl Peer {
    /// Starts or continues sending a message, of which the first `ready` bytes are there.
    pub(super) fn poll_send(
        &mut self,
        env: &mut Env<'_>,
        lane: usize,
        state: &mut SendState,
        src: Span<'_>,
        ready: usize,
    ) -> Result<SendProgress, TransportError> {
        self.check()?;
        if let Some(awaits) = state.awaits {
            let over = self.out[lane].is_over(awaits, super::peer::EAGER_CREDITS);
            self.wants_word |= !over;
            return Ok(if over { SendProgress::Complete } else { SendProgress::Posted });
        }
        if goes_in_pieces(state.size, src.len()) {
            return self.send_pieces(env, lane, state, src, ready);
        }
        if ready < src.len() {
            return Ok(SendProgress::Idle);
        }
        let flags = if state.match_ack { CONFIRM } else { 0 };
        let number = self.out[lane].sent;
        if !self.send_eager(env, lane, (state.digest, flags), src)? {
            self.wants_word = true;
            return Ok(SendProgress::Idle);
        }
        self.counters[lane].sent_messages += 1;
        self.counters[lane].copied_bytes += src.len() as u64;
        if state.match_ack {
            state.awaits = Some(MATCH | u64::from(number));
            return Ok(SendProgress::Posted);
        }
        Ok(SendProgress::Complete)
    }

    fn send_pieces(
        &mut self,
        env: &mut Env<'_>,
        lane: usize,
        state: &mut SendState,
        src: Span<'_>,
        ready: usize,
    ) -> Result<SendProgress, TransportError> {
        let before = state.staged;
        while state.staged < ready {
            let Some(grant) = self.out[lane].next_grant(lane, &env.rules, state, src.len()) else {
                // The word of what has arrived and been handed over may have been lost.
                self.wants_word = true;
                break;
            };
            self.check_grant(&grant, state, src.len())?;
            if state.staged + grant.len as usize > ready {
                break;
            }
            if !self.send_piece(env, lane, &grant, src.sub(state.staged, grant.len as usize))? {
                break;
            }
            self.out[lane].use_grant(&grant);
            state.staged += grant.len as usize;
        }
        if !self.notices.is_empty() {
            self.flush(env)?;
        }
        if state.staged == src.len() {
            let out = &mut self.out[lane];
            out.message = out.message.wrapping_add(1);
            self.counters[lane].sent_messages += 1;
            // A staged message is a copy, which is kept until it has arrived.
            if out.pieces.back().is_none_or(|piece| piece.staging.is_some()) && !state.match_ack {
                return Ok(SendProgress::Complete);
            }
            state.awaits = Some(u64::from(out.arrived.wrapping_add(out.pieces.len() as u32)));
            return Ok(SendProgress::Posted);
        }
        Ok(if state.staged > before { SendProgress::Advanced } else { SendProgress::Idle })
    }

    /// Is the grant for where we are in this very message?
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

    /// Sends a new piece; false when there is no room for it.
    fn send_piece(
        &mut self,
        env: &mut Env<'_>,
        lane: usize,
        grant: &Grant,
        src: Span<'_>,
    ) -> Result<bool, TransportError> {
        let rail = usize::from(grant.rail);
        let out = &mut self.out[lane];
        if grant.rail == FORGOTTEN || !out.again.is_empty() || !self.rails[rail].has_room(lane, src.len()) {
            return Ok(false);
        }
        // A short message is copied even from registered memory, so that its sender need not wait until it arrives.
        // So is one whose head would arrive though its bytes were lost.
        let is_torn = lands(env, grant) && !env.rules.reliable && !env.rules.checksum;
        let is_copied = is_torn || grant.total <= COPIED_BYTES && !out.staging.is_empty();
        let (at, staging) = match env.locate(src.as_ptr(), src.len()) {
            Some(at) if !is_copied => (at, None),
            _ => {
                let Some(place) = out.staging.pop() else { return Ok(false) };
                let at = out.staging_base + offset_of(place, env.rules.piece_bytes);
                env.memory.put(at, src);
                self.counters[lane].copied_bytes += src.len() as u64;
                (at, Some(place))
            }
        };
        let crc = if env.rules.checksum { checksum(env.memory.bytes(at, src.len())) } else { 0 };
        let piece = Piece {
            at,
            len: src.len(),
            staging,
            arrived: false,
            digest: grant.digest,
            total: grant.total,
            crc,
            attempt: grant.attempt,
            rail: grant.rail,
        };
        self.out[lane].pieces.push_back(piece);
        let posted = self.post_piece(env, lane, grant, &piece)?;
        if !posted {
            let out = &mut self.out[lane];
            out.pieces.pop_back();
            out.staging.extend(staging);
        }
        Ok(posted)
    }

    /// Puts a piece on its way; false when the queue has less room than was thought.
    fn post_piece(
        &mut self,
        env: &mut Env<'_>,
        lane: usize,
        grant: &Grant,
        piece: &Piece,
    ) -> Result<bool, TransportError> {
        let index = usize::from(grant.rail);
        let mark =
            Mark { piece: grant.piece, crc: piece.crc, lane: lane as u32, attempt: grant.attempt.into() };
        // How fast rails are follows from their completions, where there is a choice.
        let several = self.rails.len() > 1;
        let lands = lands(env, grant);
        let posted = if lands {
            self.rails[index].post_landed(env, lane, grant.piece, piece)?
        } else {
            let run = env.keys(&self.rails[index]).run(piece.at, piece.len)?;
            let rail = &mut self.rails[index];
            let (queue, operation) = match rail.data.as_mut() {
                Some(data) => (&mut data[lane], Operation::Send),
                None => {
                    let place = RemoteRun { address: grant.address, rkey: grant.rkey };
                    (&mut rail.control, Operation::WriteImm(place, immediate(lane, grant.piece)))
                }
            };
            queue.send_piece(run, operation, (lane, grant.piece), (env.rules.completions_confirm(), several))
        };
        if matches!(posted, Ok(true)) && several {
            self.rails[index].pace.posted(piece.len as u64, Instant::now());
        }
        match posted {
            Ok(true) if !env.rules.one_sided => self.send_trailer(env, index, lane, (mark, grant.digest))?,
            Ok(true) if env.rules.checksum && !lands => self.notices.push_back(Notice::Sent(mark)),
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => self.take_down(env, index, !env.rules.one_sided, &error.to_string())?,
        }
        Ok(true)
    }

    /// Sends pieces once more that were granted anew, as far as there is room.
    #[inline]
    pub(super) fn repeat_pieces(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        for lane in 0..self.out.len() {
            while let Some(grant) = self.out[lane].again.front().copied() {
                let index = grant.piece.wrapping_sub(self.out[lane].arrived) as usize;
                match self.out[lane].pieces.get(index).copied() {
                    Some(piece) if !piece.arrived && piece.attempt != grant.attempt => {}
                    Some(piece) if !piece.arrived => {
                        let has_room = self.rails[usize::from(grant.rail)].has_room(lane, piece.len);
                        if !has_room || !self.post_piece(env, lane, &grant, &piece)? {
                            break;
                        }
                        if let Some(piece) = self.out[lane].pieces.get_mut(index) {
                            piece.rail = grant.rail;
                        }
                        self.counters[lane].retransmissions += 1;
                    }
                    _ if env.rules.completions_confirm() => self.notices.push_back(Notice::arrived(&grant)),
                    _ => {}
                }
                // Its rail may have gone down by this, and taken the grant with it.
                self.out[lane].again.pop_front_if(|first| *first == grant);
            }
        }
        Ok(())
    }

    /// The peer says from which piece on a lane needs no grants. While our rail is down, it does not know that yet.
    pub(super) fn unsolicited_from(&mut self, env: &mut Env<'_>, mark: Mark) -> Result<(), TransportError> {
        let lane = mark.lane as usize;
        if lane >= self.out.len() {
            return Err(self.protocol("a lane that is not there"));
        }
        if self.rails.len() != 1 || !self.rails[0].takes_pieces(lane) {
            return Ok(());
        }
        let out = &mut self.out[lane];
        out.unsolicited_from = Some(mark.piece);
        // Those that were sent before the rail fell, and that the peer had not announced, are lost.
        for index in mark.piece.wrapping_sub(out.arrived) as usize..out.pieces.len() {
            let grant = out.pieces[index].grant(lane, out.arrived.wrapping_add(index as u32));
            out.again.push_back(grant);
        }
        self.repeat_pieces(env)
    }

    /// Takes in a grant: of a new piece, or of one that was sent and has been lost.
    pub(super) fn granted(&mut self, env: &mut Env<'_>, grant: Grant) -> Result<(), TransportError> {
        let lane = usize::from(grant.lane);
        if lane >= self.out.len() || usize::from(grant.rail) >= self.rails.len() {
            return Err(self.protocol("a grant for a lane or a rail that is not there"));
        }
        // While our end of the rail is not up the peer has yet to learn why, and will then grant the piece again.
        let is_void = !self.rails[usize::from(grant.rail)].takes_pieces(lane);
        let grant = if is_void { Grant { rail: FORGOTTEN, ..grant } } else { grant };
        let out = &mut self.out[lane];
        if !is_before(grant.piece, out.next()) {
            return if out.keep_grant(grant) {
                Ok(())
            } else {
                Err(self.protocol("more grants than pieces"))
            };
        }
        if is_void {
            return Ok(());
        }
        let index = grant.piece.wrapping_sub(out.arrived) as usize;
        if let Some(piece) = out.pieces.get_mut(index) {
            piece.attempt = grant.attempt;
            if piece.digest != grant.digest {
                return Err(TransportError::Mismatch { expected: piece.digest, found: grant.digest });
            }
            if piece.total != grant.total {
                return Err(TransportError::Length { expected: grant.total, found: piece.total });
            }
        }
        match out.pieces.get(index).copied() {
            Some(piece) if piece.len == grant.len as usize && !piece.arrived => {
                self.out[lane].again.push_back(grant);
                self.repeat_pieces(env)
            }
            Some(piece) if !piece.arrived => Err(self.protocol("a grant for more or less than it was")),
            piece if env.rules.completions_confirm() => {
                if piece.is_none() && !is_before(grant.piece, out.arrived) {
                    return Err(self.protocol("a grant for a piece that was never announced"));
                }
                self.notices.push_back(Notice::arrived(&grant));
                Ok(())
            }
            _ => Err(self.protocol("a grant for a piece that it has had, or that was never announced")),
        }
    }

    /// Answers whether a piece has been sent, as it was granted last. Silence means that it has not.
    pub(super) fn answer(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        mark: Mark,
    ) -> Result<(), TransportError> {
        let lane = mark.lane as usize;
        if lane >= self.out.len() {
            return Err(self.protocol("a probe for a lane that is not there"));
        }
        let out = &self.out[lane];
        let index = mark.piece.wrapping_sub(out.arrived) as usize;
        let was_sent = out.pieces.get(index).is_some_and(|piece| u32::from(piece.attempt) == mark.attempt);
        // One that is to be sent again waits for room, and has the number of that attempt already.
        let waits = out.again.iter().any(|grant| grant.piece == mark.piece);
        if was_sent && !waits {
            self.say(env, rail, Kind::Reply, Some(mark))?;
        }
        Ok(())
    }
}
