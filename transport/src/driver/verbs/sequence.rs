//! Numbered messages: each arrives once and in order, over rails that lose, reorder or fall.
//!
//! The sending half keeps every message until it is acknowledged, and knows by which queue of which rail it
//! was last sent. The receiving half accepts messages in any order within a window and hands them out in
//! order. Queues of a rail keep their order, so a message is lost once a later one of the same queue has
//! arrived. Selective acknowledgements tell the sender which ones have. It repeats those that are lost, and
//! those that were sent by a rail that has fallen. After a timeout it repeats the last one of each route: the
//! acknowledgement of that one tells which of the others are lost. The peer may just not be running, and then
//! nothing is. This is the tail loss probe of RFC 8985, section 7. If that does not help, it repeats all.
//!
//! Invariants: at most [`WINDOW`] messages are unacknowledged; a message is freed once it is acknowledged and
//! not before; the receiving half hands out each number once.
//!
//! This module is pure: it posts nothing and reads no clock. The model checker in its tests explores all
//! orders of loss, delivery, repetition and a rail's fall for a few messages.

use super::wire::is_before;
use std::collections::VecDeque;

/// Messages that may be unacknowledged; a power of two.
pub(super) const WINDOW: u32 = 128;

/// The queue that a message was sent by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Route {
    pub(super) rail: u8,
    /// Number of the queue pair within the rail.
    pub(super) queue: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry<M> {
    message: M,
    /// Route and position among all transmissions, once it is sent.
    sent: Option<(Route, u64)>,
    /// Whether a selective acknowledgement named it.
    is_received: bool,
}

/// The sending half.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SendSequence<M> {
    /// Number of the oldest message that is not acknowledged.
    first: u32,
    entries: VecDeque<Entry<M>>,
    /// No message before this number is unsent.
    unsent_from: u32,
    transmissions: u64,
}

impl<M> SendSequence<M> {
    pub(super) fn new() -> SendSequence<M> {
        let entries = VecDeque::with_capacity(WINDOW as usize);
        SendSequence { first: 0, entries, unsent_from: 0, transmissions: 0 }
    }

    /// Number of unacknowledged messages.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a message, which is not sent yet.
    #[inline]
    pub(super) fn push(&mut self, message: M) -> u32 {
        debug_assert!(self.len() < WINDOW);
        let number = self.first.wrapping_add(self.len());
        // Without the branch that grows the queue, a core writes the entry where it belongs, and does not
        // copy it from its stack.
        if self.entries.len() == self.entries.capacity() {
            self.entries.reserve(WINDOW as usize);
        }
        self.entries.push_back(Entry { message, sent: None, is_received: false });
        number
    }

    /// Returns the oldest message that must be sent.
    #[inline]
    pub(super) fn unsent(&mut self) -> Option<(u32, &M)> {
        let mut index = self.unsent_from.wrapping_sub(self.first) as usize;
        while let Some(entry) = self.entries.get(index) {
            if entry.sent.is_none() && !entry.is_received {
                self.unsent_from = self.first.wrapping_add(index as u32);
                return Some((self.unsent_from, &self.entries[index].message));
            }
            index += 1;
        }
        self.unsent_from = self.first.wrapping_add(self.len());
        None
    }

    /// Whether a message may be unsent.
    #[inline]
    pub(super) fn may_have_unsent(&self) -> bool {
        self.unsent_from != self.first.wrapping_add(self.len())
    }

    /// Number of the message that was added last.
    #[inline]
    pub(super) fn last(&self) -> u32 {
        self.first.wrapping_add(self.len()).wrapping_sub(1)
    }

    /// Whether all messages up to this number are acknowledged.
    pub(super) fn is_acknowledged(&self, number: u32) -> bool {
        is_before(number, self.first)
    }

    /// Whether a message has been sent, or acknowledged.
    #[inline]
    pub(super) fn is_sent(&self, number: u32) -> bool {
        let entry = self.entries.get(number.wrapping_sub(self.first) as usize);
        is_before(number, self.first) || entry.is_none_or(|entry| entry.sent.is_some() || entry.is_received)
    }

