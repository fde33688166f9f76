//! Pieces on their way to a peer.
//!
//! A piece lies in registered memory of the caller, or in a staging place. It is kept until the peer's counter
//! tells that it has arrived; in a new epoch pieces are sent again from the first one that the peer lacks.

use super::{STAGES, owner::SendOwner};
use crate::{
    SendProgress, SendState, TransportError,
    driver::verbs::{
        notice::Notice,
        peer::{Env, Peer},
        rail::PLACED,
        stream::Way,
        wire::{Header, Kind, Mark, checksum, is_before},
    },
    memory::Span,
    verbs::{Operation, PostError},
};
use std::{collections::VecDeque, time::Instant};

/// Pieces between looks at the speed of rails.
const LOOK_EVERY: u32 = 1024;

/// A piece that is not known to have arrived.
#[derive(Clone, Copy, Debug, Hash)]
struct Piece {
    at: usize,
    len: usize,
    /// The staging place that it lies in.
    stage: Option<u32>,
    stream: u16,
    crc: u32,
    digest: u64,
}

/// The outgoing direction.
#[derive(Clone, Debug, Hash)]
pub(super) struct PlacedSend {
    owner: SendOwner,
    /// Pieces that have not arrived, and the number of the first.
    pieces: VecDeque<Piece>,
    first: u32,
    /// Number of the next piece to be posted in this epoch.
    next: u32,
    /// Pieces since the speed of rails was last looked at.
    since_look: u32,
    /// Free staging places.
    stages: Vec<u32>,
    stage_base: usize,
    stage_bytes: usize,
}

impl PlacedSend {
    pub(super) fn new(stage_base: usize, stage_bytes: usize) -> PlacedSend {
        PlacedSend {
            owner: SendOwner::default(),
            pieces: VecDeque::with_capacity(64),
            first: 0,
            next: 0,
            since_look: 0,
            stages: (0..STAGES).collect(),
            stage_base,
            stage_bytes,
        }
    }

    /// Number of the next new piece.
    fn end(&self) -> u32 {
        self.first.wrapping_add(self.pieces.len() as u32)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.pieces.is_empty()
    }

    /// All pieces before this one have arrived.
    #[inline]
    pub(super) fn arrived_before(&mut self, done: u32) {
        // A piece that was not posted can't have arrived.
        while is_before(self.first, done) && is_before(self.first, self.next) {
            let Some(piece) = self.pieces.pop_front() else { break };
            self.stages.extend(piece.stage);
            self.first = self.first.wrapping_add(1);
        }
    }

    /// Nothing is posted until [`PlacedSend::resume`].
    pub(super) fn stop(&mut self) {
        self.since_look = 0;
    }

    /// The peer's first missing piece; all from there on must be posted. Returns the number of pieces that are
    /// sent again; `None` for a piece that was never sent.
    pub(super) fn resume(&mut self, first: u32) -> Option<u32> {
        self.arrived_before(first);
        if is_before(first, self.first) || is_before(self.next, first) {
            return None;
        }
        let again = self.next.wrapping_sub(first);
        self.next = first;
        Some(again)
    }

    /// Whether it is time to look at the speed of rails.
    pub(super) fn is_measured(&self) -> bool {
        self.since_look >= LOOK_EVERY
    }
}

impl Peer {
    /// How the present bulk message of a stream is sent; `None` while the receiver has not told.
    pub(in crate::driver::verbs) fn placed_way(&mut self, stream: usize) -> Option<Way> {
        let placed = self.placed.as_ref()?;
        let send = &mut self.streams[stream].send;
        send.way = send.way.or_else(|| placed.send.owner.way(stream, send.bulk()));
        send.way
    }

    /// Receives are posted for the bulk messages of a stream.
    pub(in crate::driver::verbs) fn give_placed(&mut self, stream: usize, from: u32) {
        if let Some(placed) = &mut self.placed {
            placed.send.owner.give(stream, from);
        }
    }

    /// A bulk message must travel in slots.
    pub(in crate::driver::verbs) fn relay(&mut self, stream: usize, number: u32) {
        if let Some(placed) = &mut self.placed {
            placed.send.owner.relay(stream, number);
        }
    }

    /// A relayed bulk message has been sent.
    pub(in crate::driver::verbs) fn relay_sent(&mut self, stream: usize) {
        let number = self.streams[stream].send.bulk();
        if let Some(placed) = &mut self.placed {
            placed.send.owner.relay_sent(stream, number);
        }
    }

    /// The peer wants the queues that a stream owns.
    pub(in crate::driver::verbs) fn take_placed(&mut self, stream: usize) {
        let send = &self.streams[stream].send;
        let until = send.bulk().wrapping_add((send.way == Some(Way::Placed)).into());
        if let Some(placed) = &mut self.placed {
            placed.send.owner.take(stream);
            self.notices.push_back(Notice::Revoked { stream, until });
        }
    }

