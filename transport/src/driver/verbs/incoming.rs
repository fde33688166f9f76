//! Messages on their way from a peer, on one lane.
//!
//! A small message waits in its slot until the runtime asks for it. For a larger one the runtime says ahead of time
//! where it is to go: into registered memory, or, where there is none or the bytes are to be combined with others,
//! into staging places from which they are handed over in place. Either is cut into pieces, which are granted to the peer
//! in order (see `granting`).
//!
//! Invariants: pieces are handed over in order and once. A place is granted anew only when nothing can write to it any
//! more on account of the earlier grant: its message is known to be lost, or its queue pair is dead.

use super::{
    landing::{Early, HEAD_BYTES, LANDINGS, PieceHead},
    outgoing::goes_in_pieces,
    peer::{Env, Peer, Rules, read},
    wire::{CONFIRM, Kind, LANES, Mark, checksum, is_before},
};
use crate::{RecvProgress, RecvState, Sink, TransportError};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Messages that can be announced ahead.
pub(super) const ANNOUNCED: usize = 64;
/// Pieces that are granted and not yet handed over.
pub(super) const GRANTED: usize = 128;
/// How long an unreliable rail may keep us waiting for a piece before we ask.
const PATIENCE: Duration = Duration::from_millis(2);
/// A piece that its sender has called sent so often, and that has not come through a queue of its own, is lost.
const SAID_OFTEN: u8 = 10;

/// A small message in a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct RxMessage {
    pub(super) rail: u8,
    pub(super) slot: u32,
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) digest: u64,
    /// Its number among all messages of the lane.
    pub(super) message: u32,
    pub(super) flags: u8,
}

/// A larger message that is expected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) digest: u64,
    pub(super) total: usize,
    /// Bytes granted so far.
    pub(super) granted: usize,
    /// Where it goes, by offset in the slab; staging places when there is none.
    pub(super) destination: Option<usize>,
}

/// A piece that is granted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Its message, by its number.
    pub(super) message: u64,
    /// Where it begins in its message.
    pub(super) offset: usize,
    pub(super) len: usize,
    /// Where it goes.
    pub(super) at: usize,
    pub(super) is_staged: bool,
    pub(super) rail: u8,
    /// Its bytes are here, as its queue pair says.
    pub(super) is_here: bool,
    /// What its checksum is to be, where that counts.
    pub(super) crc: Option<u32>,
    pub(super) arrived: bool,
    /// The device took no receive for it: it is granted when there is room.
    pub(super) is_held: bool,
    /// Since when we wait for it, once that is noted.
    pub(super) since: Option<Instant>,
    /// How often the peer has said that it was sent.
    pub(super) said: u8,
    /// How often it has been granted, less one.
    pub(super) attempt: u16,
    /// In which life of its rail it was granted.
    pub(super) life: u8,
    /// What its trailer or its head names, if that is not what we expect.
    pub(super) foreign: Option<Foreign>,
}

/// How a message differs from the expected one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Foreign {
    /// It belongs to this operation.
    Operation(u64),
    /// It has so many bytes.
    Length(u64),
}

impl Foreign {
    fn error(self, state: &RecvState) -> TransportError {
        match self {
            Foreign::Operation(found) => TransportError::Mismatch { expected: state.digest, found },
            Foreign::Length(found) => TransportError::Length { expected: state.len as u64, found },
        }
    }
}

impl Piece {
    /// Is it, or its trailer, still to come through its queue? Where there are no trailers the checksum is a message that
    /// is repeated until it arrives.
    fn is_missed(&self, one_sided: bool) -> bool {
        !(self.arrived || self.is_here && one_sided)
    }
}

