//! Receives parts of messages from one connection.
//!
//! A part goes from the socket straight to its destination or to the reduction buffer. One read fills several
//! buffers, so the bytes behind the part (the next head, the next small messages) land in a small read-ahead
//! buffer. The head and payload of an expected message thus take one system call, and the payload is not
//! copied.
//!
//! Invariant: an unexpected message is put back in front of the bytes that follow it.

use super::{
    part::{Expected, Failed, Polled, Progress, Taking},
    sealed::SealedIncoming,
    socket::{Came, Source},
    wire::{CUT_BYTES, HEAD_BYTES, Head},
};
use crate::memory::{Span, SpanMut};

/// Bytes that are read along with what is expected.
const AHEAD_BYTES: usize = 4096;

/// Expected messages up to this many bytes go through the read-ahead buffer, which is cheaper than a
/// scattered read.
const SMALL_BYTES: usize = 1024;

/// The most bytes to take in one poll, so that a long message does not keep others waiting.
const READ_MOST: usize = 1 << 20;

/// The receiving side of a connection.
#[derive(Debug)]
pub(super) enum Incoming {
    /// Heads and payloads as they are.
    Plain(PlainIncoming),
    /// In records.
    Sealed(Box<SealedIncoming>),
}

impl Incoming {
    /// Takes what has come of the expected part.
    #[inline]
    pub(super) fn poll(
        &mut self,
        source: &impl Source,
        expected: &Expected,
        taking: &mut Taking<'_>,
    ) -> Result<Polled, Failed> {
        match self {
            Incoming::Plain(plain) => plain.poll(source, expected, taking),
            Incoming::Sealed(sealed) => sealed.poll(source, expected, taking),
        }
    }

    /// Bytes that were taken of the part under way, and are where they belong.
    #[inline]
    pub(super) fn taken(&self) -> usize {
        match self {
            Incoming::Plain(plain) => plain.progress.got - plain.rest_len,
            Incoming::Sealed(sealed) => sealed.progress().got,
        }
    }

    /// The head of the next message, if it has been read.
    pub(super) fn head(&self) -> Option<Head> {
        match self {
            Incoming::Plain(plain) => plain.next_head(),
            Incoming::Sealed(sealed) => sealed.next_head(),
        }
    }

    /// The part under way is through.
    #[inline]
    pub(super) fn next(&mut self) {
        match self {
            Incoming::Plain(plain) => plain.progress = Progress::default(),
            Incoming::Sealed(sealed) => sealed.next(),
        }
    }
}

/// Plain heads and payloads.
#[derive(Debug)]
pub(super) struct PlainIncoming {
    progress: Progress,
    /// Bytes read ahead: `ahead[start..end]`.
    ahead: Vec<u8>,
    start: usize,
    end: usize,
    /// Received bytes of a part to be reduced that do not form a whole element yet.
    rest: [u8; CUT_BYTES],
    rest_len: usize,
}

impl PlainIncoming {
    pub(super) fn new() -> PlainIncoming {
        PlainIncoming {
            progress: Progress::default(),
            ahead: vec![0; AHEAD_BYTES],
            start: 0,
            end: 0,
            rest: [0; CUT_BYTES],
            rest_len: 0,
        }
    }

    fn next_head(&self) -> Option<Head> {
        let waiting = || self.ahead[self.start..self.end].first_chunk().and_then(Head::decode);
        self.progress.head.or_else(waiting)
    }

    #[inline]
    fn poll(
        &mut self,
        source: &impl Source,
        expected: &Expected,
        taking: &mut Taking<'_>,
    ) -> Result<Polled, Failed> {
        let mut read = false;
        if self.progress.head.is_none() {
            if self.end - self.start < HEAD_BYTES {
                read = self.read_head(source, expected, taking)?;
                if !read {
                    return Ok(Polled::Nothing);
                }
            }
            if self.progress.head.is_none() && !self.take_head()? {
                return Ok(Polled::Some);
            }
        }
        self.progress.check(expected)?;
        if expected.len <= SMALL_BYTES && self.end - self.start < expected.len {
            return self.wait_for_small(source, expected, taking, read);
        }
        let before = self.progress.got;
        self.take_ahead(expected, taking);
        // One system call per poll: more has hardly come meanwhile.
        if self.progress.got < expected.len && !read {
            read = self.read_body(source, expected, taking)?;
        }
        Ok(match self.progress.got == expected.len {
            true => Polled::All,
            false if read || self.progress.got > before => Polled::Some,
            false => Polled::Nothing,
        })
    }

