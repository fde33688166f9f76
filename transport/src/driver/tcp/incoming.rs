//! Receives parts of messages from one connection.
//!
//! A part goes from the socket straight to its destination or to the reduction buffer. One read fills several
//! buffers, so the bytes behind the part (the next header, the next small messages) go to a small read-ahead
//! buffer. The header and payload of an expected message thus take one system call, and the payload is not
//! copied.
//!
//! Invariant: an unexpected message is put back in front of the bytes that follow it.

use super::{
    encrypted::EncryptedIncoming,
    receive::{ExpectedPart, Polled, Progress, RecvError, RecvTarget},
    socket::{ReadResult, Source},
    wire::{HEADER_BYTES, Head, Header, MAX_HEAD_BYTES, PART_ALIGNMENT},
};
use crate::memory::{Span, SpanMut};

/// Bytes of the read-ahead buffer.
const AHEAD_BYTES: usize = 4096;

/// Expected messages up to this many bytes go through the read-ahead buffer, which is cheaper than a
/// scattered read.
const SMALL_BYTES: usize = 1024;

/// Maximum bytes to read in one poll, so that a long message does not delay others.
const MAX_READ_BYTES: usize = 1 << 20;

/// The receiving side of a connection.
#[derive(Debug)]
pub(super) enum Incoming {
    /// Plain headers and payloads.
    Plain(PlainIncoming),
    /// Encrypted records.
    Encrypted(Box<EncryptedIncoming>),
}

impl Incoming {
    /// Receives bytes of the expected part, as far as they have arrived.
    #[inline]
    pub(super) fn poll(
        &mut self,
        source: &impl Source,
        expected: &ExpectedPart,
        target: &mut RecvTarget<'_>,
    ) -> Result<Polled, RecvError> {
        match self {
            Incoming::Plain(plain) => plain.poll(source, expected, target),
            Incoming::Encrypted(encrypted) => encrypted.poll(source, expected, target),
        }
    }

    /// Bytes of the current part that are in their destination.
    #[inline]
    pub(super) fn received(&self) -> usize {
        match self {
            Incoming::Plain(plain) => plain.progress.received - plain.remainder_len,
            Incoming::Encrypted(encrypted) => encrypted.progress().received,
        }
    }

    /// Returns the header of the next message, if it has been read.
    pub(super) fn header(&self) -> Option<Header> {
        match self {
            Incoming::Plain(plain) => plain.next_header(),
            Incoming::Encrypted(encrypted) => encrypted.next_header(),
        }
    }

    /// Ends the current part, so that the next one can be received.
    #[inline]
    pub(super) fn next(&mut self) {
        match self {
            Incoming::Plain(plain) => plain.progress = Progress::default(),
            Incoming::Encrypted(encrypted) => encrypted.next(),
        }
    }
}

/// The receiving side of a plain connection.
#[derive(Debug)]
pub(super) struct PlainIncoming {
    progress: Progress,
    /// Zeros that precede the payload of the current part and have not been received.
    padding: usize,
    /// Bytes read ahead: `ahead[start..end]`.
    ahead: Vec<u8>,
    start: usize,
    end: usize,
    /// Received bytes of a part to be reduced that do not form a whole element yet.
    remainder: [u8; PART_ALIGNMENT],
    remainder_len: usize,
}

impl PlainIncoming {
    pub(super) fn new() -> PlainIncoming {
        PlainIncoming {
            progress: Progress::default(),
            padding: 0,
            ahead: vec![0; AHEAD_BYTES],
            start: 0,
            end: 0,
            remainder: [0; PART_ALIGNMENT],
            remainder_len: 0,
        }
    }

    fn next_header(&self) -> Option<Header> {
        let waiting = || self.ahead[self.start..self.end].first_chunk().and_then(Header::decode);
        self.progress.header.or_else(waiting)
    }

    #[inline]
    fn poll(
        &mut self,
        source: &impl Source,
        expected: &ExpectedPart,
        target: &mut RecvTarget<'_>,
    ) -> Result<Polled, RecvError> {
        let mut read = false;
        if self.progress.header.is_none() {
            if self.end - self.start < HEADER_BYTES {
                read = self.read_header(source, expected, target)?;
                if !read {
                    return Ok(Polled::Idle);
                }
            }
            if self.progress.header.is_none() && !self.parse_header()? {
                return Ok(Polled::Advanced);
            }
        }
        self.progress.check(expected)?;
        if expected.len <= SMALL_BYTES && self.end - self.start < expected.len {
            return self.wait_for_small(source, expected, target, read);
        }
        let before = self.progress.received;
        if self.padding > 0 {
            let skipped = self.padding.min(self.end - self.start);
            self.start += skipped;
            self.padding -= skipped;
        }
        self.consume_ahead(expected, target);
        // One system call per poll: hardly more has arrived since.
        if self.progress.received < expected.len && !read {
            read = self.read_body(source, expected, target)?;
        }
        Ok(match self.progress.received == expected.len {
            true => Polled::Complete,
            false if read || self.progress.received > before => Polled::Advanced,
            false => Polled::Idle,
        })
    }