/// One lane's incoming side.
#[derive(Debug)]
pub(super) struct Incoming {
    /// The number of the message that is next to be received.
    pub(super) message: u32,
    /// Small messages, in order.
    pub(super) eager: VecDeque<RxMessage>,
    /// Small messages matched so far.
    pub(super) matched: u32,
    /// Larger messages that are expected, in order, and the number of the first.
    pub(super) messages: VecDeque<Message>,
    pub(super) first_message: u64,
    /// Pieces not yet handed over, in order, and the number of the first.
    pub(super) pieces: VecDeque<Piece>,
    pub(super) first_piece: u32,
    /// All pieces before this one have arrived.
    pub(super) done: u32,
    /// Granted pieces that have not arrived.
    pub(super) outstanding: usize,
    /// Of these, pieces that wait for room in a queue.
    pub(super) held: usize,
    /// The first landing place; staged pieces lie in these.
    pub(super) staging_base: usize,
    pub(super) early: Early,
    /// Pieces from this number on are sent without a grant.
    pub(super) unsolicited_from: Option<u32>,
}

impl Incoming {
    /// Its landing places begin at `staging_base`.
    pub(super) fn new(staging_base: usize) -> Incoming {
        Incoming {
            message: 0,
            eager: VecDeque::with_capacity(super::peer::EAGER_CREDITS as usize),
            matched: 0,
            messages: VecDeque::with_capacity(ANNOUNCED),
            first_message: 0,
            pieces: VecDeque::with_capacity(GRANTED),
            first_piece: 0,
            done: 0,
            outstanding: 0,
            held: 0,
            staging_base,
            early: Early::default(),
            unsolicited_from: None,
        }
    }

    /// All pieces need no grant, until the rail falls.
    pub(super) fn start_unsolicited(&mut self) {
        self.unsolicited_from = Some(self.next_piece());
    }

    /// Whether the sender sends a piece of a message without a grant.
    pub(super) fn is_unsolicited(&self, rules: &Rules, number: u32, attempt: u16, total: usize) -> bool {
        let is_allowed = self.unsolicited_from.is_some_and(|first| !is_before(number, first));
        attempt == 0 && is_allowed && rules.may_be_unsolicited(total as u64)
    }

    /// Whether the landing place of a piece is free: the one that was there before has been handed over.
    pub(super) fn has_landing(&self, number: u32) -> bool {
        number.wrapping_sub(self.first_piece) < LANDINGS
    }

    /// Whether pieces are sent on grants only.
    #[inline]
    pub(super) fn needs_grants(&self) -> bool {
        self.unsolicited_from.is_none()
    }

    /// Nothing is granted that has not been handed over.
    pub(super) fn is_idle(&self) -> bool {
        self.pieces.is_empty() && self.messages.is_empty()
    }

    /// The number of the next piece to be granted.
    pub(super) fn next_piece(&self) -> u32 {
        self.first_piece.wrapping_add(self.pieces.len() as u32)
    }

    pub(super) fn piece_mut(&mut self, number: u32) -> Option<&mut Piece> {
        self.pieces.get_mut(number.wrapping_sub(self.first_piece) as usize)
    }

    /// The first piece that waits for room in a queue.
    pub(super) fn first_held(&self) -> Option<u32> {
        if self.held == 0 {
            return None;
        }
        let index = self.pieces.iter().position(|piece| piece.is_held)?;
        Some(self.first_piece.wrapping_add(index as u32))
    }

    /// A piece is to be granted when a rail has room for it.
    pub(super) fn hold(&mut self, number: u32) {
        if let Some(piece) = self.piece_mut(number).filter(|piece| !piece.is_held) {
            piece.is_held = true;
            self.held += 1;
        }
    }

    /// The length of a piece that is granted.
    pub(super) fn len_of(&mut self, number: u32) -> Option<usize> {
        self.piece_mut(number).map(|piece| piece.len)
    }

    /// Takes note of the operation, and of the bytes of the message where they are given, that a piece names. False
    /// when it is another one than ours.
    pub(super) fn check_operation(&mut self, number: u32, digest: u64, total: Option<u64>) -> bool {
        let first_message = self.first_message;
        let Some(message) = self.piece_mut(number).map(|piece| (piece.message - first_message) as usize)
        else {
            return true;
        };
        let Some(expected) = self.messages.get(message).copied() else { return true };
        let foreign = match total {
            _ if expected.digest != digest => Foreign::Operation(digest),
            Some(total) if expected.total as u64 != total => Foreign::Length(total),
            _ => return true,
        };
        if let Some(piece) = self.piece_mut(number) {
            piece.foreign = Some(foreign);
        }
        false
    }

