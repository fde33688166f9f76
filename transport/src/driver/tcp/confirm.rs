//! Confirmations that a message was matched, on a connection of their own between two ranks.
//!
//! On a message connection, a confirmation would queue behind messages that the sender of the confirmed
//! message has not received, and may receive only after the confirmation: a deadlock. The connection is made
//! for the first confirmation.
//!
//! A confirmation carries the count of matched messages of its lane that asked for one. A later count
//! includes the earlier ones, so at most one confirmation per lane is pending.

use super::{
    channel::{Channel, channel, lost},
    part::{Expected, Fold, Polled, Taking},
    table::{Table, lock},
    wire::Head,
};
use crate::{
    Sink, TransportError,
    memory::{Span, SpanMut},
};
use std::sync::Mutex;

/// Digest of confirmations, in place of an operation's digest.
const DIGEST: u64 = u64::from_le_bytes(*b"matched!");
/// A lane and a count.
const WORD_BYTES: usize = 16;

/// Confirmations exchanged with one peer.
#[derive(Debug)]
pub(super) struct Confirmations {
    peer: u32,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    channel: Option<Channel>,
    asked: bool,
    /// By lane: messages of the peer that were matched, and how many it has been told of.
    matched: Vec<u64>,
    told: Vec<u64>,
    /// By lane: messages of ours that were matched, as told.
    heard: Vec<u64>,
    /// The word under way.
    saying: Option<[u8; WORD_BYTES]>,
    hearing: [u8; WORD_BYTES],
    broken: Option<Broken>,
}

/// Why nothing is told and heard any more.
#[derive(Clone, Copy, Debug)]
enum Broken {
    /// The peer's process has closed the connection.
    Closed,
    Failed,
}

impl Confirmations {
    pub(super) fn new(peer: u32, lanes: u8) -> Confirmations {
        let none = vec![0; usize::from(lanes)];
        let inner = Inner { matched: none.clone(), told: none.clone(), heard: none, ..Inner::default() };
        Confirmations { peer, inner: Mutex::new(inner) }
    }

    /// A message of the peer that asked for it was matched on a lane.
    pub(super) fn matched(&self, table: &Table, lane: u8) {
        lock(&self.inner).matched[usize::from(lane)] += 1;
        self.flush(table);
    }

    /// Says what is to be said, as far as that is possible now.
    pub(super) fn flush(&self, table: &Table) {
        let mut inner = lock(&self.inner);
        // A send that waits for the confirmation meets the broken connection by itself.
        let _ = inner.say(table, self.peer);
    }

    /// Whether the peer has confirmed message `number` on a lane.
    ///
    /// # Errors
    /// [`TransportError::Closed`] or [`TransportError::Lost`] if the connection broke before the confirmation
    /// arrived.
    pub(super) fn has_matched(&self, table: &Table, lane: u8, number: u64) -> Result<bool, TransportError> {
        let mut inner = lock(&self.inner);
        let is_matched = |inner: &Inner| inner.heard[usize::from(lane)] >= number;
        if is_matched(&inner) {
            return Ok(true);
        }
        let hearing = inner.hear(table, self.peer);
        // Its end may lie right behind the word.
        if is_matched(&inner) { Ok(true) } else { hearing.map(|()| false) }
    }

    /// Sends pending confirmations as far as the socket has room. Returns whether none is left, or none can
    /// be sent.
    pub(super) fn is_quiet(&self, table: &Table) -> bool {
        let mut inner = lock(&self.inner);
        if inner.say(table, self.peer).is_err() {
            return true;
        }
        inner.broken.is_some() || inner.saying.is_none() && inner.told == inner.matched
    }
}

impl Inner {
    /// The connection, once there is one.
    fn connect(&mut self, table: &Table, peer: u32, ask: bool) -> Result<bool, TransportError> {
        match self.broken {
            None => {}
            Some(Broken::Closed) => return Err(TransportError::Closed { peer }),
            Some(Broken::Failed) => {
                let what = "the connection that confirms messages has failed".to_owned();
                return Err(TransportError::Lost { peer, what });
            }
        }
        if self.channel.is_none() {
            let taken = table.take(peer, table.lanes)?;
            self.channel = taken.and_then(|mut one| one.pop()).map(|connection| channel(table, connection));
            if self.channel.is_none() && ask && !self.asked {
                self.asked = true;
                table.want(peer, table.lanes);
            }
        }
        Ok(self.channel.is_some())
    }

    fn say(&mut self, table: &Table, peer: u32) -> Result<(), TransportError> {
        if self.saying.is_none() && self.told == self.matched {
            return Ok(());
        }
        if !self.connect(table, peer, true)? {
            return Ok(());
        }
        let Inner { channel: Some(channel), matched, told, saying, .. } = self else { return Ok(()) };
        loop {
            if saying.is_none() {
                let Some(lane) = (0..told.len()).find(|lane| told[*lane] < matched[*lane]) else {
                    return Ok(());
                };
                told[lane] = matched[lane];
                let mut word = [0; WORD_BYTES];
                word[..8].copy_from_slice(&(lane as u64).to_le_bytes());
                word[8..].copy_from_slice(&told[lane].to_le_bytes());
                *saying = Some(word);
                let head = Head { digest: DIGEST, len: WORD_BYTES as u64, part: 0, confirm: false };
                channel.outgoing.begin(&head, WORD_BYTES);
            }
            let Some(word) = saying else { return Ok(()) };
            let part = Span::from(&word[..]);
            channel.outgoing.write(&channel.socket, part, part.len()).map_err(|e| lost(peer, &e))?;
            if !channel.outgoing.is_through() {
                return Ok(());
            }
            *saying = None;
        }
    }

    fn hear(&mut self, table: &Table, peer: u32) -> Result<(), TransportError> {
        while self.connect(table, peer, false)? {
            let Inner { channel: Some(channel), hearing, heard, broken, .. } = self else { return Ok(()) };
            let expected = Expected { digest: DIGEST, total: WORD_BYTES, part: 0, base: 0, len: WORD_BYTES };
            let mut taking = Taking { sink: &mut Word(hearing), fold: &mut Fold::default(), copied: &mut 0 };
            match channel.incoming.poll(&*channel.socket, &expected, &mut taking) {
                Ok(Polled::All) => channel.incoming.next(),
                Ok(Polled::Nothing) => return Ok(()),
                Ok(Polled::Some) => continue,
                Err(failed) => {
                    let error = failed.of(peer);
                    let is_closed = matches!(error, TransportError::Closed { .. });
                    *broken = Some(if is_closed { Broken::Closed } else { Broken::Failed });
                    return Err(error);
                }
            }
            let word = |at: usize| u64::from_le_bytes(hearing[at..at + 8].try_into().expect("eight bytes"));
            let (lane, count) = (word(0), word(8));
            let known = heard.get_mut(lane as usize).filter(|known| **known < count);
            *known.ok_or(TransportError::Protocol { peer, what: "a confirmation that can't be" })? = count;
        }
        Ok(())
    }
}

/// Destination of a received confirmation.
struct Word<'a>(&'a mut [u8; WORD_BYTES]);

impl Sink for Word<'_> {
    fn write(&mut self, offset: usize, data: Span<'_>) {
        SpanMut::from(&mut self.0[offset..offset + data.len()]).copy_from(data);
    }

    fn destination(&mut self) -> Option<SpanMut<'_>> {
        Some(SpanMut::from(&mut self.0[..]))
    }
}
