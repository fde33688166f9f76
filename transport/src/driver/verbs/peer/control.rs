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
        wire::{ASK, GRANTS_PER_MESSAGE, Header, Kind, MISSING, STREAMS, Selective},
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
    #[inline]
    fn done(&self, stream: usize) -> u32 {
        match &self.placed {
            Some(placed) => placed.recv.done(),
            None => self.granted.get(stream).map_or(0, |granted| granted.recv.done()),
        }
    }

    /// Writes the counters into a header.
    #[inline]
    pub(super) fn count(&mut self, header: &mut Header) {
        let stream = usize::from(header.stream);
        header.ack = self.received.expected();
        header.limit = self.streams[stream].recv.limit();
        header.done = self.done(stream);
        if self.rails.len() > 1 {
            self.report_next = (self.report_next + 1) % self.rails.len();
            header.bandwidth = self.rails[self.report_next].bandwidth.encode(self.report_next);
        }
    }

    /// Notes that the counters of a stream are on their way to the peer.
    #[inline]
    pub(super) fn counted(&mut self, stream: usize) {
        self.told_ack = self.received.expected();
        self.ack_now = false;
        self.streams[stream].recv.limit_told();
        match (&mut self.placed, self.granted.get_mut(stream)) {
            (Some(placed), _) => placed.recv.done_told(),
            (None, Some(granted)) => granted.recv.done_told(),
            _ => {}
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
            self.counted(usize::from(header.stream));
        }
        Ok(is_sent)
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

    /// Acknowledges all that has been received, with the counters of a stream.
    fn send_ack(&mut self, env: &mut Env<'_>, stream: usize, flags: u8) -> Result<(), TransportError> {
        let Some(active) = self.active() else { return Ok(()) };
        let selective = Selective { received: self.received.selective() };
        let missing = if self.is_missing { MISSING } else { 0 };
        let payload = if self.received.has_gap() { bytemuck::bytes_of(&selective) } else { &[] };
        let header = Header { stream: stream as u16, flags: flags | missing, ..Header::new(Kind::Ack) };
        if self.send_word_header(env, active, header, payload)? {
            self.is_missing = false;
        }
        Ok(())
    }

    /// Whether the peer must be told of the counters of a stream soon.
    #[inline]
    fn owes(&self, stream: usize, confirm: bool) -> bool {
        let owes_done = match &self.placed {
            Some(placed) => stream == 0 && placed.recv.owes_done(),
            None => !confirm && self.granted.get(stream).is_some_and(|granted| granted.recv.owes_done()),
        };
        owes_done || self.streams[stream].recv.owes_limit()
    }

    /// Sends pending messages, notices and grants, and the counters that the peer needs.
    #[inline]
    pub(in crate::driver::verbs) fn flush(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        if self.broken.is_some() {
            return Ok(());
        }
        self.post_unsent(env)?;
        if self.placed.is_some() {
            self.post_pieces(env)?;
        } else {
            self.repeat_pieces(env)?;
        }
        if !self.notices.is_empty() {
            self.flush_notices(env)?;
        }
        if !self.grants.is_empty() && self.notices.is_empty() {
            self.flush_grants(env)?;
        }
        for stream in 0..STREAMS {
            if self.tell_all || self.owes(stream, env.rules.completions_confirm()) {
                self.send_ack(env, stream, 0)?;
            }
        }
        self.tell_all = false;
        let unacknowledged = self.received.expected().wrapping_sub(self.told_ack);
        if self.ack_now || unacknowledged >= UNACKNOWLEDGED {
            self.send_ack(env, 0, 0)?;
        }
        Ok(())
    }

    fn flush_notices(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        while let Some(notice) = self.notices.front() {
            let (header, payload, len) = notice.encode();
            let pinned = notice.pinned();
            if !self.send(env, header, Span::from(&payload[..len]), true, pinned)? {
                break;
            }
            self.notices.pop_front();
        }
        Ok(())
    }

    fn flush_grants(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        if self.grants.len() > 1 {
            // Pieces that are granted again go before later ones that wait here.
            let done: [u32; STREAMS] = std::array::from_fn(|stream| self.done(stream));
            self.grants.sort_by_key(|grant| grant.piece.wrapping_sub(done[usize::from(grant.stream)]));
        }
        while !self.grants.is_empty() {
            let mut batch = [bytemuck::Zeroable::zeroed(); GRANTS_PER_MESSAGE];
            let count = self.grants.len().min(GRANTS_PER_MESSAGE);
            batch[..count].copy_from_slice(&self.grants[..count]);
            let payload = Span::from(bytemuck::cast_slice(&batch[..count]));
            if !self.send(env, Header::new(Kind::Grants), payload, true, None)? {
                break;
            }
            self.grants.drain(..count);
        }
        Ok(())
    }

    /// Repeats messages that were not acknowledged in time, and asks for counters that may have been lost.
    pub(in crate::driver::verbs) fn retry(
        &mut self,
        env: &mut Env<'_>,
        now: Instant,
    ) -> Result<(), TransportError> {
        if self.is_gone || self.active().is_none() {
            return Ok(());
        }
        if self.sequence.is_empty() {
            self.acknowledgement = Retry::NEW;
        } else if !env.rules.reliable && self.acknowledgement.is_due(now) {
            self.streams[0].counters.retransmissions += self.sequence.forget_all() as u64;
            self.post_unsent(env)?;
        }
        // Calls do not wait for staged pieces, but their staging places and the end of the connection do.
        if !std::mem::take(&mut self.wants_word) && self.are_pieces_sent() {
            self.word = Retry::NEW;
        } else if self.word.is_due(now) {
            self.send_ack(env, 0, ASK)?;
        }
        Ok(())
    }

    /// Whether all pieces that were sent have arrived.
    pub(in crate::driver::verbs) fn are_pieces_sent(&self) -> bool {
        let is_placed = self.placed.as_ref().is_none_or(|placed| placed.send.is_idle());
        is_placed && self.granted.iter().all(|granted| granted.send.is_idle())
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
        for stream in 0..STREAMS {
            let has_untold_done = match &self.placed {
                Some(placed) => stream == 0 && placed.recv.has_untold_done(),
                None => self.granted.get(stream).is_some_and(|granted| granted.recv.has_untold_done()),
            };
            if has_untold_done || self.streams[stream].recv.has_untold_limit() {
                self.send_ack(env, stream, 0)?;
            }
        }
        if self.told_ack != self.received.expected() {
            self.send_ack(env, 0, 0)?;
        }
        if is_silent {
            self.keep_alive(env)?;
        }
        Ok(())
    }
}
