//! Sending side of a stream: parts of messages, and the bytes that may have to be sent again.
//!
//! Short parts are copied to the log and sent from there. Longer ones are sent from the caller's memory, and
//! only their headers and their last bytes are copied. At any time the log and the part in progress together
//! hold all bytes that the peer may not have received.

use super::{
    super::{
        outgoing::MAX_WRITE_BYTES,
        wire::{Head, Header, MAX_HEAD_BYTES},
    },
    carrier::Carrier,
    send_log::SendLog,
};
use crate::memory::Span;
use std::io;

/// Maximum bytes of a part that is copied as a whole.
pub(in super::super) const MAX_LOGGED_BYTES: usize = 64 << 10;

/// Maximum unacknowledged bytes of a long part that is complete.
///
/// Receivers acknowledge every second packet at once, and the last one after 40 ms. So this is more than a
/// packet, and enough to keep a cable busy until the next message begins.
pub(in super::super) const MAX_TAIL_BYTES: usize = 256 << 10;

/// Bytes of the log from which acknowledgements are asked for, so that short messages use memory in cache.
const RELEASE_BYTES: usize = 16 << 10;

const _: () = assert!(MAX_TAIL_BYTES + MAX_LOGGED_BYTES + MAX_HEAD_BYTES <= SendLog::CAPACITY);

/// State of the part being sent.
#[derive(Clone, Copy, Debug, Default)]
enum Part {
    /// The memory of the part is free.
    #[default]
    Complete,
    /// Nothing of the part is sent.
    Announced(Head, usize),
    /// The part is in the log.
    Logged,
    /// The header is in the log, and the payload, from this position on, in the caller's memory.
    InPlace(u64, usize),
}

/// The peer's count of received bytes does not fit this end's count of sent ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum OffsetError {
    /// The bytes behind the offset are no longer there, although the peer's system has acknowledged them.
    Released,
    /// The count exceeds the number of sent bytes.
    NotSent,
}

/// Sending side of a stream.
#[derive(Debug, Default)]
pub(in super::super) struct StreamOut {
    log: SendLog,
    part: Part,
    /// Position of the next byte for the carrier.
    cursor: u64,
    /// Position of the carrier's first byte.
    base: u64,
    /// Highest position that a carrier was given.
    reached: u64,
    /// Bytes of the log from which acknowledgements are asked for.
    release_at: usize,
    copied: u64,
}

impl StreamOut {
    /// Starts a part of `len` bytes. The previous one must be complete.
    pub(in super::super) fn begin(&mut self, header: &Header, len: usize) {
        let mut head = Head::EMPTY;
        head.set(header);
        self.part = Part::Announced(head, len);
    }

    /// Whether the part is in the stream, so that no other part may replace it.
    pub(in super::super) fn has_begun(&self) -> bool {
        !matches!(self.part, Part::Announced(..))
    }

    pub(in super::super) fn take_copied(&mut self) -> u64 {
        std::mem::take(&mut self.copied)
    }

    /// Writes bytes of the part, as far as the carrier has room. Returns whether any bytes moved.
    ///
    /// `part` is the whole payload; its first `ready` bytes are available.
    pub(in super::super) fn write(
        &mut self,
        carrier: &impl Carrier,
        part: Span<'_>,
        ready: usize,
    ) -> io::Result<bool> {
        let mut moved = false;
        if let Part::Announced(head, len) = self.part {
            debug_assert_eq!(part.len(), len, "the same part");
            if !self.log_part(carrier, head.bytes(), part, ready) {
                return Ok(false);
            }
            moved = true;
        }
        moved |= self.write_log(carrier, part, ready)?;
        if let Part::InPlace(start, _) = self.part
            && self.cursor >= start
        {
            let done = (self.cursor - start) as usize;
            if done < ready {
                let sent = carrier.send(&[], part.sub(done, (ready - done).min(MAX_WRITE_BYTES)))?;
                moved |= self.advance(sent);
            }
        }
        Ok(moved)
    }

