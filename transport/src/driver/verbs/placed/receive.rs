//! Pieces on their way from a peer.
//!
//! The runtime announces a bulk message with the memory that it goes to. Its pieces are received right there, or,
//! where that memory is not registered or the bytes are combined with others, in staging places, from which they
//! are handed over in place.
//!
//! Invariant: pieces are handed over in order and once. No receive is posted for a piece that was handed over.

use super::{
    STAGES,
    owner::{Claim, RecvOwner},
};
use crate::{
    RecvProgress, RecvState, Sink, TransportError,
    driver::verbs::{
        notice::Notice,
        peer::{Env, Peer, read},
        rail::Posted,
        wire::{Header, Kind, Mark, checksum, message_checksum},
    },
    memory::SpanMut,
    verbs::PostError,
};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Messages that can be announced ahead.
const ANNOUNCED: usize = 64;
/// Time after which the sender is asked about a piece, on unreliable connections.
const ASK_AFTER: Duration = Duration::from_millis(2);
/// A piece that its sender has called sent that often, and that has not come, is lost.
const LOST_AFTER: u8 = 10;

/// A message that is expected.
#[derive(Clone, Copy, Debug, Hash)]
struct Message {
    stream: usize,
    /// Number among the bulk messages of its stream.
    number: u32,
    total: usize,
    /// Bytes that are divided into pieces.
    divided: usize,
    /// Offset in the slab; staging places when there is none.
    destination: Option<usize>,
}

/// A piece that is expected, or has been received and not been handed over.
#[derive(Clone, Copy, Debug, Hash)]
struct Piece {
    /// Number of its message, among all that were announced.
    message: u32,
    /// Offset in its message.
    offset: usize,
    len: usize,
    at: usize,
    is_staged: bool,
    /// Whether its bytes are here, in the present epoch.
    is_here: bool,
    /// Whether it is complete.
    has_arrived: bool,
}

/// The incoming direction.
#[derive(Clone, Debug, Hash)]
pub(super) struct PlacedRecv {
    owner: RecvOwner,
    /// Messages that are not handed over, and the number of the first.
    messages: VecDeque<Message>,
    first_message: u32,
    /// Pieces that are not handed over, and the number of the first.
    pieces: VecDeque<Piece>,
    first_piece: u32,
    /// All pieces before this one have arrived.
    done: u32,
    told_done: u32,
    /// Number of the next piece whose receives are to be posted in this epoch, and which of them are.
    next: u32,
    posted: Posted,
    stage_base: usize,
    /// The piece that is waited for, since when, and how often its sender has said that it was sent.
    waiting: Option<(u32, Instant, u8)>,
    /// Receives that the device takes at a time, once it has refused one.
    limit: usize,
}

impl PlacedRecv {
    pub(super) fn new(stage_base: usize) -> PlacedRecv {
        PlacedRecv {
            owner: RecvOwner::default(),
            messages: VecDeque::with_capacity(ANNOUNCED),
            first_message: 0,
            pieces: VecDeque::with_capacity(64),
            first_piece: 0,
            done: 0,
            told_done: 0,
            next: 0,
            posted: Posted::None,
            stage_base,
            waiting: None,
            limit: usize::MAX,
        }
    }

    #[inline]
    pub(super) fn done(&self) -> u32 {
        self.done
    }

    #[inline]
    pub(super) fn owes_done(&self) -> bool {
        let untold = self.done.wrapping_sub(self.told_done);
        untold >= 4 || untold > 0 && self.done == self.end()
    }

    pub(super) fn has_untold_done(&self) -> bool {
        self.done != self.told_done
    }

    #[inline]
    pub(super) fn done_told(&mut self) {
        self.told_done = self.done;
    }

    pub(super) fn is_idle(&self) -> bool {
        self.messages.is_empty()
    }

    fn end(&self) -> u32 {
        self.first_piece.wrapping_add(self.pieces.len() as u32)
    }

    fn piece_mut(&mut self, number: u32) -> Option<&mut Piece> {
        self.pieces.get_mut(number.wrapping_sub(self.first_piece) as usize)
    }

    /// All receives of the present epoch are gone.
    pub(super) fn stop(&mut self) {
        self.next = self.done;
        self.posted = Posted::None;
        self.waiting = None;
        // All pieces from the first missing one on are sent again. None of them counts as received until it has
        // come again, so that no piece is written after it was handed over.
        let first = self.done.wrapping_sub(self.first_piece) as usize;
        for piece in self.pieces.iter_mut().skip(first) {
            (piece.is_here, piece.has_arrived) = (false, false);
        }
    }

