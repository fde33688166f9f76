//! Types that plain and encrypted receiving share: expected part, result of a poll, reduction buffer.
//!
//! # Safety
//! The reduction buffer consists of plain bytes. The span over it lives only as long as the buffer is
//! borrowed.

use super::wire::Header;
use crate::{Sink, TransportError, memory::SpanMut};
use std::io;

/// Bytes that are reduced at a time: small enough to stay in cache until then.
const REDUCE_BUFFER_BYTES: usize = 64 << 10;

/// The part that the link expects.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpectedPart {
    pub(super) digest: u64,
    /// Bytes of the whole message.
    pub(super) total: usize,
    pub(super) part: u8,
    /// Offset of the part within the message.
    pub(super) base: usize,
    /// Bytes of the part.
    pub(super) len: usize,
}

/// Result of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polled {
    /// Nothing has arrived.
    Idle,
    /// Some bytes of the part were received.
    Advanced,
    /// The part is complete.
    Complete,
}

/// Failure of a poll.
#[derive(Debug)]
pub(super) enum RecvError {
    /// The connection has failed.
    Io(io::Error),
    /// The other end has closed the connection.
    Ended,
    /// The peer has violated the protocol.
    Protocol(&'static str),
    /// An encrypted record failed authentication.
    Authentication,
    /// The next message is not the expected one.
    Unexpected(TransportError),
}

impl From<io::Error> for RecvError {
    fn from(error: io::Error) -> RecvError {
        RecvError::Io(error)
    }
}

/// Destination and accounting of a poll.
pub(super) struct RecvTarget<'a> {
    pub(super) sink: &'a mut dyn Sink,
    /// Buffer for bytes to be reduced, shared by a link's connections.
    pub(super) reduce_buffer: &'a mut ReduceBuffer,
    pub(super) copied: &'a mut u64,
}

/// Progress of the current part.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Header of the part, once it is read.
    pub(super) header: Option<Header>,
    /// Payload bytes received.
    pub(super) received: usize,
}

impl Progress {
    /// Compares the header with the expected part.
    #[inline]
    pub(super) fn check(&self, expected: &ExpectedPart) -> Result<(), RecvError> {
        let Some(header) = self.header else { return Ok(()) };
        if header.digest != expected.digest {
            let (expected, found) = (expected.digest, header.digest);
            return Err(RecvError::Unexpected(TransportError::Mismatch { expected, found }));
        }
        if header.len != expected.total as u64 {
            let (expected, found) = (expected.total as u64, header.len);
            return Err(RecvError::Unexpected(TransportError::Length { expected, found }));
        }
        if header.part != expected.part {
            return Err(RecvError::Protocol("the wrong part of a message"));
        }
        Ok(())
    }
}

/// A cache line, for its alignment.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct CacheLine(pub(super) [u8; 64]);

/// Returns the memory of whole cache lines, as bytes.
pub(super) fn bytes_of(lines: &mut [CacheLine]) -> SpanMut<'_> {
    // SAFETY: lines are bytes without padding. They are mutably borrowed while the span lives, so that only
    // the span accesses them.
    unsafe { SpanMut::new(lines.as_mut_ptr().cast(), lines.len() * 64) }
}

/// Reduction buffer: holds bytes until they form whole elements. Allocated on first use.
#[derive(Debug, Default)]
pub(super) struct ReduceBuffer {
    lines: Vec<CacheLine>,
}

impl ReduceBuffer {
    pub(super) fn memory(&mut self) -> SpanMut<'_> {
        if self.lines.is_empty() {
            self.lines = vec![CacheLine([0; 64]); REDUCE_BUFFER_BYTES / 64];
        }
        bytes_of(&mut self.lines)
    }
}
