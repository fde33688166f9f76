//! What waits to be said to a peer: notices, grants, and words of what was received; and what is said again as time passes.
//!
//! Whatever is queued here goes out by [`Peer::flush`], which whoever changes a peer calls before it returns. Grants wait for
//! notices, since a rail that is made new is named before grants are for it. What travels in a message is `wire`, and how it
//! is numbered and kept, `peer`.

use super::{
    incoming::Incoming,
    landing::LANDINGS,
    outgoing::Outgoing,
    peer::{EAGER_CREDITS, Env, FIRST_PATIENCE, Peer, TX_SLOTS},
    wire::{ASK, GRANTS_PER_MESSAGE, Grant, Header, Kind, LANES, Mark, Tally},
};
use crate::{TransportError, memory::Span};
use std::time::{Duration, Instant};

/// What is told at most of why a rail is down.
const CAUSE_BYTES: usize = 200;
/// The longest wait for an acknowledgement.
const LAST_PATIENCE: Duration = Duration::from_millis(100);

/// A control message that waits for room.
#[derive(Clone, Debug)]
pub(super) enum Notice {
    Sent(Mark),
    Arrived(Mark),
    Unsolicited(Mark),
    RailDown { rail: u8, data_only: bool, cause: String },
    RailReady { rail: u8, data_only: bool },
}

impl Notice {
    /// The piece of a grant had arrived before.
    pub(super) fn arrived(grant: &Grant) -> Notice {
        let (lane, attempt) = (grant.lane.into(), grant.attempt.into());
        Notice::Arrived(Mark { piece: grant.piece, crc: 0, lane, attempt })
    }
}

impl Peer {
    /// Must the peer be told what we have received?
    #[inline]
    fn owes_word(&self, completions_confirm: bool) -> bool {
        if self.ack_now || self.expected.wrapping_sub(self.told.ack) >= TX_SLOTS / 4 {
            return true;
        }
        self.incoming.iter().enumerate().any(|(lane, incoming)| {
            let limit = incoming.matched.wrapping_add(EAGER_CREDITS);
            limit.wrapping_sub(self.told.eager_limits[lane]) >= EAGER_CREDITS / 2
                || incoming.first_piece.wrapping_sub(self.told.pieces_taken[lane]) >= LANDINGS / 2
                || !completions_confirm
                    && incoming.done != self.told.pieces_done[lane]
                    && (incoming.outstanding == 0
                        || incoming.done.wrapping_sub(self.told.pieces_done[lane]) >= 4)
        })
    }

    /// Sends what waits to be sent: notices, grants, and a word of what was received.
    #[inline]
    pub(super) fn flush(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        if self.broken.is_some() {
            return Ok(());
        }
        if self.held.is_some()
            && let Some(active) = self.active()
        {
            self.post_held(env, active)?;
        }
        self.repeat_pieces(env)?;
        if !self.notices.is_empty() {
            self.flush_notices(env)?;
        }
        if !self.grants.is_empty() && self.notices.is_empty() {
            self.flush_grants(env)?;
        }
        if self.grants.is_empty()
            && self.notices.is_empty()
            && self.incoming.iter().any(Incoming::needs_grants)
        {
            self.allow_unsolicited(env);
            self.flush_notices(env)?;
        }
        if self.owes_word(env.rules.completions_confirm())
            && let Some(active) = self.active()
        {
            self.say(env, active, Kind::Ack, None)?;
        }
        Ok(())
    }

