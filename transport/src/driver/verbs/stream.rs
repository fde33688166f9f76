//! The order of runtime messages between two ranks on one stream.
//!
//! A runtime message travels as *fragments* in slots, or, if it is a bulk message, as a head in a slot and
//! pieces (`placed`, `granted`). Fragments and heads reach the receiver in order and once, since they are
//! sequenced. They wait in slots until the runtime asks for them; where slots get scarce they are copied to
//! the heap.
//!
//! Invariant: at most [`CREDITS`] fragments and heads of a stream are not matched, so no stream fills the
//! receiver's memory.
//!
//! This module is pure, except that it holds counters.

use super::{
    granted::Granted,
    wire::{CONFIRM, Header, Kind, OFFSET_UNIT, is_before},
};
use crate::{Counters, RecvState, SendState, SizeClass, TransportError};
use std::collections::VecDeque;

/// Fragments and heads of a stream that the receiver need not have matched.
pub(super) const CREDITS: u32 = 32;
/// Bytes above which a message of a bulk operation travels in pieces.
///
/// Fewer are faster in slots, whose copies, checksums and bytes on the cable overlap; a piece has one
/// checksum, and a call that sends registered memory waits until it has arrived. Half a round trip of 128 KiB
/// on a cable of 5 us and 75 Gb/s took 24.6 us in pieces and 20.4 in slots, from registered memory 25.9 and
/// 20.4 (two ranks on an AMD EPYC). `reduce_scatter` and `all_gather` took about as long either way. Without
/// a cable model, devices with remote write took 4.1 to 4.8 us from registered memory in pieces, and 9.8 to
/// 9.9 in slots.
pub(super) const BULK_BYTES: usize = 128 << 10;
/// Bytes above which a message of any other operation travels in pieces.
pub(super) const LARGE_BYTES: usize = 256 << 10;

/// Whether a message travels in pieces, if its stream may use them. Both ends compute the same.
#[inline]
pub(super) fn is_bulk(size: SizeClass, len: usize) -> bool {
    len > if size == SizeClass::Bulk { BULK_BYTES } else { LARGE_BYTES }
}

/// Place of a fragment's bytes at the receiver.
#[derive(Debug)]
pub(super) enum Bytes {
    /// In a slot of a queue pair of a rail, with the offset of the bytes in the slab.
    Slot { rail: u8, queue: u8, slot: u32, at: usize },
    /// On the heap, as a copy.
    Heap(Box<[u8]>),
}

/// A fragment or a head that has arrived.
#[derive(Debug)]
pub(super) struct Fragment {
    pub(super) bytes: Bytes,
    pub(super) len: usize,
    pub(super) is_head: bool,
    digest: u64,
    total: u64,
    message: u32,
    offset: usize,
    flags: u8,
}

impl Fragment {
    pub(super) fn new(header: &Header, bytes: Bytes) -> Fragment {
        Fragment {
            bytes,
            len: usize::from(header.len),
            is_head: header.kind == Kind::Head as u8,
            digest: header.digest,
            total: header.total,
            message: header.message,
            offset: header.value as usize * OFFSET_UNIT,
            flags: header.flags,
        }
    }

    /// Whether the sender waits until the message is matched.
    pub(super) fn must_confirm(&self) -> bool {
        self.flags & CONFIRM != 0
    }

    /// Whether this is the next part of the message that `state` describes; `false` for a part of no such
    /// place.
    ///
    /// # Errors
    /// [`TransportError::Mismatch`] and [`TransportError::Length`] when it is a part of another message.
    #[inline]
    pub(super) fn is_next(&self, state: &RecvState, message: u32) -> Result<bool, TransportError> {
        if self.digest != state.digest {
            return Err(TransportError::Mismatch { expected: state.digest, found: self.digest });
        }
        if self.total != state.len as u64 {
            return Err(TransportError::Length { expected: state.len as u64, found: self.total });
        }
        let is_inside = self.offset == state.received && self.len <= state.len - state.received;
        let ends = self.is_head || self.len > 0 || state.len == 0;
        Ok(self.message == message && is_inside && ends)
    }
}

/// One direction of a stream, at its sender.
#[derive(Debug)]
pub(super) struct SendStream {
    /// Number of the next message, or of the one that is being sent.
    message: u32,
    /// Fragments and heads sent, and how many may be.
    sent: u32,
    limit: u32,
    /// Number of the next bulk message, or of the one that is being sent.
    bulk: u32,
    /// Whether the head of the present message has been sent.
    has_head: bool,
    /// Path of the bytes of the present bulk message, once that is known.
    pub(super) way: Option<Way>,
}

/// Path of the bytes of a bulk message, where pieces meet receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Way {
    /// Pieces by the placed queues.
    Placed,
    /// Slots.
    Relayed,
}

impl SendStream {
    fn new() -> SendStream {
        SendStream { message: 0, sent: 0, limit: CREDITS, bulk: 0, has_head: false, way: None }
    }

