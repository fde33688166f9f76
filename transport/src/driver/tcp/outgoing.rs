//! Sending parts of messages on one connection.

use super::{
    sealed::SealedOutgoing,
    socket::{GATHERED_MOST, Socket},
    wire::{HEAD_BYTES, Head},
};
use crate::memory::Span;
use std::io;

/// The most bytes to write in one poll, so that a long message does not keep others waiting.
pub(super) const WRITE_MOST: usize = 1 << 20;

/// Granularity at which an incomplete part is sent: the payload of an encrypted record, and enough to be
/// worth a system call.
pub(super) const FED_BYTES: usize = super::sealed::RECORD_BYTES;

/// The sending side of a connection.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// Heads and payloads as they are.
    Plain(PlainOutgoing),
    /// In records.
    Sealed(Box<SealedOutgoing>),
}

impl Outgoing {
    /// Begins a part. The one before it is through.
    #[inline]
    pub(super) fn begin(&mut self, head: &Head, len: usize) {
        match self {
            Outgoing::Plain(plain) => plain.begin(head, len),
            Outgoing::Sealed(sealed) => sealed.begin(head, len),
        }
    }

    /// Whether the part is fully written, so that its memory is free.
    #[inline]
    pub(super) fn is_through(&self) -> bool {
        match self {
            Outgoing::Plain(plain) => plain.sent == HEAD_BYTES + plain.len,
            Outgoing::Sealed(sealed) => sealed.is_through(),
        }
    }

    /// Whether part of it has been written, so that no other part may take its place.
    pub(super) fn has_begun(&self) -> bool {
        match self {
            Outgoing::Plain(plain) => plain.sent > 0,
            Outgoing::Sealed(sealed) => sealed.has_begun(),
        }
    }

    /// Writes as much as the socket has room for. Returns whether any bytes moved.
    ///
    /// `part` is the whole payload of the part. Its first `ready` bytes are available: all, or a multiple of
    /// [`FED_BYTES`].
    #[inline]
    pub(super) fn write(&mut self, socket: &Socket, part: Span<'_>, ready: usize) -> io::Result<bool> {
        match self {
            Outgoing::Plain(plain) => plain.write(socket, part, ready),
            Outgoing::Sealed(sealed) => sealed.write(socket, part, ready),
        }
    }

    /// Bytes of payload that were copied on the way, since the last question.
    #[inline]
    pub(super) fn take_copied(&mut self) -> u64 {
        match self {
            Outgoing::Plain(plain) => std::mem::take(&mut plain.copied),
            Outgoing::Sealed(sealed) => sealed.take_copied(),
        }
    }
}

/// A part on its way.
#[derive(Debug, Default)]
pub(super) struct PlainOutgoing {
    head: [u8; HEAD_BYTES],
    /// Bytes of the part's payload.
    len: usize,
    /// Bytes of head and payload that the system has taken.
    sent: usize,
    copied: u64,
}

impl PlainOutgoing {
    fn begin(&mut self, head: &Head, len: usize) {
        self.head = head.encode();
        self.len = len;
        self.sent = 0;
    }

    #[inline]
    fn write(&mut self, socket: &Socket, part: Span<'_>, ready: usize) -> io::Result<bool> {
        debug_assert_eq!(part.len(), self.len, "the same part");
        let head = &self.head[self.sent.min(HEAD_BYTES)..];
        let done = self.sent.saturating_sub(HEAD_BYTES);
        // A head does not go alone.
        if ready < self.len && ready <= done {
            return Ok(false);
        }
        let body = part.sub(done, (ready - done).min(WRITE_MOST));
        let (heads, gathered) = (head.len(), head.len() + body.len());
        let sent = socket.send(head, body)?;
        if heads > 0 && gathered <= GATHERED_MOST {
            self.copied += sent.saturating_sub(heads) as u64;
        }
        self.sent += sent;
        Ok(sent > 0)
    }
}
