//! Pieces on their way from a peer.
//!
//! The runtime announces a bulk message with the memory that it goes to. Its pieces are received right there,
//! or, where that memory is not registered or the bytes are combined with others, in staging places, from
//! which they are handed over in place.
//!
//! Invariant: pieces are handed over in order and once. No receive is posted for a piece that was handed
//! over.
//!
//! This module is pure: time is passed in.

use crate::{
    RecvState,
    driver::verbs::{
        rail::Posted,
        staging::{ArrivedPiece, RecvStages},
    },
};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Messages that can be announced ahead.
const ANNOUNCED: usize = 64;
/// Time after which the sender is asked about a piece, on unreliable connections.
const ASK_AFTER: Duration = Duration::from_millis(2);
/// Replies that a piece was sent after which a piece that has not come is lost.
const LOST_AFTER: u8 = 10;
/// In [`RecvState`]: the announced message travels in slots.
const RELAYED: u64 = 1 << 32;

/// A message that is expected.
#[derive(Clone, Copy, Debug, Hash)]
struct Message {
    stream: usize,
    /// Number among the bulk messages of its stream.
    number: u32,
    total: usize,
    /// Bytes that are divided into pieces.
    divided: usize,
    /// Offset in the slab; staging places when there is none.
    destination: Option<usize>,
}

/// A piece that is expected, or has been received and not been handed over.
#[derive(Clone, Copy, Debug, Hash)]
pub(in crate::driver::verbs) struct RecvPiece {
    /// Number of its message, among all that were announced.
    message: u32,
    /// Offset in its message.
    pub(in crate::driver::verbs) offset: usize,
    pub(in crate::driver::verbs) len: usize,
    pub(in crate::driver::verbs) at: usize,
    pub(in crate::driver::verbs) is_staged: bool,
    /// Whether its bytes have come in the present epoch.
    pub(in crate::driver::verbs) is_here: bool,
    /// Whether it is complete.
    has_arrived: bool,
}

/// The next piece whose receives must be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::driver::verbs) struct Unposted {
    pub(in crate::driver::verbs) number: u32,
    pub(in crate::driver::verbs) at: usize,
    pub(in crate::driver::verbs) len: usize,
    /// Its receives that are posted already.
    pub(in crate::driver::verbs) already: Posted,
}

/// The incoming direction.
#[derive(Clone, Debug, Hash)]
pub(in crate::driver::verbs) struct PlacedRecv {
    /// Messages that are not handed over, and the number of the first.
    messages: VecDeque<Message>,
    first_message: u32,
    /// Pieces that are not handed over, and the number of the first.
    pieces: VecDeque<RecvPiece>,
    first_piece: u32,
    /// All pieces before this one have arrived.
    done: u32,
    told_done: u32,
    /// Pieces that have arrived of which the peer need not be told at once.
    untold: u32,
    /// Number of the next piece whose receives are to be posted in this epoch, and its receives that are
    /// posted.
    next: u32,
    posted: Posted,
    stages: RecvStages,
    /// The piece that is waited for, the start of the wait, and the sender's replies that it was sent.
    waiting: Option<(u32, Instant, u8)>,
    /// Receives that the device takes at a time, once it has refused one.
    limit: usize,
}

impl PlacedRecv {
    /// The sender has at most `window` pieces in flight. So it must be told of half of them at the latest.
    pub(super) fn new(stages: RecvStages, window: usize) -> PlacedRecv {
        PlacedRecv {
            messages: VecDeque::with_capacity(ANNOUNCED),
            first_message: 0,
            pieces: VecDeque::with_capacity(64),
            first_piece: 0,
            done: 0,
            told_done: 0,
            untold: (window as u32 / 2).clamp(1, 4),
            next: 0,
            posted: Posted::None,
            stages,
            waiting: None,
            limit: usize::MAX,
        }
    }

    /// Number of the first piece that has not arrived.
    #[inline]
    pub(in crate::driver::verbs) fn done(&self) -> u32 {
        self.done
    }

    /// Whether the peer should be told of the pieces that have arrived.
    #[inline]
    pub(in crate::driver::verbs) fn owes_done(&self) -> bool {
        let untold = self.done.wrapping_sub(self.told_done);
        untold >= self.untold || untold > 0 && self.done == self.end()
    }