    #[inline]
    pub(super) fn has_credit(&self) -> bool {
        is_before(self.sent, self.limit)
    }

    /// The header of the next fragment of a message.
    #[inline]
    pub(super) fn fragment(&self, state: &SendState, total: usize, flags: u8) -> Header {
        Header {
            digest: state.digest,
            total: total as u64,
            message: self.message,
            value: (state.staged / OFFSET_UNIT) as u32,
            flags,
            ..Header::new(Kind::Eager)
        }
    }

    /// The header of the head of a bulk message.
    pub(super) fn head(&self, state: &SendState, total: usize) -> Header {
        Header { kind: Kind::Head as u8, ..self.fragment(state, total, 0) }
    }

    /// Notes that a fragment has been sent; returns its number.
    #[inline]
    pub(super) fn fragment_sent(&mut self) -> u32 {
        self.sent = self.sent.wrapping_add(1);
        self.sent.wrapping_sub(1)
    }

    /// Notes that a head has been sent.
    pub(super) fn head_sent(&mut self) {
        self.fragment_sent();
        self.has_head = true;
    }

    pub(super) fn has_head(&self) -> bool {
        self.has_head
    }

    /// Number of the present bulk message.
    pub(super) fn bulk(&self) -> u32 {
        self.bulk
    }

    /// Ends the present message.
    #[inline]
    pub(super) fn end_message(&mut self, is_bulk: bool) {
        self.message = self.message.wrapping_add(1);
        self.bulk = self.bulk.wrapping_add(is_bulk.into());
        self.has_head = false;
        self.way = None;
    }

    /// Takes in the peer's limit. Limits only grow.
    #[inline]
    pub(super) fn raise_limit(&mut self, limit: u32) {
        if is_before(self.limit, limit) {
            self.limit = limit;
        }
    }

    /// Whether the peer has matched the fragment of that number.
    pub(super) fn is_matched(&self, fragment: u32) -> bool {
        is_before(fragment, self.limit.wrapping_sub(CREDITS))
    }
}

/// One direction of a stream, at its receiver.
#[derive(Debug)]
pub(super) struct RecvStream {
    /// Number of the next message, or of the one that is being received.
    message: u32,
    fragments: VecDeque<Fragment>,
    matched: u32,
    told_limit: u32,
    /// Whether the head of the present message has been taken.
    has_head: bool,
    /// Number of the next bulk message to be announced.
    pub(super) announced: u32,
}

impl RecvStream {
    fn new() -> RecvStream {
        let fragments = VecDeque::new();
        RecvStream { message: 0, fragments, matched: 0, told_limit: CREDITS, has_head: false, announced: 0 }
    }

    /// Adds a fragment that has arrived; false when the sender had no credit for it.
    #[inline]
    pub(super) fn push(&mut self, fragment: Fragment) -> bool {
        self.fragments.push_back(fragment);
        self.fragments.len() <= CREDITS as usize
    }

    #[inline]
    pub(super) fn front(&self) -> Option<&Fragment> {
        self.fragments.front()
    }

    /// Takes the first fragment out, which the runtime has matched.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Fragment> {
        self.matched = self.matched.wrapping_add(1);
        self.fragments.pop_front()
    }

    /// Takes out all fragments of an ended stream.
    pub(super) fn drop_fragments(&mut self) -> VecDeque<Fragment> {
        std::mem::take(&mut self.fragments)
    }

    /// Number of the message that is being received.
    #[inline]
    pub(super) fn message(&self) -> u32 {
        self.message
    }

    #[inline]
    pub(super) fn end_message(&mut self) {
        self.message = self.message.wrapping_add(1);
        self.has_head = false;
    }

    #[inline]
    pub(super) fn has_head(&self) -> bool {
        self.has_head
    }

    #[inline]
    pub(super) fn take_head(&mut self) {
        self.has_head = true;
    }

    /// The digest of the next message, if it has begun to arrive.
    pub(super) fn peek_digest(&self) -> Option<u64> {
        if self.has_head {
            return None;
        }
        self.fragments.front().map(|fragment| fragment.digest)
    }

    /// Fragments that the peer may send in all.
    #[inline]
    pub(super) fn limit(&self) -> u32 {
        self.matched.wrapping_add(CREDITS)
    }

    /// Whether the peer should be told of the limit.
    #[inline]
    pub(super) fn owes_limit(&self) -> bool {
        self.limit().wrapping_sub(self.told_limit) >= CREDITS / 2
    }

    #[inline]
    pub(super) fn limit_told(&mut self) {
        self.told_limit = self.limit();
    }

    /// Whether the peer does not know the limit.
    pub(super) fn has_untold_limit(&self) -> bool {
        self.limit() != self.told_limit
    }

    /// The slots of a rail that hold fragments, by queue pair and number.
    pub(super) fn slots(&self, of_rail: u8) -> impl Iterator<Item = (u8, u32)> {
        self.fragments.iter().filter_map(move |fragment| match fragment.bytes {
            Bytes::Slot { rail, queue, slot, .. } if rail == of_rail => Some((queue, slot)),
            _ => None,
        })
    }
}

