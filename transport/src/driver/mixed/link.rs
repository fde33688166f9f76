//! Shared memory rings that can tell the sender that a message was matched.
//!
//! The acknowledgement costs no message: the receiver counts received messages in a word of its arena, which
//! the sender reads.
//!
//! An idle link makes progress on the inter-host driver: a remote rank may wait for an answer that only this
//! rank gives.

use super::super::{ProgressHandle, ring_link::RingLink};
use crate::{
    Board, BriefMessage, Capabilities, Counters, Link, RecvProgress, RecvState, SendProgress, SendState,
    Sink, TransportError, memory::Span,
};
use std::sync::{
    Arc,
    atomic::Ordering::{Acquire, Release},
};

/// Empty polls per progress call on the other driver; a power of two.
///
/// Such a call costs several times as much as polling a ring.
const PROGRESS_INTERVAL: u32 = 4;

/// Empty polls for a brief message per progress call on the other driver: they end as soon as it arrives.
const BRIEF_INTERVAL: u32 = 16;

/// Bit of [`SendState::awaits`] that marks the number of a message to be matched; the ring's own numbers have
/// it clear.
const MATCH_BIT: u64 = 1 << 63;

/// Link on one lane to a peer of the same host.
#[derive(Debug)]
pub(super) struct MatchAckLink {
    ring: RingLink,
    /// Messages whose sending has started.
    sent: u64,
    received: u64,
    /// Word of this rank's board in which the peer reads how many of its messages were received.
    received_word: (Board, usize),
    /// Word of the peer's board in which this rank reads how many of its messages were received.
    matched_word: (Board, usize),
    progress_handle: Option<Arc<dyn ProgressHandle>>,
    /// Polls that found nothing.
    empty_polls: u32,
    /// Error of the other driver that no poll has returned yet.
    unreported: Option<TransportError>,
}

impl MatchAckLink {
    pub(super) fn new(
        ring: RingLink,
        received_word: (Board, usize),
        matched_word: (Board, usize),
        progress_handle: Option<Arc<dyn ProgressHandle>>,
    ) -> MatchAckLink {
        MatchAckLink {
            ring,
            sent: 0,
            received: 0,
            received_word,
            matched_word,
            progress_handle,
            empty_polls: 0,
            unreported: None,
        }
    }

    /// Makes progress on the other driver after an empty poll.
    #[inline]
    fn progress_other_driver(&mut self) -> Result<(), TransportError> {
        let Some(handle) = &self.progress_handle else { return Ok(()) };
        self.empty_polls = self.empty_polls.wrapping_add(1);
        if !self.empty_polls.is_multiple_of(PROGRESS_INTERVAL) {
            return Ok(());
        }
        if let Some(error) = self.unreported.take() {
            return Err(error);
        }
        progress(&**handle)
    }

    /// Tells the peer that its message has been received.
    #[inline]
    fn acknowledge(&mut self) {
        self.received += 1;
        let (board, word) = &self.received_word;
        board.words()[*word].store(self.received, Release);
    }

    /// Counts a message that has started, and makes the send wait for a match if its state asks for one.
    ///
    /// `is_begun`: an earlier poll has posted the message.
    #[inline]
    fn record_send(
        &mut self,
        state: &mut SendState,
        is_begun: bool,
        progress: SendProgress,
    ) -> Result<SendProgress, TransportError> {
        if progress == SendProgress::Idle || is_begun && progress == SendProgress::Posted {
            self.progress_other_driver()?;
        }
        if !is_begun && matches!(progress, SendProgress::Posted | SendProgress::Complete) {
            self.sent += 1;
            // A message read in place is complete only when it was matched; a staged one may be complete
            // before.
            if state.match_ack && progress == SendProgress::Complete {
                state.awaits = Some(MATCH_BIT | (self.sent - 1));
                return Ok(SendProgress::Posted);
            }
        }
        Ok(progress)
    }

    fn is_matched(&self, number: u64) -> bool {
        let (board, word) = &self.matched_word;
        board.words()[*word].load(Acquire) > number
    }
}

/// Makes progress on a driver, and drops errors that name no peer: its next use returns them again.
fn progress(handle: &dyn ProgressHandle) -> Result<(), TransportError> {
    handle.progress().or_else(|error| if error.peer().is_some() { Err(error) } else { Ok(()) })
}

impl Link for MatchAckLink {
    fn capabilities(&self) -> &Capabilities {
        self.ring.capabilities()
    }

    fn counters(&self) -> Counters {
        self.ring.counters()
    }