    /// Whether the peer does not know of all pieces that have arrived.
    pub(in crate::driver::verbs) fn has_untold_done(&self) -> bool {
        self.done != self.told_done
    }

    #[inline]
    pub(in crate::driver::verbs) fn done_told(&mut self) {
        self.told_done = self.done;
    }

    /// Whether no message is expected.
    pub(in crate::driver::verbs) fn is_idle(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whether no further message can be announced now.
    pub(in crate::driver::verbs) fn is_full(&self) -> bool {
        self.messages.len() == ANNOUNCED
    }

    /// Adds a message of a stream, which goes to registered memory at the offset `destination`, if that is
    /// given.
    pub(in crate::driver::verbs) fn announce(
        &mut self,
        stream: usize,
        number: u32,
        total: usize,
        destination: Option<usize>,
    ) {
        self.messages.push_back(Message { stream, number, total, divided: 0, destination });
    }

    fn end(&self) -> u32 {
        self.first_piece.wrapping_add(self.pieces.len() as u32)
    }

    fn piece_mut(&mut self, number: u32) -> Option<&mut RecvPiece> {
        self.pieces.get_mut(number.wrapping_sub(self.first_piece) as usize)
    }

    /// A piece that is expected, or has arrived and not been handed over.
    pub(in crate::driver::verbs) fn piece(&self, number: u32) -> Option<RecvPiece> {
        self.pieces.get(number.wrapping_sub(self.first_piece) as usize).copied()
    }

    /// Stream of a piece that is expected.
    pub(in crate::driver::verbs) fn stream_of(&self, number: u32) -> Option<usize> {
        let message = self.piece(number)?.message.wrapping_sub(self.first_message);
        Some(self.messages.get(message as usize)?.stream)
    }

    /// Ends an epoch: all of its receives are gone.
    pub(in crate::driver::verbs) fn stop(&mut self) {
        self.next = self.done;
        self.posted = Posted::None;
        self.waiting = None;
        // All pieces from the first missing one on are sent again. None of them counts as received until it
        // has come again, so that no piece is written after it was handed over.
        let first = self.done.wrapping_sub(self.first_piece) as usize;
        for piece in self.pieces.iter_mut().skip(first) {
            (piece.is_here, piece.has_arrived) = (false, false);
        }
    }

    /// Drops all messages if they are of this stream, which owns the queues. The queues must be made new: the
    /// device may still write to the memory of the messages.
    pub(in crate::driver::verbs) fn forget(&mut self, stream: usize) {
        if self.messages.front().is_none_or(|message| message.stream != stream) {
            return;
        }
        self.first_message = self.first_message.wrapping_add(self.messages.len() as u32);
        self.messages.clear();
        self.pieces.clear();
        self.first_piece = self.done;
        self.next = self.done;
        self.posted = Posted::None;
        self.waiting = None;
    }

    fn outstanding(&self) -> usize {
        self.next.wrapping_sub(self.done) as usize
    }

    /// The next piece whose receives must be posted, with at most `window` pieces outstanding. `piece_len`
    /// returns the bytes of the pieces of a message from its length.
    pub(in crate::driver::verbs) fn unposted(
        &mut self,
        window: usize,
        piece_len: impl Fn(usize) -> usize,
    ) -> Option<Unposted> {
        let is_full = self.outstanding() >= window.min(self.limit);
        if is_full || self.next == self.end() && !self.divide(piece_len) {
            return None;
        }
        let (number, already) = (self.next, self.posted);
        self.piece(number).map(|piece| Unposted { number, at: piece.at, len: piece.len, already })
    }

    /// Notes that both receives of the next piece are posted.
    pub(in crate::driver::verbs) fn posted_both(&mut self) {
        self.next = self.next.wrapping_add(1);
        self.posted = Posted::None;
    }

    /// Notes that the device has refused a receive of the next piece, and takes no more at a time from now
    /// on. Returns false if it takes none at all.
    pub(in crate::driver::verbs) fn refused(&mut self, posted: Posted) -> bool {
        self.posted = posted.max(self.posted);
        let outstanding = self.outstanding();
        if outstanding > 0 {
            self.limit = outstanding;
        }
        outstanding > 0
    }

    /// Divides the next piece off the announced messages; false when there is none, or no place for it.
    fn divide(&mut self, piece_len: impl Fn(usize) -> usize) -> bool {
        let open = self.messages.iter().position(|message| message.divided < message.total);
        let Some(index) = open else { return false };
        let number = self.end();
        let message = &mut self.messages[index];
        let offset = message.divided;
        let place = match message.destination {
            Some(at) => Some(at + offset),
            None => self.stages.place(number, self.first_piece),
        };
        let Some(at) = place else { return false };
        let len = (message.total - offset).min(piece_len(message.total));
        message.divided += len;
        self.pieces.push_back(RecvPiece {
            message: self.first_message.wrapping_add(index as u32),
            offset,
            len,
            at,
            is_staged: message.destination.is_none(),
            is_here: false,
            has_arrived: false,
        });
        true
    }

    /// Notes that a piece of that many bytes has come; false if it is not the one that was expected.
    pub(in crate::driver::verbs) fn came(&mut self, number: u32, bytes: u32) -> bool {
        match self.piece_mut(number) {
            Some(piece) if piece.len == bytes as usize => {
                piece.is_here = true;
                true
            }
            _ => false,
        }
    }

    /// Notes that a piece is complete.
    pub(in crate::driver::verbs) fn complete(&mut self, number: u32) {
        if let Some(piece) = self.piece_mut(number) {
            piece.has_arrived = true;
        }
        while self.piece_mut(self.done).is_some_and(|piece| piece.has_arrived) {
            self.done = self.done.wrapping_add(1);
        }
    }

    /// The sender has replied that it has sent a piece in this epoch; returns whether the piece is lost. The
    /// reply went by another queue than the piece, so a few replies may overtake it.
    pub(in crate::driver::verbs) fn was_sent(&mut self, number: u32) -> bool {
        let done = self.done;
        match &mut self.waiting {
            Some((piece, _, replies)) if *piece == number && done == number => {
                *replies += 1;
                *replies >= LOST_AFTER
            }
            _ => false,
        }
    }

    /// The piece that the sender must be asked about now, if one has kept this rank waiting. `is_up` tells
    /// whether pieces can travel.
    pub(in crate::driver::verbs) fn overdue(&mut self, is_up: bool, now: Instant) -> Option<u32> {
        if !is_up || self.done == self.next {
            self.waiting = None;
            return None;
        }
        match &mut self.waiting {
            Some((piece, since, _)) if *piece == self.done => {
                if now.saturating_duration_since(*since) < ASK_AFTER {
                    return None;
                }
                *since = now;
                Some(self.done)
            }
            waiting => {
                *waiting = Some((self.done, now, 0));
                None
            }
        }
    }

    /// Whether the message that is first in line is this one.
    pub(in crate::driver::verbs) fn is_first(&self, stream: usize, state: &RecvState) -> bool {
        self.messages
            .front()
            .is_some_and(|message| message.stream == stream && state.announced == Some(message.number.into()))
    }

    /// Takes out the next piece of the first message, if it has arrived.
    pub(in crate::driver::verbs) fn pop(&mut self) -> Option<ArrivedPiece> {
        let first = self.first_message;
        let piece = self.pieces.pop_front_if(|piece| piece.has_arrived && piece.message == first)?;
        self.first_piece = self.first_piece.wrapping_add(1);
        let RecvPiece { offset, len, at, is_staged, .. } = piece;
        Some(ArrivedPiece { offset, len, at, is_staged })
    }

    /// Takes out the first message, all of whose pieces have been handed over.
    pub(in crate::driver::verbs) fn end_message(&mut self) {
        self.messages.pop_front();
        self.first_message = self.first_message.wrapping_add(1);
    }
}

/// The value of [`RecvState::announced`] for a message that travels in slots.
pub(in crate::driver::verbs) fn relayed(number: u32) -> u64 {
    RELAYED | u64::from(number)
}

/// Whether an announced message travels in slots.
pub(in crate::driver::verbs) fn is_relayed(state: &RecvState) -> bool {
    state.announced.is_none_or(|announced| announced & RELAYED != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::verbs::staging::staging;

    const PIECE: usize = 100;

    fn post_all(recv: &mut PlacedRecv, window: usize) -> Vec<Unposted> {
        let next = || {
            let unposted = recv.unposted(window, |_| PIECE)?;
            recv.posted_both();
            Some(unposted)
        };
        std::iter::from_fn(next).collect()
    }

    fn expecting(total: usize, destination: Option<usize>) -> PlacedRecv {
        let mut recv = PlacedRecv::new(staging(0, 8, PIECE).1, 8);
        recv.announce(0, 0, total, destination);
        recv
    }

    #[test]
    fn pieces_arrive_in_their_places_and_are_handed_over_in_order() {
        let mut recv = expecting(250, Some(5000));
        let posted = post_all(&mut recv, 8);
        assert_eq!(
            posted.iter().map(|p| (p.at, p.len)).collect::<Vec<_>>(),
            [(5000, 100), (5100, 100), (5200, 50)]
        );
        assert!(recv.came(1, 100) && !recv.came(2, 100) && !recv.came(3, 50));
        recv.complete(1);
        assert!(recv.pop().is_none() && recv.done() == 0);
        recv.complete(0);
        assert_eq!((recv.done(), recv.has_untold_done(), recv.owes_done()), (2, true, false));
        recv.complete(2);
        assert!(recv.owes_done());
        assert_eq!(
            std::iter::from_fn(|| recv.pop()).map(|piece| piece.offset).collect::<Vec<_>>(),
            [0, 100, 200]
        );
        recv.end_message();
        assert!(recv.is_idle());
    }

    /// With a window of less than four, each pair of pieces took milliseconds, until the sender asked.
    #[test]
    fn a_sender_is_told_of_arrivals_before_its_window_is_full() {
        for window in 1..=16 {
            let mut recv = PlacedRecv::new(staging(0, 8, PIECE).1, window);
            recv.announce(0, 0, 40 * PIECE, Some(0));
            let first = post_all(&mut recv, window);
            assert_eq!(first.len(), window);
            let arrived = first.iter().position(|piece| {
                recv.complete(piece.number);
                recv.owes_done()
            });
            assert!(arrived.is_some_and(|last| last < window.div_ceil(2)), "a window of {window}");
        }
    }

    #[test]
    fn staged_pieces_wait_for_a_free_place() {
        let mut recv = expecting(20 * PIECE, None);
        assert_eq!(post_all(&mut recv, 16).len(), 8);
        recv.complete(0);
        assert!(post_all(&mut recv, 16).is_empty());
        recv.pop().expect("the first piece");
        assert_eq!(post_all(&mut recv, 16).len(), 1);
    }

    #[test]
    fn a_refused_receive_bounds_the_pieces_outstanding() {
        let mut recv = expecting(9 * PIECE, Some(0));
        assert!(!recv.refused(Posted::None), "the device takes nothing");
        for _ in 0..2 {
            recv.unposted(8, |_| PIECE).expect("a piece");
            recv.posted_both();
        }
        recv.unposted(8, |_| PIECE).expect("a piece");
        assert!(recv.refused(Posted::Piece));
        assert_eq!(recv.unposted(8, |_| PIECE), None, "two at a time");
        recv.complete(0);
        let next = recv.unposted(8, |_| PIECE).expect("a piece");
        assert_eq!((next.number, next.already), (2, Posted::Piece));
    }

    #[test]
    fn a_new_epoch_expects_all_pieces_from_the_first_missing_one_on() {
        let mut recv = expecting(300, Some(0));
        post_all(&mut recv, 8);
        [0, 2].into_iter().for_each(|number| {
            assert!(recv.came(number, 100));
            recv.complete(number);
        });
        recv.stop();
        assert!(!recv.piece(2).expect("expected").is_here);
        assert_eq!(post_all(&mut recv, 8).iter().map(|p| p.number).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn a_piece_is_lost_that_was_sent_and_does_not_come() {
        let (mut recv, began) = (expecting(100, Some(0)), Instant::now());
        post_all(&mut recv, 8);
        assert_eq!(recv.overdue(true, began), None, "the wait begins");
        assert_eq!(recv.overdue(true, began + ASK_AFTER), Some(0));
        assert_eq!(recv.overdue(true, began + ASK_AFTER), None, "asked just now");
        assert!(!(1..LOST_AFTER).any(|_| recv.was_sent(0)) && recv.was_sent(0));
        assert!(!recv.was_sent(1), "a reply about another piece");
        assert_eq!(recv.overdue(false, began + 2 * ASK_AFTER), None);
        assert!(!recv.was_sent(0), "the wait has ended");
    }
}