    /// Takes note that a piece is complete; moves the counter of what has arrived.
    fn complete(&mut self, number: u32) {
        if let Some(piece) = self.piece_mut(number)
            && !piece.arrived
        {
            piece.arrived = true;
            self.outstanding -= 1;
        }
        while self.piece_mut(self.done).is_some_and(|piece| piece.arrived) {
            self.done = self.done.wrapping_add(1);
        }
    }
}

impl Peer {
    /// The digest of the next message of a lane, if one has begun to arrive.
    pub(super) fn peek_digest(&self, lane: usize) -> Option<u64> {
        let incoming = &self.incoming[lane];
        incoming.eager.front().filter(|first| first.message == incoming.message).map(|first| first.digest)
    }

    /// A piece's bytes are here. On an unreliable rail, pieces that were sent before it on the same rail and are not here
    /// are lost: queue pairs keep the order. Pieces are sent in order the first time; one that is sent again may
    /// come behind later ones.
    pub(super) fn piece_came(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        (lane, number): (usize, u32),
    ) -> Result<(), TransportError> {
        let incoming = &mut self.incoming[lane];
        if incoming.piece_mut(number).is_none() {
            return self.came_early(env, lane, number);
        }
        let Some(piece) = incoming.piece_mut(number) else { return Ok(()) };
        if piece.is_here || piece.is_held || usize::from(piece.rail) != rail {
            return Ok(());
        }
        piece.is_here = true;
        let (len, is_first) = (piece.len as u64, piece.attempt == 0);
        self.rails[rail].is_not_to_come(len);
        self.settle(env, lane, number)?;
        if !env.rules.reliable && env.rules.one_sided && is_first {
            let mut earlier = self.incoming[lane].done;
            while is_before(earlier, number) {
                if self.incoming[lane]
                    .piece_mut(earlier)
                    .is_some_and(|p| !p.is_here && p.attempt == 0 && usize::from(p.rail) == rail)
                {
                    self.grant_again(env, lane, earlier)?;
                }
                earlier = earlier.wrapping_add(1);
            }
        }
        Ok(())
    }

    /// A piece has come whose message is not announced.
    fn came_early(&mut self, env: &Env<'_>, lane: usize, number: u32) -> Result<(), TransportError> {
        let incoming = &mut self.incoming[lane];
        if incoming.unsolicited_from.is_none() || !env.rules.one_sided || !incoming.has_landing(number) {
            return Err(self.protocol("a piece that was not granted"));
        }
        incoming.early.note(number);
        Ok(())
    }

    /// Compares the head of a piece in its landing place with what is expected; `None` while the piece has to come
    /// once more.
    fn check_landed(&mut self, env: &Env<'_>, lane: usize, number: u32, piece: &Piece) -> Option<bool> {
        let head = read::<PieceHead>(env.memory, piece.at - HEAD_BYTES);
        if env.rules.checksum {
            let len = (head.len as usize).min(env.rules.piece_bytes);
            let right = head.with_checksum(checksum(env.memory.bytes(piece.at, len)));
            if right != head || head.piece != number {
                return None;
            }
        }
        let is_ours = self.incoming[lane].check_operation(number, head.digest, Some(head.total));
        Some(is_ours && head.piece == number && head.len as usize == piece.len)
    }

    /// The peer says which checksum a piece has.
    pub(super) fn checksum_of(&mut self, env: &mut Env<'_>, mark: Mark) -> Result<(), TransportError> {
        let lane = mark.lane as usize;
        if lane >= LANES {
            return Err(self.protocol("a checksum for a lane that is not there"));
        }
        if let Some(piece) = self.incoming[lane].piece_mut(mark.piece) {
            piece.crc = Some(mark.crc);
        }
        self.settle(env, lane, mark.piece)
    }