    /// Returns a message that is not acknowledged.
    pub(super) fn message_mut(&mut self, number: u32) -> Option<&mut M> {
        let entry = self.entries.get_mut(number.wrapping_sub(self.first) as usize)?;
        Some(&mut entry.message)
    }

    /// Notes that a message has been sent; returns the message.
    #[inline]
    pub(super) fn sent(&mut self, number: u32, route: Route) -> Option<&mut M> {
        let index = number.wrapping_sub(self.first) as usize;
        let entry = self.entries.get_mut(index)?;
        self.transmissions += 1;
        entry.sent = Some((route, self.transmissions));
        if number == self.unsent_from {
            self.unsent_from = number.wrapping_add(1);
        }
        Some(&mut entry.message)
    }

    /// Frees the messages before `ack`; returns whether there were any. Ignores an `ack` of no message.
    #[inline]
    pub(super) fn acknowledge(&mut self, ack: u32, mut free: impl FnMut(M)) -> bool {
        let count = ack.wrapping_sub(self.first);
        if count == 0 || count > self.len() {
            return false;
        }
        for _ in 0..count {
            if let Some(entry) = self.entries.pop_front() {
                free(entry.message);
            }
        }
        self.first = ack;
        if is_before(self.unsent_from, ack) {
            self.unsent_from = ack;
        }
        true
    }

    /// Takes in selective acknowledgements of the messages after `ack`. Makes all messages unsent of which a
    /// later one by the same route has been received; returns their number.
    pub(super) fn lose(&mut self, ack: u32, received: [u64; 2]) -> usize {
        let ahead = ack.wrapping_sub(self.first);
        if ahead > self.len() {
            return 0;
        }
        let bits = u128::from(received[1]) << 64 | u128::from(received[0]);
        let mut latest: Vec<(Route, u64)> = Vec::new();
        for (index, entry) in self.entries.iter_mut().enumerate().skip(ahead as usize + 1) {
            let bit = index - ahead as usize - 1;
            entry.is_received |= bit < 128 && bits >> bit & 1 == 1;
            if let (true, Some((route, at))) = (entry.is_received, entry.sent) {
                note_latest(&mut latest, route, at);
            }
        }
        self.forget(|(route, at)| latest.iter().any(|(other, last)| *other == route && at < *last))
    }

    /// Makes all messages unsent that were last sent by a rail; returns their number.
    pub(super) fn forget_rail(&mut self, rail: u8) -> usize {
        self.forget(|(route, _)| route.rail == rail)
    }

    /// Makes the last unacknowledged message of each route unsent; returns their number.
    pub(super) fn forget_last(&mut self) -> usize {
        let mut latest: Vec<(Route, u64)> = Vec::new();
        for (route, at) in
            self.entries.iter().filter(|entry| !entry.is_received).filter_map(|entry| entry.sent)
        {
            note_latest(&mut latest, route, at);
        }
        self.forget(|sent| latest.contains(&sent))
    }

    /// Makes all unacknowledged messages unsent; returns their number.
    pub(super) fn forget_all(&mut self) -> usize {
        self.forget(|_| true)
    }

    fn forget(&mut self, is_lost: impl Fn((Route, u64)) -> bool) -> usize {
        let mut count = 0;
        for entry in self.entries.iter_mut().filter(|entry| !entry.is_received) {
            if entry.sent.is_some_and(&is_lost) {
                entry.sent = None;
                count += 1;
            }
        }
        if count > 0 {
            self.unsent_from = self.first;
        }
        count
    }
}

/// Notes a transmission in the list of the latest one of each route.
fn note_latest(latest: &mut Vec<(Route, u64)>, route: Route, at: u64) {
    match latest.iter_mut().find(|(other, _)| *other == route) {
        Some((_, last)) => *last = at.max(*last),
        None => latest.push((route, at)),
    }
}

/// Classification of a message that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acceptance {
    /// The message is new, and kept until it is handed out.
    New,
    /// The message has arrived before.
    Duplicate,
    /// The number is beyond the window that every sender keeps to.
    Invalid,
}

/// The receiving half.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RecvSequence<M> {
    /// Number of the next message to be handed out.
    expected: u32,
    /// Messages from `expected` on, as far as they have arrived.
    messages: VecDeque<Option<M>>,
    /// Number of messages that have arrived and are not handed out.
    count: usize,
}

