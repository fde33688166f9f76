//! Sending and receiving the messages of the runtime.
//!
//! A message is copied into slots, fragment by fragment, and travels at once; its caller need not wait. A
//! bulk message begins with a head; its bytes follow in pieces, or, where its stream may not use them, in
//! slots.

use super::{Peer, TAKEN};
use crate::{
    RecvProgress, RecvState, SendProgress, SendState, Sink, TransportError,
    driver::verbs::{
        env::Env,
        placed::is_relayed,
        rules::Rules,
        staging::ArrivedPiece,
        stream::{Bytes, Stream, Way, is_bulk},
        wire::{CONFIRM, Header},
    },
    memory::{Span, SpanMut},
};

/// In [`SendState`]: the send waits until the fragment of this number is matched.
const MATCH: u64 = 1 << 32;
/// In [`SendState`]: the bulk message was sent in slots.
const RELAYED: u64 = 1 << 34;

impl Peer {
    /// Starts or continues sending a message, of which the first `ready` bytes are valid.
    #[inline]
    pub(in crate::driver::verbs) fn poll_send(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        state: &mut SendState,
        src: Span<'_>,
        ready: usize,
    ) -> Result<SendProgress, TransportError> {
        self.check()?;
        let state_of_stream = &self.streams[stream];
        if let Some(difference) = state_of_stream.difference {
            return Err(difference.into());
        }
        let is_ended = state_of_stream.is_ended;
        let bulk = env.rules.has_pieces() && is_bulk(state.size, src.len());
        if let Some(awaits) = state.awaits {
            let is_over = self.is_over(stream, awaits, bulk && awaits & RELAYED == 0);
            self.streams[stream].wants_word |= !is_over;
            return Ok(if is_over { SendProgress::Complete } else { SendProgress::Posted });
        }
        if is_ended {
            // The runtime hears from the other ranks why.
            return Ok(SendProgress::Idle);
        }
        if !bulk {
            return self.send_fragments(env, stream, state, src, ready, false);
        }
        if !self.send_head(env, stream, state, src.len())? {
            return Ok(SendProgress::Idle);
        }
        if env.rules.one_sided {
            return self.send_granted(env, stream, state, src, ready);
        }
        match self.placed_way(stream) {
            Some(Way::Placed) => self.send_placed(env, stream, state, src, ready),
            Some(Way::Relayed) => self.send_fragments(env, stream, state, src, ready, true),
            None => {
                self.streams[stream].wants_word = true;
                Ok(SendProgress::Idle)
            }
        }
    }

    /// Whether the event that a send waits for has happened.
    #[inline]
    fn is_over(&self, stream: usize, awaits: u64, is_in_pieces: bool) -> bool {
        let number = awaits as u32;
        if awaits & TAKEN != 0 {
            if is_in_pieces { self.has_placed_taken(number) } else { self.sequence.is_sent(number) }
        } else if awaits & MATCH != 0 {
            self.streams[stream].send.is_matched(number)
        } else if self.placed.is_some() {
            self.has_placed_arrived(number)
        } else {
            self.streams[stream].granted.send.has_arrived(number)
        }
    }

    /// Sends the head of a bulk message, unless it has been; false when there is no room for it.
    fn send_head(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        state: &SendState,
        total: usize,
    ) -> Result<bool, TransportError> {
        let (send, number) = (&self.streams[stream].send, self.streams[stream].number());
        if send.has_head() {
            return Ok(true);
        }
        let mut header = Header { stream: number, ..send.head(state, total) };
        if !send.has_credit() || !self.send(env, &mut header, Span::from(&[][..]), false, None)? {
            self.streams[stream].wants_word = true;
            return Ok(false);
        }
        self.streams[stream].send.head_sent();
        Ok(true)
    }