    fn flush_notices(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        while let Some(notice) = self.notices.pop_front() {
            let mut payload = [0; size_of::<Mark>() + CAUSE_BYTES];
            let (kind, rail, mark, cause) = match &notice {
                Notice::Sent(mark) => (Kind::Sent, 0, *mark, ""),
                Notice::Arrived(mark) => (Kind::Arrived, 0, *mark, ""),
                Notice::Unsolicited(mark) => (Kind::Unsolicited, 0, *mark, ""),
                Notice::RailDown { rail, data_only, cause } => {
                    (Kind::RailDown, *rail, rail_mark(*data_only), cause.as_str())
                }
                Notice::RailReady { rail, data_only } => (Kind::RailReady, *rail, rail_mark(*data_only), ""),
            };
            let (head, tail) = payload.split_at_mut(size_of::<Mark>());
            head.copy_from_slice(bytemuck::bytes_of(&mark));
            let told = cause.len().min(CAUSE_BYTES);
            tail[..told].copy_from_slice(&cause.as_bytes()[..told]);
            let header = Header { rail, ..Header::new(kind, Tally::default()) };
            if !self.send(env, header, kind, Span::from(&payload[..size_of::<Mark>() + told]))? {
                self.notices.push_front(notice);
                break;
            }
        }
        Ok(())
    }

    fn flush_grants(&mut self, env: &mut Env<'_>) -> Result<(), TransportError> {
        if self.grants.len() > 1 {
            // Those that are granted again belong before later ones that wait here.
            let firsts: [u32; LANES] = std::array::from_fn(|lane| self.incoming[lane].done);
            self.grants.sort_by_key(|grant| grant.piece.wrapping_sub(firsts[usize::from(grant.lane)]));
        }
        while !self.grants.is_empty() {
            let mut batch = [bytemuck::Zeroable::zeroed(); GRANTS_PER_MESSAGE];
            let count = self.grants.len().min(GRANTS_PER_MESSAGE);
            batch[..count].copy_from_slice(&self.grants[..count]);
            let header = Header::new(Kind::Grants, Tally::default());
            if !self.send(env, header, Kind::Grants, Span::from(bytemuck::cast_slice(&batch[..count])))? {
                break;
            }
            self.grants.drain(..count);
        }
        Ok(())
    }

    /// What is to be done as time passes: repeats what was not acknowledged in time.
    pub(super) fn tick(&mut self, env: &mut Env<'_>, now: Instant) -> Result<(), TransportError> {
        if let Some(since) = self.waiting_since
            && now.saturating_duration_since(since) >= self.patience
            && !self.gone
        {
            self.patience = (self.patience * 2).min(LAST_PATIENCE);
            self.repeat(env)?;
        }
        self.ask(env, now)
    }

    /// A word of what the peer has received may have been lost, and it will not say so again by itself.
    fn ask(&mut self, env: &mut Env<'_>, now: Instant) -> Result<(), TransportError> {
        // Calls do not wait for staged pieces, but their places and the end of the connection do.
        let waits = std::mem::take(&mut self.wants_word) || !self.out.iter().all(Outgoing::is_idle);
        if !waits || self.gone {
            self.asked = None;
            self.asking = FIRST_PATIENCE;
            return Ok(());
        }
        let since = *self.asked.get_or_insert(now);
        if now.saturating_duration_since(since) < self.asking {
            return Ok(());
        }
        self.asked = Some(now);
        self.asking = (self.asking * 2).min(LAST_PATIENCE);
        if let Some(active) = self.active() {
            let tally = self.tally();
            let word = Header { flags: ASK, ..Header::new(Kind::Ack, tally) };
            self.rails[active].say(env, word, None)?;
        }
        Ok(())
    }

    /// Between calls: says what has not been said, and, after a long silence, gives every queue pair something to do.
    pub(super) fn look_after(&mut self, env: &mut Env<'_>, silent: bool) -> Result<(), TransportError> {
        if self.broken.is_some() || self.gone {
            return Ok(());
        }
        let owed = !env.rules.completions_confirm() && self.told != self.tally();
        if let Some(active) = self.active().filter(|_| owed) {
            self.say(env, active, Kind::Ack, None)?;
        }
        if silent {
            for rail in 0..self.rails.len() {
                self.keep_alive(env, rail)?;
            }
        }
        Ok(())
    }
}

fn rail_mark(data_only: bool) -> Mark {
    Mark { piece: data_only.into(), crc: 0, lane: 0, attempt: 0 }
}