impl<M> RecvSequence<M> {
    pub(super) fn new() -> RecvSequence<M> {
        RecvSequence { expected: 0, messages: VecDeque::with_capacity(WINDOW as usize), count: 0 }
    }

    /// Number of the next message to be handed out: all earlier ones have been.
    #[inline]
    pub(super) fn expected(&self) -> u32 {
        self.expected
    }

    /// Takes in the message of this number without keeping it, if it is the next one and none waits behind
    /// it. It counts as handed out. Returns false if it must be kept.
    #[inline]
    pub(super) fn pass(&mut self, number: u32) -> bool {
        let is_next = number == self.expected && self.messages.is_empty();
        self.expected = self.expected.wrapping_add(is_next.into());
        is_next
    }

    /// Takes in a message.
    #[inline]
    pub(super) fn accept(&mut self, number: u32, message: M) -> Acceptance {
        if is_before(number, self.expected) {
            return Acceptance::Duplicate;
        }
        let ahead = number.wrapping_sub(self.expected);
        if ahead >= WINDOW {
            return Acceptance::Invalid;
        }
        let index = ahead as usize;
        while self.messages.len() <= index {
            self.messages.push_back(None);
        }
        if self.messages[index].is_some() {
            return Acceptance::Duplicate;
        }
        self.messages[index] = Some(message);
        self.count += 1;
        Acceptance::New
    }