    #[inline]
    fn poll_send(&mut self, state: &mut SendState, src: Span<'_>) -> Result<SendProgress, TransportError> {
        if let Some(number) = state.awaits.filter(|awaits| awaits & MATCH_BIT != 0) {
            if self.is_matched(number & !MATCH_BIT) {
                return Ok(SendProgress::Complete);
            }
            self.progress_other_driver()?;
            return Ok(SendProgress::Posted);
        }
        let is_begun = state.awaits.is_some();
        let progress = self.ring.poll_send(state, src)?;
        self.record_send(state, is_begun, progress)
    }

    fn poll_send_prefix(
        &mut self,
        state: &mut SendState,
        src: Span<'_>,
        ready: usize,
    ) -> Result<SendProgress, TransportError> {
        if ready >= src.len() {
            return self.poll_send(state, src);
        }
        let progress = self.ring.poll_send_prefix(state, src, ready)?;
        self.record_send(state, false, progress)
    }

    #[inline]
    fn poll_recv(
        &mut self,
        state: &mut RecvState,
        sink: &mut dyn Sink,
    ) -> Result<RecvProgress, TransportError> {
        let progress = self.ring.poll_recv(state, sink)?;
        if progress == RecvProgress::Complete {
            self.acknowledge();
        } else if progress == RecvProgress::Idle {
            self.progress_other_driver()?;
        }
        Ok(progress)
    }

    #[inline]
    fn send_brief(&mut self, digest: u64, src: Span<'_>, is_awaited: bool) -> bool {
        let is_sent = self.ring.send_brief(digest, src, is_awaited);
        self.sent += u64::from(is_sent);
        is_sent
    }

    #[inline]
    fn poll_brief(&mut self, digest: u64, len: usize, polls: u32) -> BriefMessage<'_> {
        let Some(handle) = &self.progress_handle else {
            return self.ring.poll_brief(digest, len, polls);
        };
        for _ in 0..polls / BRIEF_INTERVAL {
            if !matches!(self.ring.poll_brief(digest, len, BRIEF_INTERVAL), BriefMessage::NotYet) {
                break;
            }
            if let Err(error) = progress(&**handle) {
                self.unreported = Some(error);
                return BriefMessage::Another;
            }
        }
        self.ring.poll_brief(digest, len, 0)
    }

    #[inline]
    fn end_brief(&mut self, len: usize, is_copied: bool, next_sent: Option<usize>) {
        self.ring.end_brief(len, is_copied, next_sent);
        self.acknowledge();
    }

    fn await_reply(&mut self, len: usize) {
        self.ring.await_reply(len);
    }

    fn prepare_send(&mut self, len: usize) {
        self.ring.prepare_send(len);
    }

    fn peek_digest(&self) -> Option<u64> {
        self.ring.peek_digest()
    }

    fn abort(&mut self) {
        self.ring.abort();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{
        memory::{Arena, ArenaLayout, SpanMut},
        ring::RingLayout,
    };
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    /// Another driver, which loses a peer at its third progress call.
    #[derive(Debug, Default)]
    struct Other(AtomicU32);

    impl ProgressHandle for Other {
        fn progress(&self) -> Result<(), TransportError> {
            match self.0.fetch_add(1, Relaxed) {
                2 => Err(TransportError::Revoked { peer: 7 }),
                _ => Ok(()),
            }
        }
    }

    struct Nothing;

    impl Sink for Nothing {
        fn write(&mut self, _: usize, _: Span<'_>) {}

        fn destination(&mut self) -> Option<SpanMut<'_>> {
            None
        }
    }

    #[test]
    fn a_rank_that_waits_for_a_brief_message_answers_other_hosts_and_reports_their_loss() {
        let layout = ArenaLayout { ranks: 2, lanes: 1, ring: RingLayout::default(), slab_bytes: 4096 };
        let [ours, theirs] = [(); 2].map(|()| Arena::private(layout).expect("memory"));
        let ring = RingLink::new("test", (0, &ours), (1, &theirs), 0, None);
        let other = Arc::new(Other::default());
        let handle = Some(Arc::clone(&other) as Arc<dyn ProgressHandle>);
        let mut link = MatchAckLink::new(ring, (ours.board(), 0), (theirs.board(), 0), handle);
        assert!(matches!(link.poll_brief(2, 8, 2 * BRIEF_INTERVAL), BriefMessage::NotYet));
        assert_eq!(other.0.load(Relaxed), 2, "progress calls");
        assert!(matches!(link.poll_brief(2, 8, BRIEF_INTERVAL), BriefMessage::Another), "polls tell more");
        let mut state = RecvState::new(2, 8);
        let lost = (0..PROGRESS_INTERVAL).find_map(|_| link.poll_recv(&mut state, &mut Nothing).err());
        assert_eq!(lost.and_then(|error| error.peer()), Some(7));
    }
}