    /// Divides the next piece off the announced messages; false when there is none, or no place for it.
    fn divide(&mut self, piece_bytes: usize) -> bool {
        let open = self.messages.iter().position(|message| message.divided < message.total);
        let Some(index) = open else { return false };
        let number = self.end();
        let (first_message, first_piece) = (self.first_message, self.first_piece);
        let message = &mut self.messages[index];
        let is_staged = message.destination.is_none();
        if is_staged && number.wrapping_sub(first_piece) >= STAGES {
            return false;
        }
        let offset = message.divided;
        let len = (message.total - offset).min(piece_bytes);
        let stage = self.stage_base + (number % STAGES) as usize * piece_bytes;
        message.divided += len;
        self.pieces.push_back(Piece {
            message: first_message.wrapping_add(index as u32),
            offset,
            len,
            at: message.destination.map_or(stage, |at| at + offset),
            is_staged,
            is_here: false,
            has_arrived: false,
        });
        true
    }

    /// Notes that a piece is complete.
    fn complete(&mut self, number: u32) {
        if let Some(piece) = self.piece_mut(number) {
            piece.has_arrived = true;
        }
        while self.piece_mut(self.done).is_some_and(|piece| piece.has_arrived) {
            self.done = self.done.wrapping_add(1);
        }
    }
}

/// In [`RecvState`]: the announced message travels in slots.
const RELAYED: u64 = 1 << 32;

impl Peer {
    /// Announces a bulk message of a stream; false when it must be announced again later.
    pub(in crate::driver::verbs) fn announce_placed(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        state: &mut RecvState,
        destination: Option<SpanMut<'_>>,
    ) -> Result<bool, TransportError> {
        let Some(placed) = &mut self.placed else { return Ok(true) };
        let recv = &mut placed.recv;
        if recv.messages.len() == ANNOUNCED {
            return Ok(false);
        }
        let number = self.streams[stream].recv.announced;
        let claim = recv.owner.claim(stream, number);
        match claim {
            Claim::Unknown => return Ok(false),
            Claim::Relay => {
                self.notices.push_back(Notice::Relay { stream, number });
                let is_idle = recv.messages.is_empty();
                if let Some(owner) = is_idle.then(|| recv.owner.revoke()).flatten() {
                    self.notices.push_back(Notice::Revoke { stream: owner });
                }
                state.announced = Some(RELAYED | u64::from(number));
            }
            Claim::Owner | Claim::NewOwner => {
                if claim == Claim::NewOwner {
                    self.notices.push_back(Notice::Placed { stream, from: number });
                }
                let destination = destination.and_then(|span| env.locate(span.as_mut_ptr(), span.len()));
                let message = Message { stream, number, total: state.len, divided: 0, destination };
                recv.messages.push_back(message);
                state.announced = Some(u64::from(number));
            }
        }
        self.streams[stream].recv.announced = number.wrapping_add(1);
        self.post_receives(env)?;
        self.flush(env)?;
        Ok(true)
    }

    /// The sender has not begun the messages of a stream from `until` on.
    pub(in crate::driver::verbs) fn placed_revoked(&mut self, stream: usize, until: u32) {
        if let Some(placed) = &mut self.placed {
            placed.recv.owner.revoked(stream, until);
        }
        self.end_owner();
    }

    fn end_owner(&mut self) {
        if let Some(placed) = &mut self.placed
            && placed.recv.messages.is_empty()
        {
            placed.recv.owner.end(|stream| self.streams[stream].recv.announced);
        }
    }

    /// Posts the receives of expected pieces, in order, as far as the epoch and the device allow.
    pub(in crate::driver::verbs) fn post_receives(
        &mut self,
        env: &mut Env<'_>,
    ) -> Result<(), TransportError> {
        loop {
            let Some(placed) = &mut self.placed else { return Ok(()) };
            let recv = &mut placed.recv;
            let outstanding = recv.next.wrapping_sub(recv.done) as usize;
            if !placed.epoch.is_up() || outstanding >= env.rules.window.min(recv.limit) {
                return Ok(());
            }
            if recv.next == recv.end() && !recv.divide(env.rules.piece_bytes) {
                return Ok(());
            }
            let (number, already) = (recv.next, recv.posted);
            let Some(piece) = recv.piece_mut(number).copied() else { return Ok(()) };
            let rail = placed.epoch.incoming_rail(number);
            let posted = self.rails[rail].expect_piece(env, number, (piece.at, piece.len), already)?;
            let Some(placed) = &mut self.placed else { return Ok(()) };
            match posted {
                Ok(Posted::Both) => {
                    placed.recv.next = number.wrapping_add(1);
                    placed.recv.posted = Posted::None;
                }
                Ok(posted) => {
                    placed.recv.posted = posted.max(already);
                    self.streams[0].counters.refused += 1;
                    if outstanding == 0 {
                        return self.take_down(env, rail, "the device takes no receives of a piece");
                    }
                    placed.recv.limit = outstanding;
                    return Ok(());
                }
                Err(PostError::Full) => return Ok(()),
                Err(error) => return self.begin_epoch(env, &error.to_string()),
            }
        }
    }

