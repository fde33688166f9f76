//! A link over two rings, one per direction, in arenas that both ends have mapped.
//!
//! The drivers `local`, `shm`, `mixed` and `strict` use it. They differ in how ranks get the arenas, and in
//! whether a link can pull memory outside of the arenas.
//!
//! Bytes that the link reads in place or pulls count as received only if the peer has not revoked its memory
//! by the end of the read. An aborted link revokes the memory of its rank.
//!
//! # Safety
//! The rings lie in arenas that the link keeps alive; see the constructor.

mod brief;
mod repeats;

use super::pull::Puller;
use crate::{
    BriefMessage, Capabilities, Counters, Link, Protocol, RecvProgress, RecvState, SendProgress, SendState,
    Sink, TransportError,
    memory::{Arena, Span},
    ring::{
        Buffers, Content, INLINE_BYTES, LONG_BYTES, Publish, ReplyTimer, RingLayout, RingReceiver,
        RingSender, TimedRead, Way, end_speculation,
    },
};
use brief::{BRIEF_BYTES, Found};
use repeats::Repeats;

/// Maximum bytes moved in one poll, so that a long message does not delay others.
const POLL_BYTES: usize = 256 * 1024;
/// Maximum bytes read by one system call. On two cores of an Intel Xeon `all_gather` and `all_to_all` of 1 to
/// 16 MiB take 0.84 to 0.97 of their time with calls of 512 KiB instead of 256, and no less with longer ones.
const PULLED_BYTES: usize = 512 << 10;

/// Pieces of a message that the receiver waits for, at least: it reads one while the next one is stored.
///
/// Two cores of an AMD EPYC with a common cache, half a round trip of `send` and `recv` in us, in one piece
/// and in these: 1.32 and 1.10 for 16 KiB, 2.90 and 2.70 for 64 KiB. Where both ranks send, all pieces are
/// stored before one is read, and smaller ones cost 5 to 15 %.
const AWAITED_PIECES: usize = 4;
/// Smallest of these pieces, but for a message of two: a cell for each takes some 50 ns.
const LEAST_PIECE_BYTES: usize = 4096;
/// Smallest of these pieces in a buffer that changes hands. Between two cores of a Zen 4 without a common
/// cache 16 KiB take 2.3 us in pieces of 4 KiB, 2.2 in two; 4 KiB take 0.99 in two pieces, 0.86 in one.
const LEAST_HANDED_BYTES: usize = 8192;
/// Length of pieces from which on a message has more of them, up to twice as many: half a round trip of 256
/// KiB takes 1.02 to 1.06 times as long in four pieces as in eight.
const ENOUGH_BYTES: usize = 32 << 10;
/// Shortest message in two pieces, where pieces are stored in a short time.
///
/// Two cores of a Zen 4, 4 KiB in one piece and in two: with a common cache 0.57 and 0.43 us for half a round
/// trip, 0.63 and 0.52 for a `broadcast`; without one the two pieces took 1.7 times as long. 8 KiB in four
/// pieces took 1.1 times as long as in two, 2 KiB in two pieces 1.2 times as long as in one.
const LEAST_IN_PIECES: usize = 4096;

/// Longest message in buffers that change hands. A longer one is likely to come from memory, and puts the
/// lines of the buffers out of a core's cache: from 2 MiB on calls of two ranks on a Zen 4 took 0.92 to 1.1
/// times as long with buffers as without, and from 256 B to 256 KiB 0.63 to 0.97.
const HANDED_BYTES: usize = 512 << 10;

/// Longest piece during whose read the next cell is fetched: a longer one takes far more time than the cell,
/// and the sender, which has not filled it yet, would have to take it back.
const SHORT_PIECE_BYTES: usize = 16 * 1024;

/// Returns the bytes of the pieces of a message that its receiver waits for: `least` to `most`, which is
/// whole cache lines.
fn awaited_piece_bytes(total: usize, least: usize, most: usize) -> usize {
    let quarter = (total / AWAITED_PIECES).min(ENOUGH_BYTES);
    let piece = quarter.max(total / (2 * AWAITED_PIECES));
    piece.clamp(least.min(most), most).next_multiple_of(RingLayout::LINE)
}

