//! Sends parts of messages on one connection.

use super::{
    encrypted::EncryptedOutgoing,
    socket::{MAX_COALESCED_BYTES, Socket},
    wire::{Head, Header},
};
use crate::memory::Span;
use std::io;

/// Maximum bytes to write in one poll, so that a long message does not delay others.
pub(super) const MAX_WRITE_BYTES: usize = 1 << 20;

/// Granularity at which an incomplete part is sent: the payload of an encrypted record, and enough to be
/// worth a system call.
const SEND_GRANULARITY: usize = super::encrypted::RECORD_BYTES;

/// Returns how many bytes of a part may be sent when `ready` bytes of the message are available.
///
/// The part has `len` bytes and begins at `base`.
#[inline]
pub(super) fn sendable(base: usize, len: usize, ready: usize) -> usize {
    let available = ready.saturating_sub(base).min(len);
    if available < len { available / SEND_GRANULARITY * SEND_GRANULARITY } else { len }
}

/// The sending side of a connection.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// Plain headers and payloads.
    Plain(PlainOutgoing),
    /// Encrypted records.
    Encrypted(Box<EncryptedOutgoing>),
}

impl Outgoing {
    /// Starts a part of `len` bytes. The previous one must be complete.
    #[inline]
    pub(super) fn begin(&mut self, header: &Header, len: usize) {
        match self {
            Outgoing::Plain(plain) => plain.begin(header, len),
            Outgoing::Encrypted(encrypted) => encrypted.begin(header, len),
        }
    }

    /// Whether the part is fully written, so that its memory is free.
    #[inline]
    pub(super) fn is_complete(&self) -> bool {
        match self {
            Outgoing::Plain(plain) => plain.sent == plain.head.bytes().len() + plain.len,
            Outgoing::Encrypted(encrypted) => encrypted.is_complete(),
        }
    }

    /// Whether some of the part has been written, so that no other part may replace it.
    pub(super) fn has_begun(&self) -> bool {
        match self {
            Outgoing::Plain(plain) => plain.sent > 0,
            Outgoing::Encrypted(encrypted) => encrypted.has_begun(),
        }
    }

    /// Writes as much as the socket has room for. Returns whether any bytes moved.
    ///
    /// `part` is the whole payload of the part. Its first `ready` bytes are available: all, or a multiple of
    /// [`SEND_GRANULARITY`].
    #[inline]
    pub(super) fn write(&mut self, socket: &Socket, part: Span<'_>, ready: usize) -> io::Result<bool> {
        match self {
            Outgoing::Plain(plain) => plain.write(socket, part, ready),
            Outgoing::Encrypted(encrypted) => encrypted.write(socket, part, ready),
        }
    }

    /// Returns the payload bytes that were copied since the last call.
    #[inline]
    pub(super) fn take_copied(&mut self) -> u64 {
        match self {
            Outgoing::Plain(plain) => std::mem::take(&mut plain.copied),
            Outgoing::Encrypted(encrypted) => encrypted.take_copied(),
        }
    }
}

/// The sending side of a plain connection.
#[derive(Debug)]
pub(super) struct PlainOutgoing {
    head: Head,
    /// Bytes of the part's payload.
    len: usize,
    /// Bytes of head and payload that the system has accepted.
    sent: usize,
    copied: u64,
}

impl Default for PlainOutgoing {
    fn default() -> PlainOutgoing {
        PlainOutgoing { head: Head::EMPTY, len: 0, sent: 0, copied: 0 }
    }
}

impl PlainOutgoing {
    #[inline]
    fn begin(&mut self, header: &Header, len: usize) {
        self.head.set(header);
        self.len = len;
        self.sent = 0;
    }

    #[inline]
    fn write(&mut self, socket: &Socket, part: Span<'_>, ready: usize) -> io::Result<bool> {
        debug_assert_eq!(part.len(), self.len, "the same part");
        let head = self.head.bytes();
        let done = self.sent.saturating_sub(head.len());
        let head = &head[self.sent.min(head.len())..];
        // A head is not sent without payload.
        if ready < self.len && ready <= done {
            return Ok(false);
        }
        let body = part.sub(done, (ready - done).min(MAX_WRITE_BYTES));
        let (heads, gathered) = (head.len(), head.len() + body.len());
        let sent = socket.send(head, body)?;
        if heads > 0 && gathered <= MAX_COALESCED_BYTES {
            self.copied += sent.saturating_sub(heads) as u64;
        }
        self.sent += sent;
        Ok(sent > 0)
    }
}
