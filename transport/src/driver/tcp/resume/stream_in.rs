//! Receiving side of a stream: its position, and the bytes that were read from a carrier that has failed.

use super::{
    super::{
        incoming::{Incoming, PlainIncoming},
        receive::{ExpectedPart, Polled, RecvError, RecvTarget},
        socket::{ReadResult, Source},
        wire::Header,
    },
    carrier::Carrier,
};
use crate::memory::{Span, SpanMut};
use std::{cell::Cell, io};

/// Maximum bytes that are read from a carrier that has failed; more than any system buffers.
const MAX_DRAINED_BYTES: usize = 256 << 20;
/// Bytes to read at a time from a carrier that has failed.
const DRAIN_BYTES: usize = 64 << 10;

/// Receiving side of a stream.
#[derive(Debug)]
pub(super) struct StreamIn {
    incoming: Incoming,
    /// Bytes read from carriers.
    received: Cell<u64>,
    /// Bytes read from carriers that have failed; the first `consumed` ones are consumed.
    backlog: Vec<u8>,
    consumed: Cell<usize>,
}

impl StreamIn {
    pub(super) fn new() -> StreamIn {
        StreamIn {
            incoming: Incoming::Plain(PlainIncoming::new()),
            received: Cell::new(0),
            backlog: Vec::new(),
            consumed: Cell::new(0),
        }
    }

    /// Returns the number of bytes read from carriers.
    pub(super) fn received(&self) -> u64 {
        self.received.get()
    }

    /// Receives bytes of the expected part, as far as they have arrived.
    pub(super) fn poll(
        &mut self,
        carrier: Option<&impl Carrier>,
        expected: &ExpectedPart,
        target: &mut RecvTarget<'_>,
    ) -> Result<Polled, RecvError> {
        let StreamIn { incoming, received, backlog, consumed } = self;
        let source = StreamSource { backlog, consumed, received, carrier };
        let polled = incoming.poll(&source, expected, target);
        if !backlog.is_empty() && consumed.get() == backlog.len() {
            *backlog = Vec::new();
            consumed.set(0);
        }
        polled
    }

    pub(super) fn header(&self) -> Option<Header> {
        self.incoming.header()
    }

    /// Bytes of the current part that are in their destination.
    pub(super) fn received_of_part(&self) -> usize {
        self.incoming.received()
    }

    /// Ends the current part, so that the next one can be received.
    pub(super) fn next(&mut self) {
        self.incoming.next();
    }

    /// Reads everything that a carrier still holds. The peer must have stopped writing to it.
    pub(super) fn drain(&mut self, carrier: &impl Carrier) {
        let before = self.backlog.len();
        loop {
            let at = self.backlog.len();
            if at - before >= MAX_DRAINED_BYTES {
                break;
            }
            self.backlog.resize(at + DRAIN_BYTES, 0);
            let read = carrier.recv([SpanMut::from(&mut self.backlog[at..])]);
            let bytes = if let Ok(ReadResult::Bytes(bytes)) = read { bytes } else { 0 };
            self.backlog.truncate(at + bytes);
            if bytes == 0 {
                break;
            }
        }
        self.received.set(self.received.get() + (self.backlog.len() - before) as u64);
    }
}

/// The backlog, and behind it the carrier.
struct StreamSource<'a, C> {
    backlog: &'a [u8],
    consumed: &'a Cell<usize>,
    received: &'a Cell<u64>,
    carrier: Option<&'a C>,
}

impl<C: Carrier> Source for StreamSource<'_, C> {
    #[inline]
    fn recv<const N: usize>(&self, parts: [SpanMut<'_>; N]) -> io::Result<ReadResult> {
        if self.consumed.get() < self.backlog.len() {
            return Ok(self.take(&parts));
        }
        let Some(carrier) = self.carrier else { return Ok(ReadResult::WouldBlock) };
        let read = carrier.recv(parts)?;
        if let ReadResult::Bytes(bytes) = read {
            self.received.set(self.received.get() + bytes as u64);
        }
        Ok(read)
    }
}

impl<C> StreamSource<'_, C> {
    /// Copies bytes of the backlog.
    fn take(&self, parts: &[SpanMut<'_>]) -> ReadResult {
        let mut taken = 0;
        for part in parts {
            let left = &self.backlog[self.consumed.get()..];
            let now = part.len().min(left.len());
            part.sub(0, now).copy_from(Span::from(&left[..now]));
            self.consumed.set(self.consumed.get() + now);
            taken += now;
        }
        ReadResult::Bytes(taken)
    }
}
