//! Control messages: counters, acknowledgements, notices and grants.
//!
//! Every header carries the latest counters. An acknowledgement of its own is sent only where no other
//! message is about to carry them. Notices and grants are sequenced and wait here for room.

use super::Peer;
use crate::{
    TransportError,
    driver::verbs::{
        attempts::Retry,
        env::Env,
        placed::Placed,
        rail::Rail,
        stream::Stream,
        wire::{ASK, GRANTS_PER_MESSAGE, Header, Kind, MISSING, NO_STREAM, Selective},
    },
    memory::Span,
};
use std::time::{Duration, Instant};

/// Time for which a message counts as expected after a call waited for it. A call that waits may sleep
/// between polls, but not as long.
const AWAITED_FOR: Duration = Duration::from_millis(200);
/// Received messages that need not be acknowledged at once.
const UNACKNOWLEDGED: u32 = 12;

impl Peer {
    /// Writes the counters into a header. Those of a stream that is closed by now stay as they were.
    #[inline]
    pub(super) fn count(&mut self, header: &mut Header) {
        header.ack = self.received.expected();
        if let Some(stream) = self.streams.find(header.stream) {
            let stream = &self.streams[stream];
            (header.limit, header.done) = (stream.recv.limit(), stream.done());
        }
        if let Some(placed) = &self.placed {
            header.done = placed.recv.done();
        }
        if self.rails.len() > 1 {
            self.report_next = (self.report_next + 1) % self.rails.len();
            header.bandwidth = self.rails[self.report_next].bandwidth.encode(self.report_next);
        }
    }

    /// Notes that the counters, with those of the stream of a number, are on their way to the peer.
    #[inline]
    pub(super) fn counted(&mut self, number: u32) {
        self.told_ack = self.received.expected();
        self.ack_now = false;
        if let Some(stream) = self.streams.find(number) {
            let stream = &mut self.streams[stream];
            stream.recv.limit_told();
            stream.granted.recv.done_told();
        }
        if let Some(placed) = &mut self.placed {
            placed.recv.done_told();
        }
    }

    /// Sends an unsequenced message by a rail, if there is room for it at once.
    pub(super) fn send_word(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        kind: Kind,
        payload: &[u8],
    ) -> Result<bool, TransportError> {
        self.send_word_header(env, rail, Header::new(kind), payload)
    }

    fn send_word_header(
        &mut self,
        env: &mut Env<'_>,
        rail: usize,
        mut header: Header,
        payload: &[u8],
    ) -> Result<bool, TransportError> {
        self.count(&mut header);
        let is_sent = self.rails[rail].send_word(env, header, payload)?;
        if is_sent {
            self.counted(header.stream);
        }
        Ok(is_sent)
    }

    /// Sends a message by each rail that is up, whose completion is asked for.
    pub(in crate::driver::verbs) fn mark_sent(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        for rail in (0..self.rails.len()).filter(|_| self.is_open()).collect::<Vec<_>>() {
            if self.rails[rail].is_up() {
                self.rails[rail].mark = None;
                let next = self.rails[rail].control().next();
                let is_sent = self.send_word(env, rail, Kind::Ping, &[])?;
                self.rails[rail].mark = is_sent.then_some(next);
            }
        }
        Ok(())
    }

    /// Whether all messages before [`Peer::mark_sent`] have left the rails. They have not where no rail is
    /// up, or one has fallen since: what it had not sent is sent by another one, or by a new connection.
    pub(in crate::driver::verbs) fn has_sent_marked(&self) -> bool {
        let mut up = self.rails.iter().filter(|rail| rail.is_up()).peekable();
        up.peek().is_some() && up.all(Rail::has_sent_marked) && !self.sequence.may_have_unsent()
    }

    /// Tells the peer by all rails that this rank closes.
    pub(in crate::driver::verbs) fn send_goodbye(&mut self, env: &mut Env<'_>) {
        for rail in 0..self.rails.len() {
            if self.rails[rail].is_up() && !self.is_gone {
                // A peer that misses the message finds out by other means.
                let _ = self.send_word(env, rail, Kind::Goodbye, &[]);
            }
        }
    }