    /// Sends the valid bytes of a message in slots.
    #[inline]
    fn send_fragments(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        state: &mut SendState,
        src: Span<'_>,
        ready: usize,
        is_relayed: bool,
    ) -> Result<SendProgress, TransportError> {
        let total = src.len();
        let before = state.staged;
        let queues = env.rules.queues;
        let number = self.streams[stream].number();
        loop {
            let len = queues.payload(total - state.staged);
            let send = &self.streams[stream].send;
            if state.staged + len > ready || !send.has_credit() {
                break;
            }
            let is_last = state.staged + len == total;
            let flags = if state.match_ack && is_last { CONFIRM } else { 0 };
            let mut header = Header { stream: number, ..send.fragment(state, total, flags) };
            if !self.send(env, &mut header, src.sub(state.staged, len), false, None)? {
                break;
            }
            let stream_state = &mut self.streams[stream];
            let fragment = stream_state.send.fragment_sent();
            stream_state.counters.copied_bytes += len as u64;
            state.staged += len;
            if !is_last {
                continue;
            }
            if is_relayed {
                self.relay_sent(stream);
            }
            let stream_state = &mut self.streams[stream];
            stream_state.send.end_message(is_relayed);
            stream_state.counters.sent_messages += 1;
            if state.match_ack {
                state.awaits = Some(MATCH | u64::from(fragment));
                return Ok(SendProgress::Posted);
            }
            // A call must not end while its message is not posted: no call might post it for a while.
            let last = self.sequence.last();
            if self.sequence.is_sent(last) {
                return Ok(SendProgress::Complete);
            }
            state.awaits = Some(TAKEN | if is_relayed { RELAYED } else { 0 } | u64::from(last));
            return Ok(SendProgress::Posted);
        }
        self.streams[stream].wants_word = true;
        Ok(if state.staged > before { SendProgress::Advanced } else { SendProgress::Idle })
    }

    /// Announces a receive; false when it must be announced again later.
    pub(in crate::driver::verbs) fn announce(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        state: &mut RecvState,
        destination: Option<SpanMut<'_>>,
    ) -> Result<bool, TransportError> {
        let bulk = env.rules.has_pieces() && is_bulk(state.size, state.len);
        if !bulk || state.announced.is_some() || self.streams[stream].is_ended {
            return Ok(true);
        }
        if env.rules.one_sided {
            self.announce_granted(env, stream, state, destination)
        } else {
            self.announce_placed(env, stream, state, destination)
        }
    }

    /// Whether polling a receive may do anything. Where it may not, notes that a call waits for the message.
    #[inline]
    pub(in crate::driver::verbs) fn may_receive(
        &mut self,
        rules: &Rules,
        stream: usize,
        state: &RecvState,
    ) -> bool {
        let Stream { recv, difference, .. } = &self.streams[stream];
        let is_here = recv.front().is_some() || difference.is_some() || self.broken.is_some();
        let may = is_here || rules.has_pieces() && is_bulk(state.size, state.len);
        self.is_awaited |= !may;
        may
    }

    /// Starts or continues receiving the next message of a stream.
    #[inline]
    pub(in crate::driver::verbs) fn poll_recv(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        state: &mut RecvState,
        sink: &mut dyn Sink,
    ) -> Result<RecvProgress, TransportError> {
        if let Some(difference) = self.streams[stream].difference {
            return Err(difference.into());
        }
        let bulk = env.rules.has_pieces() && is_bulk(state.size, state.len);
        if bulk && state.announced.is_none() {
            let destination = sink.destination();
            self.announce(env, stream, state, destination)?;
        }
        let mut has_advanced = false;
        let is_in_pieces = bulk && !is_relayed(state);
        while let Some(fragment) = self.streams[stream].recv.front() {
            let recv = &self.streams[stream].recv;
            // Fragments behind the head of a message in pieces belong to later messages.
            if recv.has_head() && is_in_pieces {
                break;
            }
            if !fragment.is_next(state, recv.message())? || fragment.is_head != (bulk && !recv.has_head()) {
                return Err(self.protocol("a part of a message where another part belongs"));
            }
            // A bulk message that could not be announced yet waits.
            if bulk && state.announced.is_none() {
                break;
            }
            if self.take_fragment(env, stream, state, sink)? {
                return Ok(RecvProgress::Complete);
            }
            has_advanced = true;
        }
        if is_in_pieces && self.streams[stream].recv.has_head() {
            let progress = self.hand_over(env, stream, state, sink)?;
            let is_idle = progress == RecvProgress::Idle && !has_advanced;
            if is_idle {
                self.await_message();
            }
            return Ok(if progress == RecvProgress::Complete || is_idle {
                progress
            } else {
                RecvProgress::Advanced
            });
        }
        if has_advanced {
            return Ok(RecvProgress::Advanced);
        }
        self.check()?;
        self.await_message();
        Ok(RecvProgress::Idle)
    }