    /// Waits until a small message is in the read-ahead buffer as a whole, then delivers it.
    fn wait_for_small(
        &mut self,
        source: &impl Source,
        expected: &ExpectedPart,
        target: &mut RecvTarget<'_>,
        read: bool,
    ) -> Result<Polled, RecvError> {
        if read || !self.read_ahead(source)? {
            return Ok(if read { Polled::Advanced } else { Polled::Idle });
        }
        if self.end - self.start < expected.len {
            return Ok(Polled::Advanced);
        }
        self.consume_ahead(expected, target);
        Ok(Polled::Complete)
    }

    /// Parses the header of the next message in the read-ahead buffer; returns false if it is incomplete.
    fn parse_header(&mut self) -> Result<bool, RecvError> {
        let Some(bytes) = self.ahead[self.start..self.end].first_chunk::<HEADER_BYTES>() else {
            return Ok(false);
        };
        let header =
            Header::decode(bytes).ok_or(RecvError::Protocol("bytes that are not a message header"))?;
        self.start += HEADER_BYTES;
        self.padding = Head::padding(header.len);
        self.progress = Progress { header: Some(header), received: 0 };
        Ok(true)
    }

    /// Reads at least the next header; returns false if nothing has arrived.
    fn read_header(
        &mut self,
        source: &impl Source,
        expected: &ExpectedPart,
        target: &mut RecvTarget<'_>,
    ) -> Result<bool, RecvError> {
        if self.start < self.end || expected.len <= SMALL_BYTES || self.ahead.len() > AHEAD_BYTES {
            return self.read_ahead(source);
        }
        match target.sink.destination() {
            Some(destination) => {
                self.read_scattered(source, expected, destination.sub(expected.base, expected.len))
            }
            None => {
                let memory = target.reduce_buffer.memory();
                let payload = memory.sub(0, memory.len().min(expected.len));
                let read = self.read_scattered(source, expected, payload)?;
                if self.progress.check(expected).is_ok() && self.progress.received > 0 {
                    self.deliver(expected, self.progress.received, target);
                }
                Ok(read)
            }
        }
    }

    /// Reads the next bytes into the read-ahead buffer.
    fn read_ahead(&mut self, source: &impl Source) -> Result<bool, RecvError> {
        self.ahead.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.ahead.len() > AHEAD_BYTES && self.end <= AHEAD_BYTES / 2 {
            self.ahead.truncate(AHEAD_BYTES);
        }
        match source.recv([SpanMut::from(&mut self.ahead[self.end..])])? {
            ReadResult::WouldBlock => Ok(false),
            ReadResult::Eof => Err(RecvError::Ended),
            ReadResult::Bytes(bytes) => {
                self.end += bytes;
                Ok(true)
            }
        }
    }

    /// Reads a head, the expected payload and the bytes behind it, each into its own buffer.
    ///
    /// If the header is not the expected one, the payload is put in front of the bytes behind it. The
    /// read-ahead buffer must be empty.
    fn read_scattered(
        &mut self,
        source: &impl Source,
        expected: &ExpectedPart,
        payload: SpanMut<'_>,
    ) -> Result<bool, RecvError> {
        let payload = payload.sub(0, payload.len().min(MAX_READ_BYTES));
        let padding = Head::padding(expected.total as u64);
        let mut head = [0; MAX_HEAD_BYTES];
        (self.start, self.end) = (0, 0);
        let ahead = if payload.len() == expected.len { self.ahead.len() } else { 0 };
        let parts = [
            SpanMut::from(&mut head[..HEADER_BYTES + padding]),
            payload,
            SpanMut::from(&mut self.ahead[..ahead]),
        ];
        let received = match source.recv(parts)? {
            ReadResult::WouldBlock => return Ok(false),
            ReadResult::Eof => return Err(RecvError::Ended),
            ReadResult::Bytes(received) => received,
        };
        let Some(behind_header) = received.checked_sub(HEADER_BYTES) else {
            self.ahead[..received].copy_from_slice(&head[..received]);
            self.end = received;
            return Ok(true);
        };
        let header = head.first_chunk().and_then(Header::decode);
        let header = header.ok_or(RecvError::Protocol("bytes that are not a message header"))?;
        self.progress = Progress { header: Some(header), received: 0 };
        let padded = behind_header.min(padding);
        let in_place = (behind_header - padded).min(payload.len());
        let behind = behind_header - padded - in_place;
        if self.progress.check(expected).is_ok() {
            self.padding = padding - padded;
            self.progress.received = in_place;
            self.end = behind;
        } else {
            self.padding = Head::padding(header.len);
            self.put_back(&head[HEADER_BYTES..HEADER_BYTES + padded], payload.sub(0, in_place), behind);
        }
        Ok(true)
    }