    /// Acknowledges all that has been received, with the counters of a stream, if one is named.
    fn send_ack(
        &mut self,
        env: &mut Env<'_>,
        stream: Option<usize>,
        flags: u8,
    ) -> Result<(), TransportError> {
        let Some(active) = self.active() else { return Ok(()) };
        let selective = Selective { received: self.received.selective() };
        let missing = if self.is_missing { MISSING } else { 0 };
        let payload = if self.received.has_gap() { bytemuck::bytes_of(&selective) } else { &[] };
        let stream = stream.map_or(NO_STREAM, |stream| self.streams[stream].number());
        let header = Header { stream, flags: flags | missing, ..Header::new(Kind::Ack) };
        if self.send_word_header(env, active, header, payload)? {
            self.is_missing = false;
        }
        Ok(())
    }

    /// Sends the counters of streams that the peer needs soon.
    #[inline]
    fn flush_counters(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        let mut position = 0;
        while let Some(index) = self.streams.pending(position) {
            let stream = &mut self.streams[index];
            let owes_done = !env.rules.completions_confirm() && stream.granted.recv.owes_done();
            if std::mem::take(&mut stream.must_tell) || owes_done || stream.recv.owes_limit() {
                self.send_ack(env, Some(index), 0)?;
            }
            // Without room for the message the peer asks again, or a later message tells.
            self.streams.settle(position);
            position = 0;
        }
        if self.placed.as_ref().is_some_and(|placed| placed.recv.owes_done()) {
            self.send_ack(env, None, 0)?;
        }
        Ok(())
    }

    /// Makes the counters of all streams known to the peer.
    pub(super) fn tell_all(&mut self) {
        self.streams.iter_mut().for_each(|stream| stream.must_tell = true);
        self.streams.touch_all();
    }

    /// Whether anything may have to be sent: messages, notices, grants, or counters that the peer needs.
    #[inline]
    fn has_pending(&self) -> bool {
        let is_pending = |placed: &Placed| placed.send.has_unposted() || placed.recv.owes_done();
        self.placed.as_ref().is_some_and(is_pending)
            || self.sequence.may_have_unsent()
            || self.has_repetitions
            || !self.notices.is_empty()
            || !self.grants.is_empty()
            || self.streams.has_pending()
            || self.owes_ack()
    }

    /// Whether the peer should be sent an acknowledgement.
    #[inline]
    fn owes_ack(&self) -> bool {
        self.ack_now || self.received.expected().wrapping_sub(self.told_ack) >= UNACKNOWLEDGED
    }

    /// Sends pending messages, notices and grants, and the counters that the peer needs.
    #[inline]
    pub(in crate::driver::verbs) fn flush(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        if self.has_pending() { self.flush_pending(env) } else { Ok(()) }
    }

    fn flush_pending(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        if self.broken.is_some() {
            return Ok(());
        }
        self.post_unsent(env)?;
        if self.placed.is_some() {
            self.post_pieces(env)?;
        } else if self.has_repetitions {
            self.repeat_pieces(env)?;
        }
        if !self.notices.is_empty() {
            self.flush_notices(env)?;
        }
        if !self.grants.is_empty() && self.notices.is_empty() {
            self.flush_grants(env)?;
        }
        self.flush_counters(env)?;
        if self.owes_ack() {
            self.send_ack(env, None, 0)?;
        }
        Ok(())
    }

    fn flush_notices(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        while let Some(notice) = self.notices.front() {
            let (mut header, payload, len) = notice.encode();
            let pinned = notice.pinned();
            if !self.send(env, &mut header, Span::from(&payload[..len]), true, pinned)? {
                break;
            }
            self.notices.pop_front();
        }
        Ok(())
    }

    fn flush_grants(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        if self.grants.len() > 1 {
            // Pieces that are granted again go before later ones that wait here.
            let streams = &self.streams;
            let done = |number| streams.find(number).map_or(0, |stream| streams[stream].done());
            self.grants.sort_by_key(|grant| grant.piece.wrapping_sub(done(grant.stream)));
        }
        while !self.grants.is_empty() {
            let mut batch = [bytemuck::Zeroable::zeroed(); GRANTS_PER_MESSAGE];
            let count = self.grants.len().min(GRANTS_PER_MESSAGE);
            batch[..count].copy_from_slice(&self.grants[..count]);
            let payload = Span::from(bytemuck::cast_slice(&batch[..count]));
            if !self.send(env, &mut Header::new(Kind::Grants), payload, true, None)? {
                break;
            }
            self.grants.drain(..count);
        }
        Ok(())
    }