    /// Takes the next piece of a bulk message that has arrived.
    fn pop_piece(&mut self, stream: usize, state: &RecvState) -> Option<ArrivedPiece> {
        match &mut self.placed {
            Some(placed) if placed.recv.is_first(stream, state) => placed.recv.pop(),
            Some(_) => None,
            None => self.streams[stream].granted.recv.pop(state.announced),
        }
    }

    /// Hands over the pieces of a bulk message that have arrived.
    fn hand_over(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        state: &mut RecvState,
        sink: &mut dyn Sink,
    ) -> Result<RecvProgress, TransportError> {
        let before = state.received;
        while let Some(piece) = self.pop_piece(stream, state) {
            if piece.is_staged {
                if sink.destination().is_some() {
                    self.streams[stream].counters.copied_bytes += piece.len as u64;
                }
                sink.write(piece.offset, env.memory.span(piece.at, piece.len));
            }
            state.received += piece.len;
        }
        if state.received == before {
            self.check()?;
            return Ok(RecvProgress::Idle);
        }
        let Stream { recv, counters, .. } = &mut self.streams[stream];
        counters.moved_bytes += (state.received - before) as u64;
        let is_complete = state.received == state.len;
        if is_complete {
            counters.received_messages += 1;
            recv.end_message();
        }
        match &mut self.placed {
            Some(placed) => {
                if is_complete {
                    placed.recv.end_message();
                    self.end_owner();
                }
                self.post_receives(env)?;
            }
            None => {
                if is_complete {
                    self.streams[stream].granted.recv.end_message();
                }
                self.grant_more(env, stream)?;
            }
        }
        self.flush(env)?;
        Ok(if is_complete { RecvProgress::Complete } else { RecvProgress::Advanced })
    }

    /// Hands over the first fragment of a stream; returns whether the message is complete.
    #[inline]
    fn take_fragment(
        &mut self,
        env: &mut Env<'_>,
        stream: usize,
        state: &mut RecvState,
        sink: &mut dyn Sink,
    ) -> Result<bool, TransportError> {
        let Stream { recv, counters, .. } = &mut self.streams[stream];
        let Some(fragment) = recv.pop() else { return Ok(false) };
        let (is_head, must_confirm) = (fragment.is_head, fragment.must_confirm());
        if !is_head {
            let is_stored = sink.destination().is_some();
            if fragment.len > 0 || is_stored {
                counters.copied_bytes += if is_stored { fragment.len as u64 } else { 0 };
                match &fragment.bytes {
                    Bytes::Slot { at, .. } => sink.write(state.received, env.memory.span(*at, fragment.len)),
                    Bytes::Heap(bytes) => sink.write(state.received, Span::from(&**bytes)),
                }
            }
            state.received += fragment.len;
            counters.moved_bytes += fragment.len as u64;
        }
        let is_complete = !is_head && state.received == state.len;
        if is_complete {
            counters.received_messages += 1;
            recv.end_message();
        } else if is_head {
            recv.take_head();
        }
        let owes_limit = recv.owes_limit();
        if must_confirm {
            // The counters of the stream tell the sender.
            self.streams[stream].must_tell = true;
        }
        if must_confirm || owes_limit {
            self.streams.touch(stream);
        }
        if let Bytes::Slot { rail, queue, slot, .. } = fragment.bytes {
            self.release(env, (rail, queue, slot))?;
        }
        self.flush(env)?;
        Ok(is_complete)
    }
}