/// Both directions.
#[derive(Debug)]
pub(super) struct Stream {
    /// Number of the stream, equal at both ends.
    number: u32,
    pub(super) send: SendStream,
    pub(super) recv: RecvStream,
    pub(super) counters: Counters,
    /// Pieces of bulk messages by remote writes; unused where pieces meet receives.
    pub(super) granted: Granted,
    /// Whether the stream has ended at one of the two ends: nothing is sent on it any more.
    pub(super) is_ended: bool,
    /// Whether the peer has been told that it has ended here.
    pub(super) has_told_end: bool,
    /// Whether a send waits for a counter of the peer.
    pub(super) wants_word: bool,
    /// Whether the peer waits for the counters of this stream.
    pub(super) must_tell: bool,
    /// Operation of the peer that differs from ours, once a grant has shown it.
    pub(super) difference: Option<Difference>,
}

/// Difference between the operations of two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Difference {
    /// Digests of the operations.
    Digest { expected: u64, found: u64 },
    /// Lengths of the message in bytes.
    Length { expected: u64, found: u64 },
}

impl From<Difference> for TransportError {
    fn from(difference: Difference) -> TransportError {
        match difference {
            Difference::Digest { expected, found } => TransportError::Mismatch { expected, found },
            Difference::Length { expected, found } => TransportError::Length { expected, found },
        }
    }
}

impl Stream {
    pub(super) fn new(number: u32, granted: Granted) -> Stream {
        Stream {
            number,
            send: SendStream::new(),
            recv: RecvStream::new(),
            counters: Counters::default(),
            granted,
            is_ended: false,
            has_told_end: false,
            wants_word: false,
            must_tell: false,
            difference: None,
        }
    }

    /// Number of the stream, equal at both ends.
    #[inline]
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Number of the pieces that were granted and have arrived.
    #[inline]
    pub(super) fn done(&self) -> u32 {
        self.granted.recv.done()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Protocol;

    fn fragment(state: &SendState, stream: &SendStream, total: usize, len: u16) -> Fragment {
        let header = Header { len, ..stream.fragment(state, total, 0) };
        Fragment::new(&header, Bytes::Heap(Box::default()))
    }

    #[test]
    fn fragments_are_matched_in_order_with_operation_and_length() {
        let stream = SendStream::new();
        let mut send = SendState::new(7, Protocol::Copy);
        let mut recv = RecvState::new(7, 5000);
        assert!(fragment(&send, &stream, 5000, 4032).is_next(&recv, 0).expect("ours"));
        assert!(!fragment(&send, &stream, 5000, 4032).is_next(&recv, 1).expect("of another message"));
        send.staged = 4032;
        let second = fragment(&send, &stream, 5000, 968);
        assert!(!second.is_next(&recv, 0).expect("not yet"));
        recv.received = 4032;
        assert!(second.is_next(&recv, 0).expect("ours"));
        assert!(!fragment(&send, &stream, 5000, 969).is_next(&recv, 0).expect("too long"));
        assert!(!fragment(&send, &stream, 5000, 0).is_next(&recv, 0).expect("no progress"));
        let other = |digest, len| RecvState { received: 4032, ..RecvState::new(digest, len) };
        assert!(matches!(second.is_next(&other(8, 5000), 0), Err(TransportError::Mismatch { found: 7, .. })));
        assert!(matches!(
            second.is_next(&other(7, 4999), 0),
            Err(TransportError::Length { found: 5000, .. })
        ));
    }

    #[test]
    fn a_sender_stops_without_credit_and_goes_on_as_messages_are_matched() {
        let (mut send, mut recv) = (SendStream::new(), RecvStream::new());
        let state = SendState::new(1, Protocol::Copy);
        for number in 0..CREDITS {
            assert!(send.has_credit());
            assert!(recv.push(fragment(&state, &send, 8, 8)));
            assert_eq!(send.fragment_sent(), number);
        }
        assert!(!send.has_credit() && !send.is_matched(0));
        recv.pop();
        assert!(!recv.owes_limit() && recv.has_untold_limit());
        (1..CREDITS / 2).for_each(|_| drop(recv.pop()));
        assert!(recv.owes_limit());
        recv.limit_told();
        send.raise_limit(recv.limit());
        send.raise_limit(CREDITS);
        assert!(send.has_credit() && send.is_matched(CREDITS / 2 - 1) && !send.is_matched(CREDITS / 2));
    }

    #[test]
    fn a_fragment_without_credit_is_noticed() {
        let (send, mut recv) = (SendStream::new(), RecvStream::new());
        let state = SendState::new(1, Protocol::Copy);
        let pushed: Vec<bool> = (0..=CREDITS).map(|_| recv.push(fragment(&state, &send, 8, 8))).collect();
        assert_eq!(pushed.iter().filter(|had_credit| !**had_credit).count(), 1);
    }
}