    /// Puts the part, or its header, into the log; returns false if that is not possible yet.
    fn log_part(&mut self, carrier: &impl Carrier, head: &[u8], part: Span<'_>, ready: usize) -> bool {
        let is_logged = part.len() <= MAX_LOGGED_BYTES;
        if if is_logged { ready < part.len() } else { ready == 0 } {
            return false;
        }
        // The end of a long part must find room, too.
        let needed = head.len() + if is_logged { part.len() } else { MAX_TAIL_BYTES };
        if self.log.len() + needed > self.release_at.clamp(RELEASE_BYTES, SendLog::CAPACITY) {
            self.log.release(self.acknowledged(carrier));
            self.release_at = self.log.len() + RELEASE_BYTES;
        }
        if self.log.len() + needed > SendLog::CAPACITY {
            return false;
        }
        self.log.append(Span::from(head));
        self.part = if is_logged {
            self.log.append(part);
            self.copied += part.len() as u64;
            Part::Logged
        } else {
            Part::InPlace(self.log.end(), part.len())
        };
        true
    }

    /// Writes the log from the cursor on, and the payload behind a lone header.
    fn write_log(&mut self, carrier: &impl Carrier, part: Span<'_>, ready: usize) -> io::Result<bool> {
        let mut moved = false;
        while self.cursor < self.log.end() {
            let pending = self.log.bytes_from(self.cursor);
            let (head, body) = match self.part {
                Part::InPlace(..) if pending.len() <= MAX_HEAD_BYTES => {
                    (pending, part.sub(0, ready.min(MAX_WRITE_BYTES)))
                }
                _ => (&[][..], Span::from(pending)),
            };
            let all = head.len() + body.len();
            let sent = carrier.send(head, body)?;
            moved |= self.advance(sent);
            if sent < all {
                break;
            }
        }
        Ok(moved)
    }

    fn advance(&mut self, sent: usize) -> bool {
        self.cursor += sent as u64;
        self.reached = self.reached.max(self.cursor);
        sent > 0
    }

    /// Whether the memory of the part is free; without a carrier, only that of a part in the log.
    ///
    /// # Errors
    /// The carrier's.
    pub(in super::super) fn is_complete(
        &mut self,
        carrier: Option<&impl Carrier>,
        part: Span<'_>,
    ) -> io::Result<bool> {
        let is_complete = match (self.part, carrier) {
            (Part::Complete, _) | (Part::Logged, None) => true,
            (Part::Announced(..), _) | (Part::InPlace(..), None) => false,
            (Part::Logged, Some(carrier)) => self.cursor == self.log.end() && carrier.flush()?,
            (Part::InPlace(start, len), Some(carrier)) => {
                self.cursor == start + len as u64 && carrier.flush()? && self.keep_tail(carrier, part, start)
            }
        };
        if is_complete {
            self.part = Part::Complete;
        }
        Ok(is_complete)
    }

    /// Copies the end of a part that is written to the log, unless too much of it is unacknowledged. Returns
    /// whether it is copied.
    fn keep_tail(&mut self, carrier: &impl Carrier, part: Span<'_>, start: u64) -> bool {
        let acknowledged = self.acknowledged(carrier);
        if self.cursor - acknowledged > MAX_TAIL_BYTES as u64 {
            return false;
        }
        if acknowledged > start {
            self.log.skip_to(acknowledged);
        } else {
            self.log.release(acknowledged);
        }
        let from = (self.log.end() - start) as usize;
        self.log.append(part.sub(from, part.len() - from));
        self.copied += (part.len() - from) as u64;
        true
    }

    /// Returns the position up to which the peer's system has the stream, as far as this end knows.
    pub(super) fn acknowledged(&self, carrier: &impl Carrier) -> u64 {
        self.cursor - carrier.unreceived().min(self.cursor - self.base)
    }

    /// Writes the bytes of the log that the carrier has not got yet. Returns whether none is left.
    ///
    /// # Errors
    /// The carrier's.
    pub(in super::super) fn resend(&mut self, carrier: &impl Carrier) -> io::Result<bool> {
        while self.cursor < self.log.end() {
            let sent = carrier.send(&[], Span::from(self.log.bytes_from(self.cursor)))?;
            if !self.advance(sent) {
                return Ok(false);
            }
        }
        carrier.flush()
    }

    /// Whether the peer's system has everything.
    pub(in super::super) fn is_received(&self, carrier: &impl Carrier) -> bool {
        let is_written = !matches!(self.part, Part::InPlace(..)) && self.cursor == self.log.end();
        is_written && carrier.unreceived() == 0
    }

    /// Continues on a new carrier, at the position up to which the peer has received the stream.
    pub(in super::super) fn rewind(&mut self, received: u64) -> Result<(), OffsetError> {
        if received > self.reached {
            return Err(OffsetError::NotSent);
        }
        if received < self.log.start() {
            return Err(OffsetError::Released);
        }
        self.log.release(received);
        (self.cursor, self.base) = (received, received);
        Ok(())
    }
}
