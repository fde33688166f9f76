//! Frames and their eager messages as single messages of the link.
//!
//! A receiver expects a frame. If it finds a packed message instead, the link names the digest, whose low
//! bits are the length, and keeps the message for the receive that follows. So one message is sent in the
//! place of two. It takes a copy at each end; links say up to which length that costs less
//! ([`packed_bytes`](transport::Capabilities::packed_bytes)).

use super::super::frame::{FRAME_BYTES, FrameBytes};
use crate::executor::{CopySink, Writes};
use transport::{
    Link, RecvProgress, RecvState, TransportError,
    memory::{Span, SpanMut},
};

/// The digest of a packed message of 0 bytes; see `FRAME_DIGEST`.
const PACKED_DIGEST: u64 = 0x6d61_696c_4000_0000;
/// Bits of a digest that are the length of the packed message, doubled.
const LENGTH_BITS: u64 = 0x3fff_fffe;

/// Returns the digest of a packed message of `len` bytes, its frame among them.
pub(in crate::p2p) fn digest(len: usize) -> u64 {
    PACKED_DIGEST | (len as u64) << 1
}

/// Returns the length of the packed message with this digest, its frame among it; `None` for other messages.
fn length_of(digest: u64) -> Option<usize> {
    (digest & !LENGTH_BITS == PACKED_DIGEST).then_some(((digest & LENGTH_BITS) >> 1) as usize)
}

/// Returns a frame and its message in one piece, in memory that is given.
pub(super) fn pack(mut memory: Vec<u8>, frame: &FrameBytes, message: Span<'_>) -> Vec<u8> {
    memory.resize(FRAME_BYTES + message.len(), 0);
    memory[..FRAME_BYTES].copy_from_slice(frame);
    SpanMut::from(&mut memory[FRAME_BYTES..]).copy_from(message);
    memory
}

/// Packed messages from one peer.
#[derive(Debug, Default)]
pub(super) struct PackedReceive {
    /// State of the message that is arriving.
    state: Option<RecvState>,
    memory: Vec<u8>,
}

impl PackedReceive {
    /// Whether a packed message is arriving.
    pub(super) fn is_arriving(&self) -> bool {
        self.state.is_some()
    }

    /// Begins to receive a packed message, if that is what the receive of a frame has found.
    pub(super) fn begin(&mut self, link: &dyn Link, frame: &RecvState, error: &TransportError) -> bool {
        let TransportError::Mismatch { found, .. } = error else { return false };
        let lengths = FRAME_BYTES + 1..=link.capabilities().packed_bytes;
        let Some(len) = length_of(*found).filter(|len| lengths.contains(len)) else { return false };
        if frame.received() > 0 {
            return false;
        }
        self.memory.resize(len, 0);
        self.state = Some(RecvState::new(*found, len));
        true
    }

    /// Takes the bytes that have arrived.
    pub(super) fn poll(&mut self, link: &mut dyn Link) -> Result<RecvProgress, TransportError> {
        match &mut self.state {
            Some(state) => {
                link.poll_recv(state, &mut CopySink::new(SpanMut::from(&mut self.memory[..]), Writes::Cached))
            }
            None => Ok(RecvProgress::Idle),
        }
    }

    /// Ends a message that has arrived. Returns its frame, and the memory with both.
    pub(super) fn take(&mut self) -> (FrameBytes, Vec<u8>) {
        self.state = None;
        let memory = std::mem::take(&mut self.memory);
        let mut frame = [0; FRAME_BYTES];
        frame.copy_from_slice(&memory[..FRAME_BYTES]);
        (frame, memory)
    }

    /// Takes back the memory of a message, for the next one.
    pub(super) fn give_back(&mut self, memory: Vec<u8>) {
        self.memory = memory;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digests_of_packed_messages_have_a_length() {
        for len in [0, FRAME_BYTES + 1, 4032, 1 << 20] {
            assert_eq!(length_of(digest(len)), Some(len));
            assert_eq!(length_of(super::super::EAGER_DIGEST | (len as u64) << 1), None);
        }
        assert_eq!(length_of(super::super::FRAME_DIGEST), None);
        assert_eq!(length_of(digest(100) | 1), None, "digests are even");
    }
}