    /// A small message is taken as a whole: until then its bytes wait among those that were read ahead.
    fn wait_for_small(
        &mut self,
        source: &impl Source,
        expected: &Expected,
        taking: &mut Taking<'_>,
        read: bool,
    ) -> Result<Polled, Failed> {
        if read || !self.read_ahead(source)? {
            return Ok(if read { Polled::Some } else { Polled::Nothing });
        }
        if self.end - self.start < expected.len {
            return Ok(Polled::Some);
        }
        self.take_ahead(expected, taking);
        Ok(Polled::All)
    }

    /// The head of the next message from what was read ahead, if it is all there.
    fn take_head(&mut self) -> Result<bool, Failed> {
        let Some(bytes) = self.ahead[self.start..self.end].first_chunk::<HEAD_BYTES>() else {
            return Ok(false);
        };
        let head = Head::decode(bytes).ok_or(Failed::Broken("what is no head of a message"))?;
        self.start += HEAD_BYTES;
        self.progress = Progress { head: Some(head), got: 0 };
        Ok(true)
    }

    /// Reads a head, at least; false when nothing has come.
    fn read_head(
        &mut self,
        source: &impl Source,
        expected: &Expected,
        taking: &mut Taking<'_>,
    ) -> Result<bool, Failed> {
        if self.start < self.end || expected.len <= SMALL_BYTES || self.ahead.len() > AHEAD_BYTES {
            return self.read_ahead(source);
        }
        match taking.sink.destination() {
            Some(destination) => {
                self.read_as_expected(source, expected, destination.sub(expected.base, expected.len))
            }
            None => {
                let memory = taking.fold.memory();
                let target = memory.sub(0, memory.len().min(expected.len));
                let read = self.read_as_expected(source, expected, target)?;
                if self.progress.check(expected).is_ok() && self.progress.got > 0 {
                    self.hand_over(expected, self.progress.got, taking);
                }
                Ok(read)
            }
        }
    }

    /// Reads the next bytes into the read-ahead buffer.
    fn read_ahead(&mut self, source: &impl Source) -> Result<bool, Failed> {
        self.ahead.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.ahead.len() > AHEAD_BYTES && self.end <= AHEAD_BYTES / 2 {
            self.ahead.truncate(AHEAD_BYTES);
        }
        match source.recv([SpanMut::from(&mut self.ahead[self.end..])])? {
            Came::Nothing => Ok(false),
            Came::End => Err(Failed::Ended),
            Came::Bytes(bytes) => {
                self.end += bytes;
                Ok(true)
            }
        }
    }

    /// Reads a head, the expected payload and the bytes behind it, each into its own buffer.
    ///
    /// If the head is not the expected one, the payload is put in front of the bytes behind it. The
    /// read-ahead buffer must be empty.
    fn read_as_expected(
        &mut self,
        source: &impl Source,
        expected: &Expected,
        target: SpanMut<'_>,
    ) -> Result<bool, Failed> {
        let target = target.sub(0, target.len().min(READ_MOST));
        let mut head = [0; HEAD_BYTES];
        (self.start, self.end) = (0, 0);
        let ahead = if target.len() == expected.len { self.ahead.len() } else { 0 };
        let parts = [SpanMut::from(&mut head[..]), target, SpanMut::from(&mut self.ahead[..ahead])];
        let came = match source.recv(parts)? {
            Came::Nothing => return Ok(false),
            Came::End => return Err(Failed::Ended),
            Came::Bytes(came) => came,
        };
        if came < HEAD_BYTES {
            self.ahead[..came].copy_from_slice(&head[..came]);
            self.end = came;
            return Ok(true);
        }
        let head = Head::decode(&head).ok_or(Failed::Broken("what is no head of a message"))?;
        self.progress = Progress { head: Some(head), got: 0 };
        let landed = (came - HEAD_BYTES).min(target.len());
        let behind = came - HEAD_BYTES - landed;
        if self.progress.check(expected).is_ok() {
            self.progress.got = landed;
            self.end = behind;
        } else {
            self.put_back(target.sub(0, landed), behind);
        }
        Ok(true)
    }