    /// Asks for the acknowledgement of messages that were not acknowledged in time, then repeats the last
    /// ones, then all of them, and asks for counters that may have been lost.
    pub(in crate::driver::verbs) fn retry(
        &mut self,
        env: &mut Env<'_>,
        now: Instant,
    ) -> Result<(), TransportError> {
        if self.is_gone || self.active().is_none() {
            return Ok(());
        }
        let latest = self.sequence.last();
        self.round_trip.look(now, latest, latest.wrapping_add(1).wrapping_sub(self.sequence.len()));
        let first = self.round_trip.timeout();
        if self.sequence.is_empty() {
            self.acknowledgement = Retry::NEW;
        } else if !env.rules.reliable && self.acknowledgement.is_due(now, first) {
            // A peer that does not run has lost nothing: a question costs less than messages.
            if self.acknowledgement.timeouts() == 1 {
                self.round_trip.asked(now);
                self.send_ack(env, None, ASK)?;
            } else {
                self.round_trip.repeated(self.acknowledgement.timeout());
                self.repeat(env)?;
            }
        }
        self.ask(env, now)
    }

    /// Repeats messages that were not acknowledged in time.
    fn repeat(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        let repeated = match self.acknowledgement.timeouts() {
            2 => self.sequence.forget_last(),
            _ => self.sequence.forget_all(),
        };
        self.counters.retransmissions += repeated as u64;
        self.post_unsent(env)?;
        if self.sequence.unsent().is_none() {
            return Ok(());
        }
        // The completion of a ping tells which requests have left, and so which places are free.
        for rail in 0..self.rails.len() {
            if self.rails[rail].is_up() {
                self.send_word(env, rail, Kind::Ping, &[])?;
            }
        }
        Ok(())
    }

    /// Asks for the counters that sends wait for, after some time.
    fn ask(&mut self, env: &mut Env<'_>, now: Instant) -> Result<(), TransportError> {
        // Calls do not wait for staged pieces, but their staging places and the end of the connection do.
        let waits = |stream: &Stream| stream.wants_word || !stream.granted.send.is_idle();
        let is_placed = self.placed.as_ref().is_some_and(|placed| !placed.send.is_idle());
        if !is_placed && !self.streams.iter().any(waits) {
            self.word = Retry::NEW;
            return Ok(());
        }
        let is_due = self.word.is_due(now, self.round_trip.timeout());
        let mut has_asked = false;
        for index in self.streams.indices() {
            if let Some(stream) = self.streams.get_mut(index) {
                let waits = waits(stream);
                stream.wants_word = false;
                if waits && is_due {
                    self.send_ack(env, Some(index), ASK)?;
                    has_asked = true;
                }
            }
        }
        if is_due && is_placed && !has_asked {
            self.send_ack(env, None, ASK)?;
        }
        Ok(())
    }

    /// Whether all pieces that were sent have arrived.
    pub(in crate::driver::verbs) fn are_pieces_sent(&self) -> bool {
        let is_placed = self.placed.as_ref().is_none_or(|placed| placed.send.is_idle());
        is_placed && self.streams.iter().all(|stream| stream.granted.send.is_idle())
    }

    /// Notes that a call waits for a message.
    #[inline]
    pub(super) fn await_message(&mut self) {
        self.is_awaited = true;
    }

    /// Whether anything is expected of the peer: a message, or an acknowledgement.
    pub(super) fn expects_word(&mut self, now: Instant) -> bool {
        if std::mem::take(&mut self.is_awaited) {
            self.last_awaited = Some(now);
        }
        let is_awaited =
            self.last_awaited.is_some_and(|last| now.saturating_duration_since(last) < AWAITED_FOR);
        is_awaited || !self.sequence.is_empty() || !self.are_pieces_sent()
    }

    /// Serves the peer between calls: sends counters that it does not know, and, if `is_silent`, a message by
    /// every queue pair.
    pub(in crate::driver::verbs) fn look_after(
        &mut self,
        env: &mut Env<'_>,
        is_silent: bool,
    ) -> Result<(), TransportError> {
        if self.broken.is_some() || self.is_gone {
            return Ok(());
        }
        for index in self.streams.indices() {
            let Some(stream) = self.streams.get(index) else { continue };
            if stream.granted.recv.has_untold_done() || stream.recv.has_untold_limit() {
                self.send_ack(env, Some(index), 0)?;
            }
        }
        let has_untold_done = self.placed.as_ref().is_some_and(|placed| placed.recv.has_untold_done());
        if has_untold_done || self.told_ack != self.received.expected() {
            self.send_ack(env, None, 0)?;
        }
        if is_silent {
            self.keep_alive(env)?;
        }
        Ok(())
    }
}