    /// Puts bytes in front of the first `behind` bytes of the read-ahead buffer.
    #[cold]
    fn put_back(&mut self, first: &[u8], second: SpanMut<'_>, behind: usize) {
        let before = first.len() + second.len();
        let mut all = vec![0; (before + behind).max(AHEAD_BYTES)];
        all[..first.len()].copy_from_slice(first);
        SpanMut::from(&mut all[first.len()..before]).copy_from(second.as_span());
        all[before..before + behind].copy_from_slice(&self.ahead[..behind]);
        self.ahead = all;
        (self.start, self.end) = (0, before + behind);
    }

    /// Delivers bytes of the current part from the read-ahead buffer.
    #[inline]
    fn consume_ahead(&mut self, expected: &ExpectedPart, target: &mut RecvTarget<'_>) {
        let len = (self.end - self.start).min(expected.len - self.progress.received);
        if len == 0 {
            return;
        }
        if let Some(destination) = target.sink.destination() {
            let bytes = &self.ahead[self.start..self.start + len];
            destination.sub(expected.base + self.progress.received, len).copy_from(Span::from(bytes));
            *target.copied += len as u64;
            self.progress.received += len;
            self.start += len;
            return;
        }
        let mut left = len;
        while left > 0 {
            let memory = target.reduce_buffer.memory();
            let room = memory.len() - self.remainder_len;
            let now = left.min(room);
            let bytes = &self.ahead[self.start..self.start + now];
            memory.sub(self.remainder_len, now).copy_from(Span::from(bytes));
            self.start += now;
            self.progress.received += now;
            self.deliver(expected, now, target);
            left -= now;
        }
    }

    /// Reads bytes of the current part straight to the destination or the reduction buffer.
    #[inline]
    fn read_body(
        &mut self,
        source: &impl Source,
        expected: &ExpectedPart,
        target: &mut RecvTarget<'_>,
    ) -> Result<bool, RecvError> {
        debug_assert_eq!(self.start, self.end, "what was read ahead comes first");
        (self.start, self.end) = (0, 0);
        let left = expected.len - self.progress.received;
        let destination = target.sink.destination();
        let payload = match destination {
            Some(destination) => {
                destination.sub(expected.base + self.progress.received, left.min(MAX_READ_BYTES))
            }
            None => {
                let memory = target.reduce_buffer.memory();
                memory.sub(self.remainder_len, left.min(memory.len() - self.remainder_len))
            }
        };
        let mut padding = [0; MAX_HEAD_BYTES - HEADER_BYTES];
        let received = if self.padding > 0 {
            source.recv([SpanMut::from(&mut padding[..self.padding]), payload])?
        } else if payload.len() < left {
            source.recv([payload])?
        } else {
            source.recv([payload, SpanMut::from(&mut self.ahead[..])])?
        };
        let received = match received {
            ReadResult::WouldBlock => return Ok(false),
            ReadResult::Eof => return Err(RecvError::Ended),
            ReadResult::Bytes(received) => received,
        };
        let padded = self.padding.min(received);
        self.padding -= padded;
        let received = received - padded;
        let in_place = received.min(payload.len());
        self.end = received - in_place;
        self.progress.received += in_place;
        if destination.is_none() && in_place > 0 {
            self.deliver(expected, in_place, target);
        }
        Ok(true)
    }

    /// Passes `fresh` bytes and the remainder of the last call to the sink, except for an incomplete element
    /// at the end.
    ///
    /// The fresh bytes lie in the reduction buffer, behind room for the remainder.
    fn deliver(&mut self, expected: &ExpectedPart, fresh: usize, target: &mut RecvTarget<'_>) {
        let memory = target.reduce_buffer.memory();
        memory.sub(0, self.remainder_len).copy_from(Span::from(&self.remainder[..self.remainder_len]));
        let held = self.remainder_len + fresh;
        let whole = if self.progress.received == expected.len {
            held
        } else {
            held / PART_ALIGNMENT * PART_ALIGNMENT
        };
        let offset = expected.base + self.progress.received - held;
        if whole > 0 {
            target.sink.write(offset, memory.sub(0, whole).as_span());
        }
        self.remainder_len = held - whole;
        SpanMut::from(&mut self.remainder[..self.remainder_len])
            .copy_from(memory.sub(whole, self.remainder_len).as_span());
    }
}