    /// Something has arrived where a piece was expected.
    pub(in crate::driver::verbs) fn piece_came(
        &mut self,
        env: &mut Env<'_>,
        (number, bytes): (u32, u32),
    ) -> Result<(), TransportError> {
        let Some(placed) = &mut self.placed else { return Ok(()) };
        match placed.recv.piece_mut(number) {
            Some(piece) if piece.len == bytes as usize => {
                piece.is_here = true;
                Ok(())
            }
            _ => self.begin_epoch(env, "a message was lost"),
        }
    }

    /// Something has arrived where a trailer was expected.
    pub(in crate::driver::verbs) fn trailer_came(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        (number, bytes): (u32, u32),
    ) -> Result<(), TransportError> {
        let Some(mark) = self.trailer(env, rail, number, bytes as usize) else {
            return self.begin_epoch(env, "a message was lost");
        };
        let Some(placed) = &mut self.placed else { return Ok(()) };
        let Some(piece) = placed.recv.piece_mut(number).copied() else { return Ok(()) };
        if !piece.is_here {
            return self.begin_epoch(env, "a message was lost");
        }
        if env.rules.checksum && mark.crc != checksum(env.memory.bytes(piece.at, piece.len)) {
            return self.begin_epoch(env, "a message was damaged");
        }
        placed.recv.complete(number);
        self.post_receives(env)
    }

    /// The mark of a trailer, if it is whole and of that piece.
    fn trailer(&self, env: &Env<'_>, rail: usize, piece: u32, bytes: usize) -> Option<Mark> {
        if bytes != size_of::<Header>() + size_of::<Mark>() {
            return None;
        }
        let epoch = self.placed.as_ref()?.epoch.number();
        let at = self.rails[rail].trailer_in(piece);
        let header = read::<Header>(env.memory, at);
        let kind = header.checked(bytes).ok()?;
        let mark = read::<Mark>(env.memory, at + size_of::<Header>());
        let is_whole = !env.rules.checksum || header.crc == message_checksum(env.memory.bytes(at, bytes));
        let is_ours = kind == Kind::Trailer && mark.piece == piece && mark.attempt == epoch;
        (is_whole && is_ours).then_some(mark)
    }

    /// The peer has sent a piece that has not arrived. It went by another queue than this word.
    pub(in crate::driver::verbs) fn was_sent(
        &mut self,
        env: &mut Env<'_>,
        mark: Mark,
    ) -> Result<(), TransportError> {
        let Some(placed) = &mut self.placed else { return Err(self.protocol("a reply for no queue")) };
        let is_waited_for = placed.recv.done == mark.piece && placed.epoch.number() == mark.attempt;
        if let Some((piece, _, said)) = &mut placed.recv.waiting
            && *piece == mark.piece
            && is_waited_for
        {
            *said += 1;
            if *said >= LOST_AFTER {
                return self.begin_epoch(env, "a message was lost");
            }
        }
        Ok(())
    }

    /// Asks about the next piece if it has kept this rank waiting.
    pub(in crate::driver::verbs) fn probe_placed(
        &mut self,
        env: &mut Env<'_>,
        now: Instant,
    ) -> Result<(), TransportError> {
        let Some(placed) = &mut self.placed else { return Ok(()) };
        let recv = &mut placed.recv;
        if !placed.epoch.is_up() || recv.done == recv.next {
            recv.waiting = None;
            return Ok(());
        }
        match &mut recv.waiting {
            Some((piece, since, _)) if *piece == recv.done => {
                if now.saturating_duration_since(*since) < ASK_AFTER {
                    return Ok(());
                }
                *since = now;
            }
            waiting => {
                *waiting = Some((recv.done, now, 0));
                return Ok(());
            }
        }
        let mark = Mark { piece: recv.done, crc: 0, stream: 0, attempt: placed.epoch.number() };
        let rail = placed.epoch.incoming_rail(recv.done);
        if self.rails[rail].is_up() {
            self.say(env, rail, Kind::Probe, bytemuck::bytes_of(&mark))?;
        }
        Ok(())
    }

    /// Hands over the pieces that have arrived of the message that is first in line.
    pub(in crate::driver::verbs) fn hand_over_placed(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        state: &mut RecvState,
        sink: &mut dyn Sink,
    ) -> Result<RecvProgress, TransportError> {
        let Some(placed) = &mut self.placed else { return Ok(RecvProgress::Idle) };
        let (recv, counters) = (&mut placed.recv, &mut self.streams[stream].counters);
        let is_first = recv.messages.front().is_some_and(|message| {
            message.stream == stream && state.announced == Some(message.number.into())
        });
        let before = state.received;
        while is_first
            && let Some(piece) = recv.pieces.front().copied()
            && piece.has_arrived
            && piece.message == recv.first_message
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
            self.end_owner();
        }
        self.post_receives(env)?;
        self.flush(env)?;
        Ok(if is_complete { RecvProgress::Complete } else { RecvProgress::Advanced })
    }
}

/// Whether an announced message travels in slots.
pub(in crate::driver::verbs) fn is_relayed(state: &RecvState) -> bool {
    state.announced.is_none_or(|announced| announced & RELAYED != 0)
}

#[cfg(test)]
mod model;