    /// Sends pieces of a bulk message whose head has been sent.
    pub(in crate::driver::verbs) fn send_placed(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        state: &mut SendState,
        src: Span<'_>,
        ready: usize,
    ) -> Result<SendProgress, TransportError> {
        let before = state.staged;
        while state.staged < ready {
            let len = (src.len() - state.staged).min(env.rules.piece_bytes);
            if state.staged + len > ready
                || !self.add_piece(env, stream, state.digest, src.sub(state.staged, len))?
            {
                break;
            }
            state.staged += len;
        }
        self.post_pieces(env)?;
        let Some(placed) = &self.placed else { return Ok(SendProgress::Idle) };
        if state.staged == src.len() {
            let is_copied = placed.send.pieces.back().is_none_or(|piece| piece.stage.is_some());
            let end = placed.send.end();
            let stream = &mut self.streams[stream];
            stream.send.end_message(true);
            stream.counters.sent_messages += 1;
            // A staged message is a copy, which is kept until it has arrived.
            if is_copied && !state.match_ack {
                return Ok(SendProgress::Complete);
            }
            state.awaits = Some(u64::from(end));
            return Ok(SendProgress::Posted);
        }
        self.wants_word = true;
        Ok(if state.staged > before { SendProgress::Advanced } else { SendProgress::Idle })
    }

    /// Whether a bulk message has arrived whose last piece is before this number.
    pub(in crate::driver::verbs) fn has_placed_arrived(&self, end: u32) -> bool {
        self.placed.as_ref().is_some_and(|placed| !is_before(placed.send.first, end))
    }

    /// Adds a piece; false when there is no room for it.
    fn add_piece(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        digest: u64,
        src: Span<'_>,
    ) -> Result<bool, TransportError> {
        let Some(placed) = &mut self.placed else { return Ok(false) };
        let send = &mut placed.send;
        if send.pieces.len() >= env.rules.window {
            return Ok(false);
        }
        let (at, stage) = match env.locate(src.as_ptr(), src.len()) {
            Some(at) => (at, None),
            None => {
                let Some(stage) = send.stages.pop() else { return Ok(false) };
                let at = send.stage_base + stage as usize * send.stage_bytes;
                env.memory.put(at, src);
                self.streams[stream].counters.copied_bytes += src.len() as u64;
                (at, Some(stage))
            }
        };
        let crc = if env.rules.checksum { checksum(env.memory.bytes(at, src.len())) } else { 0 };
        send.pieces.push_back(Piece { at, len: src.len(), stage, stream: stream as u16, crc, digest });
        Ok(true)
    }

    /// Posts pieces, each with its trailer, as far as the epoch and the queues allow.
    pub(in crate::driver::verbs) fn post_pieces(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        while let Some(placed) = &mut self.placed
            && placed.epoch.is_up()
            && is_before(placed.send.next, placed.send.end())
        {
            let number = placed.send.next;
            let piece = placed.send.pieces[number.wrapping_sub(placed.send.first) as usize];
            let (index, epoch) = (placed.epoch.outgoing_rail(number), placed.epoch.number());
            let several = self.rails.len() > 1;
            let rail = &mut self.rails[index];
            let has_room = rail.placed.as_ref().is_some_and(|queue| queue.has_room_for_piece(piece.len));
            if !has_room || !rail.is_up() {
                return Ok(());
            }
            let mark = Mark { piece: number, crc: piece.crc, stream: piece.stream.into(), attempt: epoch };
            let header = Header { digest: piece.digest, stream: piece.stream, ..Header::new(Kind::Trailer) };
            let trailer = rail.write_trailer(env, number, &header, bytemuck::bytes_of(&mark))?;
            let bytes = env.ports[rail.port()].keys.run(piece.at, piece.len)?;
            let Some(queue) = rail.queue_mut(PLACED) else { return Ok(()) };
            let posted = queue.send_piece(bytes, Operation::Send, (0, number), (false, several));
            let posted = match posted {
                Ok(true) => queue.send(trailer, false).and_then(|is_posted| {
                    // There was room for both.
                    if is_posted { Ok(true) } else { Err(PostError::Full) }
                }),
                other => other,
            };
            match posted {
                Ok(false) => return Ok(()),
                Ok(true) if several => rail.pace.posted(piece.len as u64, Instant::now()),
                Ok(true) => {}
                Err(error) => return self.begin_epoch(env, &error.to_string()),
            }
            if let Some(placed) = &mut self.placed {
                placed.send.next = number.wrapping_add(1);
                placed.send.since_look = placed.send.since_look.saturating_add(1);
            }
        }
        Ok(())
    }

    /// Answers whether a piece has been sent in an epoch. Silence means that it has not.
    pub(in crate::driver::verbs) fn answer_probe(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        mark: Mark,
    ) -> Result<(), TransportError> {
        let Some(placed) = &self.placed else { return Err(self.protocol("a probe for no queue")) };
        if placed.epoch.number() == mark.attempt && is_before(mark.piece, placed.send.next) {
            self.say(env, rail, Kind::Reply, bytemuck::bytes_of(&mark))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod model {
    //! The steps of a sender without memory and devices, for the model of both ends.

    use super::*;

    impl PlacedSend {
        pub(in super::super) fn add(&mut self) {
            self.pieces.push_back(Piece { at: 0, len: 1, stage: None, stream: 0, crc: 0, digest: 0 });
        }

        /// Number of the first piece that is not known to have arrived.
        pub(in super::super) fn first(&self) -> u32 {
            self.first
        }

        /// The next piece to be posted, as in [`Peer::post_pieces`].
        pub(in super::super) fn next(&self) -> Option<u32> {
            is_before(self.next, self.end()).then_some(self.next)
        }

        pub(in super::super) fn posted(&mut self) {
            self.next += 1;
        }
    }
}