/// A link over two rings.
#[derive(Debug)]
pub(super) struct RingLink {
    capabilities: Capabilities,
    counters: Counters,
    sender: RingSender,
    receiver: RingReceiver,
    buffers: Buffers,
    replies: ReplyTimer,
    /// Bytes of the latest message that was staged, or sent in cells.
    sent_bytes: usize,
    /// Bytes of the longest brief message.
    brief_bytes: usize,
    /// The brief message that was found in one piece, and has not ended.
    found: Option<Found>,
    /// Arena of this rank, which holds its registered memory and its receiving rings.
    ours: Arena,
    /// Arena of the peer, from which its registered memory is read.
    theirs: Arena,
    peer: u32,
    /// Reader of the peer's memory outside of the arena, if the system allows it.
    puller: Option<Puller>,
    /// Messages that were sent, to find out which are sent again.
    repeats: Repeats,
}

impl RingLink {
    /// Returns a link between `rank` with arena `ours` and `peer` with arena `theirs`.
    ///
    /// Each end must make exactly one link per (pair, lane).
    pub(super) fn new(
        driver: &'static str,
        (rank, ours): (u32, &Arena),
        (peer, theirs): (u32, &Arena),
        lane: u8,
        puller: Option<Puller>,
    ) -> RingLink {
        let layout = ours.layout().ring;
        // SAFETY: the link keeps the arenas alive, and the rings with them. `Arena::ring` checks the offsets,
        // which are aligned to pages. The drivers make one link per (pair, lane), so there is one sender and
        // one receiver per ring.
        let (sender, receiver, buffers) = unsafe {
            let (sends, receives) = (theirs.ring(rank, lane), ours.ring(peer, lane));
            (
                RingSender::new(sends, receives, layout),
                RingReceiver::new(receives, sends, layout),
                Buffers::new(sends, receives, layout),
            )
        };
        RingLink {
            capabilities: Capabilities {
                driver,
                inline_bytes: LONG_BYTES,
                piece_bytes: layout.piece_bytes,
                direct: true,
                pull: puller.is_some(),
                announced_bytes: None,
                eager_bytes: 16 << 10,
                packed_bytes: 0,
                coarse_prefixes: false,
            },
            counters: Counters::default(),
            sender,
            receiver,
            buffers,
            replies: ReplyTimer::here(),
            sent_bytes: 0,
            brief_bytes: BRIEF_BYTES.min(layout.piece_bytes).min(layout.buffer_bytes()),
            found: None,
            ours: ours.clone(),
            theirs: theirs.clone(),
            peer,
            puller,
            repeats: Repeats::default(),
        }
    }

    /// Stages whole pieces of the first `ready` bytes, as far as the ring has room.
    #[inline]
    fn send_copy(
        &mut self,
        state: &mut SendState,
        src: Span<'_>,
        ready: usize,
    ) -> Result<SendProgress, TransportError> {
        let total = src.len();
        self.sender.take_swap(&self.receiver);
        if total <= INLINE_BYTES {
            let sent = self.sender.send_inline(state.digest, src)?;
            return Ok(if sent { self.complete_copy(total) } else { SendProgress::Idle });
        }
        if total <= self.capabilities.inline_bytes {
            let sent = self.sender.send_long(state.digest, src)?;
            return Ok(if sent { self.complete_copy(total) } else { SendProgress::Idle });
        }
        let before = state.staged;
        while state.staged < total {
            let is_handed = total <= HANDED_BYTES && self.buffers.has_one();
            let piece_bytes = self.piece_bytes(state, total, is_handed);
            let piece = src.sub(state.staged, piece_bytes.min(total - state.staged));
            if state.staged + piece.len() > ready {
                break;
            }
            let is_sent = if is_handed {
                self.sender.hand_over(state.digest, total, piece, &mut self.buffers)?
            } else {
                self.sender.send_piece(state.digest, total, piece)?
            };
            if !is_sent {
                break;
            }
            state.staged += piece.len();
            if state.staged - before >= POLL_BYTES {
                break;
            }
        }
        Ok(match state.staged {
            staged if staged == total => self.complete_copy(total),
            staged if staged > before => SendProgress::Advanced,
            _ => SendProgress::Idle,
        })
    }

    /// Returns the bytes of the next piece of a message of `total` bytes, in a buffer that changes hands or
    /// in the staging area.
    #[inline]
    fn piece_bytes(&self, state: &SendState, total: usize, is_handed: bool) -> usize {
        let layout = self.ours.layout().ring;
        let most = if is_handed { layout.buffer_bytes() } else { layout.piece_bytes };
        if !state.is_awaited {
            return most;
        }
        let may_halve = (LEAST_IN_PIECES..2 * LEAST_PIECE_BYTES).contains(&total);
        let least = match is_handed {
            true => LEAST_HANDED_BYTES,
            false if may_halve && self.sender.stores_short_pieces() => total.div_ceil(2),
            false => LEAST_PIECE_BYTES,
        };
        awaited_piece_bytes(total, least, most)
    }