    /// Puts bytes in front of the first `behind` that were read ahead.
    #[cold]
    fn put_back(&mut self, landed: SpanMut<'_>, behind: usize) {
        let mut all = vec![0; (landed.len() + behind).max(AHEAD_BYTES)];
        SpanMut::from(&mut all[..landed.len()]).copy_from(landed.as_span());
        all[landed.len()..landed.len() + behind].copy_from_slice(&self.ahead[..behind]);
        self.ahead = all;
        (self.start, self.end) = (0, landed.len() + behind);
    }

    /// Takes what was read ahead of the part under way.
    #[inline]
    fn take_ahead(&mut self, expected: &Expected, taking: &mut Taking<'_>) {
        let len = (self.end - self.start).min(expected.len - self.progress.got);
        if len == 0 {
            return;
        }
        if let Some(destination) = taking.sink.destination() {
            let bytes = &self.ahead[self.start..self.start + len];
            destination.sub(expected.base + self.progress.got, len).copy_from(Span::from(bytes));
            *taking.copied += len as u64;
            self.progress.got += len;
            self.start += len;
            return;
        }
        let mut left = len;
        while left > 0 {
            let memory = taking.fold.memory();
            let room = memory.len() - self.rest_len;
            let now = left.min(room);
            let bytes = &self.ahead[self.start..self.start + now];
            memory.sub(self.rest_len, now).copy_from(Span::from(bytes));
            self.start += now;
            self.progress.got += now;
            self.hand_over(expected, now, taking);
            left -= now;
        }
    }

    /// Reads the part under way to where it belongs.
    #[inline]
    fn read_body(
        &mut self,
        source: &impl Source,
        expected: &Expected,
        taking: &mut Taking<'_>,
    ) -> Result<bool, Failed> {
        debug_assert_eq!(self.start, self.end, "what was read ahead comes first");
        (self.start, self.end) = (0, 0);
        let left = expected.len - self.progress.got;
        let destination = taking.sink.destination();
        let target = match destination {
            Some(destination) => destination.sub(expected.base + self.progress.got, left.min(READ_MOST)),
            None => {
                let memory = taking.fold.memory();
                memory.sub(self.rest_len, left.min(memory.len() - self.rest_len))
            }
        };
        let came = if target.len() < left {
            source.recv([target])?
        } else {
            source.recv([target, SpanMut::from(&mut self.ahead[..])])?
        };
        let came = match came {
            Came::Nothing => return Ok(false),
            Came::End => return Err(Failed::Ended),
            Came::Bytes(came) => came,
        };
        let landed = came.min(target.len());
        self.end = came - landed;
        self.progress.got += landed;
        if destination.is_none() {
            self.hand_over(expected, landed, taking);
        }
        Ok(true)
    }

    /// Passes `fresh` bytes and the remainder of the last call to the sink, except for an incomplete element
    /// at the end.
    ///
    /// The fresh bytes lie in the reduction buffer, behind room for the remainder.
    fn hand_over(&mut self, expected: &Expected, fresh: usize, taking: &mut Taking<'_>) {
        let memory = taking.fold.memory();
        memory.sub(0, self.rest_len).copy_from(Span::from(&self.rest[..self.rest_len]));
        let held = self.rest_len + fresh;
        let whole = if self.progress.got == expected.len { held } else { held / CUT_BYTES * CUT_BYTES };
        let offset = expected.base + self.progress.got - held;
        if whole > 0 {
            taking.sink.write(offset, memory.sub(0, whole).as_span());
        }
        self.rest_len = held - whole;
        SpanMut::from(&mut self.rest[..self.rest_len]).copy_from(memory.sub(whole, self.rest_len).as_span());
    }
}
