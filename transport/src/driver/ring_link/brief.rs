//! Brief messages that do not travel in cells: one piece in the staging area, or in a buffer that changes
//! hands.
//!
//! Brief messages in cells are polled by the link itself, since each instruction there counts.

use super::RingLink;
use crate::{
    BriefMessage,
    memory::Span,
    ring::{Buffers, Content, Publish, RingLayout, RingReceiver, end_speculation},
};

/// Longest brief message. 16 KiB gain 4 %, and longer messages less, since copying takes most of their time.
pub(super) const BRIEF_BYTES: usize = 16 << 10;

/// The memory of a brief message in one piece, which its end gives back.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found {
    /// The staging area up to this position.
    Staged { end: u64 },
    /// Nothing: the buffer is this end's from then on.
    Handed { buffer: u8 },
}

/// Returns the next message, if it is one of this digest and of `len` bytes in one piece.
#[inline]
fn whole_piece<'l>(
    receiver: &'l RingReceiver,
    buffers: &'l Buffers,
    digest: u64,
    len: usize,
) -> (BriefMessage<'l>, Option<Found>) {
    let another = (BriefMessage::Another, None);
    let Some(head) = receiver.head() else { return (BriefMessage::NotYet, None) };
    if receiver.digest() != digest {
        return another;
    }
    let whole = |piece| BriefMessage::Whole([piece, Span::empty()]);
    match receiver.content(head) {
        Ok(Content::Staged { total, position, len: staged, timed: None })
            if total == len && staged == len =>
        {
            let end = position + len.next_multiple_of(RingLayout::LINE) as u64;
            receiver.piece(position, len).map_or(another, |piece| (whole(piece), Some(Found::Staged { end })))
        }
        Ok(Content::Handed { total, buffer, len: handed }) if total == len && handed == len => buffers
            .piece(buffer, len)
            .map_or(another, |(buffer, piece)| (whole(piece), Some(Found::Handed { buffer }))),
        _ => another,
    }
}

impl RingLink {
    /// Polls a message that does not travel in cells; see [`Link::poll_brief`].
    // Out of line, since it makes polls of messages in cells slower.
    #[inline(never)]
    pub(super) fn poll_piece(&mut self, digest: u64, len: usize, polls: u32) -> BriefMessage<'_> {
        let mut polled = 0;
        loop {
            let (message, found) = whole_piece(&self.receiver, &self.buffers, digest, len);
            if !matches!(message, BriefMessage::NotYet) || polled == polls {
                self.found = found;
                return message;
            }
            if polled == 0 {
                self.replies.polled(false);
            }
            end_speculation();
            polled += 1;
        }
    }

    /// Consumes a brief message that was found in one piece.
    #[inline(never)]
    pub(super) fn end_piece(&mut self) {
        match self.found.take() {
            Some(Found::Staged { end }) => self.receiver.consume(Some(end), Publish::Lazily),
            Some(Found::Handed { buffer }) => {
                self.buffers.take(buffer);
                self.receiver.consume(None, Publish::Lazily);
            }
            None => debug_assert!(false, "the end of a message that was not found"),
        }
    }
}