    fn complete_copy(&mut self, total: usize) -> SendProgress {
        self.counters.sent_messages += 1;
        self.counters.copied_bytes += total as u64;
        self.sent_bytes = total;
        self.replies.sent();
        SendProgress::Complete
    }

    /// Compares the length of a message with the expected one.
    fn check_len(&self, state: &RecvState, found: usize) -> Result<(), TransportError> {
        if found == state.len {
            return Ok(());
        }
        Err(TransportError::Length { expected: state.len as u64, found: found as u64 })
    }

    fn advance(&mut self, state: &mut RecvState, bytes: usize) -> RecvProgress {
        state.received += bytes;
        self.counters.moved_bytes += bytes as u64;
        if state.received < state.len {
            return RecvProgress::Advanced;
        }
        self.counters.received_messages += 1;
        RecvProgress::Complete
    }

    /// Advances a message that was read from the peer's memory, unless the peer may have changed the bytes.
    fn advance_in_place(
        &mut self,
        state: &mut RecvState,
        bytes: usize,
    ) -> Result<RecvProgress, TransportError> {
        if self.theirs.is_revoked() {
            return Err(TransportError::Revoked { peer: self.peer });
        }
        let progress = self.advance(state, bytes);
        if progress == RecvProgress::Complete {
            self.receiver.consume(None, Publish::Now);
        }
        Ok(progress)
    }

    /// Passes bytes of the link's own memory to the sink, and counts the copy.
    fn deliver(counters: &mut Counters, sink: &mut dyn Sink, offset: usize, data: Span<'_>) {
        if sink.destination().is_some() {
            counters.copied_bytes += data.len() as u64;
        }
        sink.write(offset, data);
    }

    /// Receives a message in both lines of a cell, if they are there.
    #[inline]
    fn recv_long(&mut self, state: &mut RecvState, sink: &mut dyn Sink) -> RecvProgress {
        if !self.receiver.has_long(state.len) || self.receiver.digest() != state.digest {
            return RecvProgress::Idle;
        }
        let counters = &mut self.counters;
        self.receiver.read_long(state.len, |before, part| Self::deliver(counters, sink, before, part));
        self.receiver.consume(None, Publish::Lazily);
        self.advance(state, state.len)
    }

    fn recv_staged(
        &mut self,
        state: &mut RecvState,
        sink: &mut dyn Sink,
        (position, len): (u64, usize),
        timed: Option<Way>,
    ) -> Result<RecvProgress, TransportError> {
        if len > state.len - state.received {
            return Err(TransportError::Corrupt("length of a staged piece"));
        }
        if len <= SHORT_PIECE_BYTES && len < state.len - state.received {
            self.receiver.prefetch_following();
        }
        let piece = self.receiver.piece(position, len)?;
        let read = timed.map(TimedRead::begin);
        Self::deliver(&mut self.counters, sink, state.received, piece);
        if let Some(read) = read {
            self.receiver.took(read, len);
        }
        let end = position + len.next_multiple_of(64) as u64;
        self.receiver.consume(Some(end), Publish::Lazily);
        Ok(self.advance(state, len))
    }

    fn recv_handed(
        &mut self,
        state: &mut RecvState,
        sink: &mut dyn Sink,
        (buffer, len): (u64, usize),
    ) -> Result<RecvProgress, TransportError> {
        if len > state.len - state.received {
            return Err(TransportError::Corrupt("length of a handed piece"));
        }
        if len <= SHORT_PIECE_BYTES && len < state.len - state.received {
            self.receiver.prefetch_following();
        }
        let (buffer, piece) = self.buffers.piece(buffer, len)?;
        Self::deliver(&mut self.counters, sink, state.received, piece);
        self.buffers.take(buffer);
        self.receiver.consume(None, Publish::Lazily);
        Ok(self.advance(state, len))
    }

    fn recv_direct(
        &mut self,
        state: &mut RecvState,
        sink: &mut dyn Sink,
        offset: u64,
    ) -> Result<RecvProgress, TransportError> {
        let message = self.theirs.slab_span(offset, state.len)?;
        let len = POLL_BYTES.min(state.len - state.received);
        sink.write(state.received, message.sub(state.received, len));
        self.advance_in_place(state, len)
    }