    /// A piece has arrived once its bytes are here and, where that counts, have the right checksum.
    pub(super) fn settle(
        &mut self,
        env: &mut Env<'_>,
        lane: usize,
        number: u32,
    ) -> Result<(), TransportError> {
        let incoming = &mut self.incoming[lane];
        let Some(piece) = incoming.piece_mut(number).copied() else { return Ok(()) };
        if !piece.is_here || piece.arrived || piece.foreign.is_some() {
            return Ok(());
        }
        let total = incoming.messages[(piece.message - incoming.first_message) as usize].total;
        if env.rules.lands(total as u64) && incoming.is_unsolicited(&env.rules, number, piece.attempt, total)
        {
            match self.check_landed(env, lane, number, &piece) {
                None => return self.grant_again(env, lane, number),
                Some(false) => return Ok(()),
                Some(true) => {}
            }
        } else if env.rules.checksum || !env.rules.one_sided {
            let Some(crc) = piece.crc else { return Ok(()) };
            if env.rules.checksum && crc != checksum(env.memory.bytes(piece.at, piece.len)) {
                // Where sends meet receives in order, one more in between would upset the order.
                return if env.rules.one_sided {
                    self.grant_again(env, lane, number)
                } else {
                    self.take_down(env, usize::from(piece.rail), true, "a message was damaged")
                };
            }
        }
        self.incoming[lane].complete(number);
        self.grant_more(env, lane)
    }

    /// The peer knows of a piece that we have granted again that it had arrived, on the rail that has gone down since: our
    /// queue pair has confirmed it, and we have not heeded the completion.
    pub(super) fn had_arrived(&mut self, env: &mut Env<'_>, mark: Mark) -> Result<(), TransportError> {
        let lane = mark.lane as usize;
        if lane >= LANES || !env.rules.completions_confirm() {
            return Err(self.protocol("word of a piece that it need not give"));
        }
        let incoming = &mut self.incoming[lane];
        let Some(piece) = incoming.piece_mut(mark.piece).filter(|piece| !piece.is_here) else {
            return Ok(());
        };
        piece.is_here = true;
        let was_held = std::mem::take(&mut piece.is_held);
        let (rail, len) = (usize::from(piece.rail), piece.len as u64);
        incoming.held -= usize::from(was_held);
        if !was_held {
            self.rails[rail].is_not_to_come(len);
        }
        self.settle(env, lane, mark.piece)
    }

    /// The peer has sent a piece on this rail, before it said so on the same rail.
    pub(super) fn was_sent(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        mark: Mark,
    ) -> Result<(), TransportError> {
        let lane = mark.lane as usize;
        if lane >= LANES {
            return Err(self.protocol("a reply for a lane that is not there"));
        }
        let Some(piece) = self.incoming[lane].piece_mut(mark.piece) else { return Ok(()) };
        let is_other = usize::from(piece.rail) != rail || u32::from(piece.attempt) != mark.attempt;
        if is_other || !piece.is_missed(env.rules.one_sided) {
            return Ok(());
        }
        if env.rules.one_sided {
            return self.grant_again(env, lane, mark.piece);
        }
        // It went through another queue than the word of it: it may still come, for a while.
        piece.said += 1;
        if piece.said < SAID_OFTEN {
            return Ok(());
        }
        self.take_down(env, rail, true, "a message was lost")
    }

    /// Asks after pieces that unreliable rails have kept us waiting for.
    pub(super) fn ask_after_pieces(&mut self, env: &mut Env<'_>, now: Instant) -> Result<(), TransportError> {
        for lane in 0..LANES {
            let number = self.incoming[lane].done;
            let Some(piece) = self.incoming[lane].piece_mut(number) else { continue };
            let since = *piece.since.get_or_insert(now);
            if !piece.is_missed(env.rules.one_sided) || now.saturating_duration_since(since) < PATIENCE {
                continue;
            }
            piece.since = Some(now);
            let piece = *piece;
            let rail = usize::from(piece.rail);
            if self.rails[rail].is_up() {
                let mark = Mark { piece: number, crc: 0, lane: lane as u32, attempt: piece.attempt.into() };
                self.say(env, rail, Kind::Probe, Some(mark))?;
            }
        }
        Ok(())
    }