    /// Hands out the next message, if it has arrived.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<M> {
        let message = self.messages.front_mut()?.take()?;
        self.messages.pop_front();
        self.count -= 1;
        self.expected = self.expected.wrapping_add(1);
        Some(message)
    }

    /// Whether a message of that number, or of one that is far away, has been received.
    pub(super) fn has(&self, number: u32) -> bool {
        let index = number.wrapping_sub(self.expected) as usize;
        is_before(number, self.expected) || self.messages.get(index).is_some_and(Option::is_some)
    }

    /// Whether messages have arrived behind a missing one.
    #[inline]
    pub(super) fn has_gap(&self) -> bool {
        self.count > 0
    }

    /// Selective acknowledgements: bit `i` is set if the message `expected + 1 + i` has arrived.
    pub(super) fn selective(&self) -> [u64; 2] {
        let bits = self.messages.iter().skip(1).take(128).enumerate();
        let bits = bits.fold(0u128, |bits, (i, message)| bits | u128::from(message.is_some()) << i);
        [bits as u64, (bits >> 64) as u64]
    }

    /// Returns the messages that have arrived, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &M> {
        self.messages.iter().flatten()
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTE: Route = Route { rail: 0, queue: 0 };

    /// Both halves, before the message of a number.
    fn halves(first: u32) -> (SendSequence<u32>, RecvSequence<u32>) {
        let send = SendSequence { first, unsent_from: first, ..SendSequence::new() };
        (send, RecvSequence { expected: first, ..RecvSequence::new() })
    }

    /// Sends all messages that are not sent; returns their numbers.
    fn transmit(send: &mut SendSequence<u32>) -> Vec<u32> {
        let mut numbers = Vec::new();
        while let Some((number, _)) = send.unsent() {
            send.sent(number, ROUTE);
            numbers.push(number);
        }
        numbers
    }

    #[test]
    fn numbers_wrap() {
        let (mut send, mut recv) = halves(u32::MAX - 1);
        let pushed: Vec<u32> = (0..4).map(|message| send.push(message)).collect();
        assert_eq!(pushed, [u32::MAX - 1, u32::MAX, 0, 1]);
        assert_eq!(transmit(&mut send), pushed);
        for number in [0, u32::MAX, 1] {
            assert_eq!(recv.accept(number, number), Acceptance::New);
            assert_eq!((recv.pop(), recv.has(number)), (None, true));
        }
        assert_eq!((recv.expected(), recv.selective(), recv.has_gap()), (u32::MAX - 1, [0b111, 0], true));
        assert_eq!(send.lose(recv.expected(), recv.selective()), 1);
        assert_eq!(transmit(&mut send), [u32::MAX - 1]);
        assert_eq!(recv.accept(u32::MAX - 1, u32::MAX - 1), Acceptance::New);
        assert_eq!(std::iter::from_fn(|| recv.pop()).collect::<Vec<_>>(), pushed);
        assert_eq!(recv.accept(u32::MAX, 0), Acceptance::Duplicate);
        let mut freed = Vec::new();
        assert!(send.acknowledge(1, |message| freed.push(message)));
        assert!(!send.acknowledge(0, |_| panic!("an old acknowledgement")));
        assert!(!send.acknowledge(3, |_| panic!("an acknowledgement of a message that was not sent")));
        assert_eq!((freed, send.len()), (vec![0, 1, 2], 1));
    }

    #[test]
    fn a_full_window_is_accepted_in_any_order_and_nothing_beyond_it() {
        let (mut send, mut recv) = halves(u32::MAX - 5);
        let numbers: Vec<u32> = (0..WINDOW).map(|message| send.push(message)).collect();
        assert_eq!((send.len(), transmit(&mut send)), (WINDOW, numbers.clone()));
        assert_eq!(recv.accept(recv.expected().wrapping_add(WINDOW), 0), Acceptance::Invalid);
        for number in numbers.iter().rev() {
            assert_eq!(recv.accept(*number, *number), Acceptance::New);
            assert_eq!(recv.accept(*number, *number), Acceptance::Duplicate);
        }
        assert_eq!(std::iter::from_fn(|| recv.pop()).collect::<Vec<_>>(), numbers);
        assert!(!recv.has_gap() && recv.iter().next().is_none());
        assert_eq!(recv.accept(numbers[0], 0), Acceptance::Duplicate);
        assert!(send.acknowledge(recv.expected(), |_| ()) && send.is_empty());
    }

    #[test]
    fn selective_bits_reach_over_the_whole_window() {
        let (mut send, mut recv) = halves(0);
        (0..WINDOW).for_each(|message| _ = send.push(message));
        transmit(&mut send);
        for number in [1, 64, 65, 66, WINDOW - 1] {
            recv.accept(number, number);
        }
        assert_eq!(recv.selective(), [1 | 1 << 63, 0b11 | 1 << 62]);
        assert_eq!(send.lose(0, recv.selective()), 128 - 5, "the last message has arrived by the same route");
        let repeated = transmit(&mut send);
        assert!(repeated.len() == 123 && ![1, 64, 65, 66, 127].iter().any(|kept| repeated.contains(kept)));
        assert_eq!(send.lose(0, recv.selective()), 0, "repeated after the last one");
        assert_eq!(send.forget_all(), 123, "those that were received are not repeated");
    }

    /// The peer of a message that is not acknowledged in time mostly does not run, and has lost nothing.
    #[test]
    fn a_timeout_repeats_the_last_message_of_each_route_and_its_receipt_shows_which_others_are_lost() {
        let (mut send, mut recv) = halves(0);
        for number in 0..6 {
            send.push(number);
            send.sent(number, Route { rail: 0, queue: u8::from(number % 3 == 0) });
        }
        recv.accept(4, 4);
        assert_eq!(send.forget_last(), 2, "3 by one queue pair, 5 by the other");
        assert_eq!(transmit(&mut send), [3, 5]);
        recv.accept(5, 5);
        assert_eq!(send.lose(recv.expected(), recv.selective()), 3, "1 to 3 were sent before it");
        assert_eq!(transmit(&mut send), [1, 2, 3]);
        assert_eq!(send.forget_all(), 4, "0, of which nothing is known, and the others again");
    }

    #[test]
    fn a_message_is_lost_only_if_a_later_one_of_its_route_has_arrived() {
        let (mut send, mut recv) = halves(0);
        for number in 0..4 {
            send.push(number);
            send.sent(number, Route { rail: (number % 2) as u8, queue: 0 });
        }
        recv.accept(3, 3);
        assert_eq!(send.lose(0, recv.selective()), 1);
        assert_eq!(send.unsent(), Some((1, &1)));
        assert_eq!(send.forget_rail(0), 2);
        assert_eq!(transmit(&mut send), [0, 1, 2]);
    }
}