    fn recv_pull(
        &mut self,
        state: &mut RecvState,
        sink: &mut dyn Sink,
        address: u64,
    ) -> Result<RecvProgress, TransportError> {
        let Some(puller) = &mut self.puller else {
            return Err(TransportError::Corrupt("a pull message on a link that cannot pull"));
        };
        let len = PULLED_BYTES.min(state.len - state.received);
        let from = address.wrapping_add(state.received as u64);
        let taken = if let Some(destination) = sink.destination() {
            puller.read(from, destination.sub(state.received, len))?;
            len
        } else {
            let piece = puller.read_bounced(from, len)?;
            self.counters.copied_bytes += piece.len() as u64;
            sink.write(state.received, piece);
            piece.len()
        };
        self.advance_in_place(state, taken)
    }
}

impl Link for RingLink {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    #[inline]
    fn poll_send(&mut self, state: &mut SendState, src: Span<'_>) -> Result<SendProgress, TransportError> {
        if let Some(cell) = state.awaits {
            let done = self.sender.is_consumed(cell)?;
            return Ok(if done { SendProgress::Complete } else { SendProgress::Posted });
        }
        self.sender.take_swap(&self.receiver);
        if state.protocol == Protocol::PullUnchanged {
            state.protocol = if self.repeats.has(src) { Protocol::Pull } else { Protocol::Copy };
        }
        let posted = match state.protocol {
            Protocol::Copy => return self.send_copy(state, src, src.len()),
            Protocol::Direct => match self.ours.locate(src.as_ptr(), src.len()) {
                Some(offset) => self.sender.send_direct(state.digest, src.len(), offset)?,
                None => return self.send_copy(state, src, src.len()),
            },
            Protocol::Pull | Protocol::PullUnchanged => {
                self.sender.send_pull(state.digest, src.len(), src.as_ptr() as u64)?
            }
        };
        let Some(cell) = posted else { return Ok(SendProgress::Idle) };
        state.awaits = Some(cell);
        self.counters.sent_messages += 1;
        Ok(SendProgress::Posted)
    }

    /// Sends staged messages in parts; waits for the whole message if it is read in place or pulled.
    fn poll_send_prefix(
        &mut self,
        state: &mut SendState,
        src: Span<'_>,
        ready: usize,
    ) -> Result<SendProgress, TransportError> {
        if ready >= src.len() {
            self.poll_send(state, src)
        } else if state.protocol == Protocol::Copy && src.len() > self.capabilities.inline_bytes {
            self.send_copy(state, src, ready)
        } else {
            Ok(SendProgress::Idle)
        }
    }

    #[inline]
    fn poll_recv(
        &mut self,
        state: &mut RecvState,
        sink: &mut dyn Sink,
    ) -> Result<RecvProgress, TransportError> {
        let progress = self.poll_ring(state, sink)?;
        self.replies.polled(progress != RecvProgress::Idle);
        Ok(progress)
    }

    #[inline]
    fn send_brief(&mut self, digest: u64, src: Span<'_>, is_awaited: bool) -> bool {
        let len = src.len();
        self.sender.take_swap(&self.receiver);
        let sent = match len {
            ..=INLINE_BYTES => self.sender.send_inline(digest, src),
            _ if len <= self.capabilities.inline_bytes => self.sender.send_long(digest, src),
            // Longer ones that are awaited have several pieces.
            _ if len > self.brief_bytes || is_awaited && len >= LEAST_IN_PIECES => return false,
            _ if self.buffers.has_one() => self.sender.hand_over(digest, len, src, &mut self.buffers),
            _ => self.sender.send_piece(digest, len, src),
        };
        // The same error comes again when the message is polled.
        let is_sent = matches!(sent, Ok(true));
        if is_sent {
            self.complete_copy(len);
        }
        is_sent
    }