    /// Starts or continues receiving the next message of a lane.
    pub(super) fn poll_recv(
        &mut self,
        env: &mut Env<'_>,
        lane: usize,
        state: &mut RecvState,
        sink: &mut dyn Sink,
    ) -> Result<RecvProgress, TransportError> {
        // A small message may have overtaken larger ones.
        let next = self.incoming[lane].message;
        if let Some(message) = self.incoming[lane].eager.front().copied()
            && message.message == next
        {
            if message.digest != state.digest {
                return Err(TransportError::Mismatch { expected: state.digest, found: message.digest });
            }
            if goes_in_pieces(state.size, state.len) || message.len != state.len {
                return Err(TransportError::Length { expected: state.len as u64, found: message.len as u64 });
            }
            return self.match_eager(env, lane, message, state, sink);
        }
        if goes_in_pieces(state.size, state.len) {
            if state.announced.is_none() {
                let destination = sink.destination();
                self.announce(env, lane, state, destination)?;
            }
            return self.hand_over(env, lane, state, sink);
        }
        self.check()?;
        Ok(RecvProgress::Idle)
    }

    #[inline]
    fn match_eager(
        &mut self,
        env: &mut Env<'_>,
        lane: usize,
        message: RxMessage,
        state: &mut RecvState,
        sink: &mut dyn Sink,
    ) -> Result<RecvProgress, TransportError> {
        if message.len > 0 || sink.destination().is_some() {
            if sink.destination().is_some() {
                self.counters[lane].copied_bytes += message.len as u64;
            }
            sink.write(0, env.memory.span(message.at, message.len));
        }
        state.received = message.len;
        self.counters[lane].moved_bytes += message.len as u64;
        self.counters[lane].received_messages += 1;
        let incoming = &mut self.incoming[lane];
        incoming.eager.pop_front();
        incoming.matched = incoming.matched.wrapping_add(1);
        incoming.message = incoming.message.wrapping_add(1);
        self.ack_now |= message.flags & CONFIRM != 0;
        self.release_slot(env, usize::from(message.rail), message.slot)?;
        self.flush(env)?;
        Ok(RecvProgress::Complete)
    }

    /// Hands over the pieces that have arrived of the message that is first in line.
    fn hand_over(
        &mut self,
        env: &mut Env<'_>,
        lane: usize,
        state: &mut RecvState,
        sink: &mut dyn Sink,
    ) -> Result<RecvProgress, TransportError> {
        let incoming = &mut self.incoming[lane];
        if state.announced != Some(incoming.first_message) {
            self.check()?;
            return Ok(RecvProgress::Idle);
        }
        if let Some(foreign) = incoming.pieces.front().and_then(|piece| piece.foreign) {
            return Err(foreign.error(state));
        }
        let before = state.received;
        while let Some(piece) = incoming.pieces.front().copied()
            && piece.arrived
            && piece.message == incoming.first_message
        {
            if piece.is_staged {
                if sink.destination().is_some() {
                    self.counters[lane].copied_bytes += piece.len as u64;
                }
                sink.write(piece.offset, env.memory.span(piece.at, piece.len));
            }
            state.received += piece.len;
            incoming.pieces.pop_front();
            incoming.first_piece = incoming.first_piece.wrapping_add(1);
        }
        if state.received == before {
            self.check()?;
            return Ok(RecvProgress::Idle);
        }
        self.counters[lane].moved_bytes += (state.received - before) as u64;
        let complete = state.received == state.len;
        if complete {
            incoming.messages.pop_front();
            incoming.first_message += 1;
            incoming.message = incoming.message.wrapping_add(1);
            self.counters[lane].received_messages += 1;
        }
        self.grant_more(env, lane)?;
        self.flush(env)?;
        Ok(if complete { RecvProgress::Complete } else { RecvProgress::Advanced })
    }
}
