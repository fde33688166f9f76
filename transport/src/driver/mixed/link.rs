//! Rings whose sender can be told that a message was matched.
//!
//! A sender that must know writes nothing more: the receiver counts the messages it has received in a word of its arena,
//! which the sender reads.

use super::super::ring_link::RingLink;
use crate::{
    Board, Capabilities, Counters, Link, RecvProgress, RecvState, SendProgress, SendState, Sink,
    TransportError, memory::Span,
};
use std::sync::atomic::Ordering::{Acquire, Release};

/// In [`SendState::awaits`]: the number is that of a message that is to be matched, and not the ring's own.
const MATCH: u64 = 1 << 63;

/// A lane to a peer of the same host.
#[derive(Debug)]
pub(super) struct ConfirmingLink {
    ring: RingLink,
    /// Messages begun.
    sent: u64,
    received: u64,
    /// The word of ours in which the peer reads how many messages we have received.
    received_word: (Board, usize),
    /// The word of the peer in which we read how many of ours it has received.
    matched_word: (Board, usize),
}

impl ConfirmingLink {
    pub(super) fn new(
        ring: RingLink,
        received_word: (Board, usize),
        matched_word: (Board, usize),
    ) -> ConfirmingLink {
        ConfirmingLink { ring, sent: 0, received: 0, received_word, matched_word }
    }

    fn has_matched(&self, number: u64) -> bool {
        let (board, word) = &self.matched_word;
        board.words()[*word].load(Acquire) > number
    }
}

impl Link for ConfirmingLink {
    fn capabilities(&self) -> &Capabilities {
        self.ring.capabilities()
    }

    fn counters(&self) -> Counters {
        self.ring.counters()
    }

    #[inline]
    fn poll_send(&mut self, state: &mut SendState, src: Span<'_>) -> Result<SendProgress, TransportError> {
        if let Some(number) = state.awaits.filter(|awaits| awaits & MATCH != 0) {
            let is_over = self.has_matched(number & !MATCH);
            return Ok(if is_over { SendProgress::Complete } else { SendProgress::Posted });
        }
        let is_begun = state.awaits.is_some();
        let progress = self.ring.poll_send(state, src)?;
        if !is_begun && matches!(progress, SendProgress::Posted | SendProgress::Complete) {
            self.sent += 1;
            // One that is read in place is complete when it was matched; one that is copied may be so before.
            if state.confirmed && progress == SendProgress::Complete {
                state.awaits = Some(MATCH | (self.sent - 1));
                return Ok(SendProgress::Posted);
            }
        }
        Ok(progress)
    }

    #[inline]
    fn poll_recv(
        &mut self,
        state: &mut RecvState,
        sink: &mut dyn Sink,
    ) -> Result<RecvProgress, TransportError> {
        let progress = self.ring.poll_recv(state, sink)?;
        if progress == RecvProgress::Complete {
            self.received += 1;
            let (board, word) = &self.received_word;
            board.words()[*word].store(self.received, Release);
        }
        Ok(progress)
    }

    fn peek_digest(&self) -> Option<u64> {
        self.ring.peek_digest()
    }
}