    #[inline]
    fn poll_brief(&mut self, digest: u64, len: usize, polls: u32) -> BriefMessage<'_> {
        if len > self.brief_bytes {
            return BriefMessage::Another;
        }
        if len > self.capabilities.inline_bytes {
            return self.poll_piece(digest, len, polls);
        }
        let mut polled = 0;
        loop {
            let message = self.receiver.brief(digest, len);
            if !matches!(message, BriefMessage::NotYet) || polled == polls {
                return message;
            }
            if polled == 0 {
                self.replies.polled(false);
            }
            end_speculation();
            polled += 1;
        }
    }

    #[inline]
    fn end_brief(&mut self, len: usize, is_copied: bool, next_sent: Option<usize>) {
        self.counters.received_messages += 1;
        self.counters.moved_bytes += len as u64;
        self.counters.copied_bytes += if is_copied { len as u64 } else { 0 };
        if len <= self.capabilities.inline_bytes {
            self.receiver.consume(None, Publish::Lazily);
        } else {
            self.end_piece();
        }
        self.replies.polled(true);
        if let Some(next_sent) = next_sent {
            self.sender.fetch_next(next_sent, &self.receiver, &self.buffers);
        }
    }

    #[inline]
    fn await_reply(&mut self, len: usize) {
        if len <= self.capabilities.inline_bytes {
            let fetch = || self.sender.fetch_next(self.sent_bytes, &self.receiver, &self.buffers);
            self.replies.wait(len, fetch);
        } else {
            self.replies.wait_for_piece(len);
        }
    }

    #[inline]
    fn prepare_send(&mut self, len: usize) {
        self.sender.fetch_next(len, &self.receiver, &self.buffers);
    }

    fn peek_digest(&self) -> Option<u64> {
        self.receiver.head().map(|_| self.receiver.digest())
    }

    fn abort(&mut self) {
        self.ours.revoke();
    }
}

impl RingLink {
    /// Receives what has arrived of the expected message.
    #[inline(always)]
    fn poll_ring(
        &mut self,
        state: &mut RecvState,
        sink: &mut dyn Sink,
    ) -> Result<RecvProgress, TransportError> {
        let is_long =
            state.len > INLINE_BYTES && state.len <= self.capabilities.inline_bytes && state.received == 0;
        if is_long && self.recv_long(state, sink) == RecvProgress::Complete {
            return Ok(RecvProgress::Complete);
        }
        let Some(head) = self.receiver.head() else { return Ok(RecvProgress::Idle) };
        let found = self.receiver.digest();
        if found != state.digest {
            return Err(TransportError::Mismatch { expected: state.digest, found });
        }
        match self.receiver.content(head)? {
            Content::Inline { len } => {
                self.check_len(state, len)?;
                if state.received != 0 {
                    return Err(TransportError::Corrupt("inline message within a message"));
                }
                let counters = &mut self.counters;
                self.receiver.read_inline(len, |payload| Self::deliver(counters, sink, 0, payload));
                self.receiver.consume(None, Publish::Lazily);
                Ok(self.advance(state, len))
            }
            Content::Long { len } => {
                self.check_len(state, len)?;
                // The rest of it is on its way.
                if is_long { Ok(RecvProgress::Idle) } else { Err(TransportError::Corrupt("a long message")) }
            }
            Content::Staged { total, position, len, timed } => {
                self.check_len(state, total)?;
                self.recv_staged(state, sink, (position, len), timed)
            }
            Content::Handed { total, buffer, len } => {
                self.check_len(state, total)?;
                self.recv_handed(state, sink, (buffer, len))
            }
            Content::Direct { total, offset } => {
                self.check_len(state, total)?;
                self.recv_direct(state, sink, offset)
            }
            Content::Pull { total, address } => {
                self.check_len(state, total)?;
                self.recv_pull(state, sink, address)
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_awaited_message_has_pieces_that_its_receiver_takes_while_others_are_stored() {
        const KIB: usize = 1 << 10;
        let pieces = |total: usize, least: usize, most: usize| {
            let piece = awaited_piece_bytes(total, least, most);
            assert!(piece.is_multiple_of(RingLayout::LINE) && piece <= most, "{piece} of {total}");
            total.div_ceil(piece)
        };
        let of = [2 * KIB, 4 * KIB, 8 * KIB, 16 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB];
        assert_eq!(of.map(|total| pieces(total, 4 * KIB, 32 * KIB)), [1, 1, 2, 4, 4, 4, 8, 16]);
        assert_eq!(of.map(|total| pieces(total, 8 * KIB, 64 * KIB)), [1, 1, 1, 2, 4, 4, 8, 8]);
        assert_eq!(pieces(4 * KIB + 4, 2 * KIB + 2, 32 * KIB), 2, "no third piece of a few bytes");
        assert_eq!(awaited_piece_bytes(8 * KIB, 4 * KIB, KIB), KIB, "a ring of short pieces");
    }
}
