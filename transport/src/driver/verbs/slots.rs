//! Slots: the places of messages with a header, on both sides.
//!
//! A receiver has [`SlotPool`]s, one for each queue pair that takes such messages. Receives are posted for
//! all slots that hold no message, at all times. A sender has a [`SendStore`] for each peer. A message stays
//! in its place there until it is acknowledged, so that it can be repeated.
//!
//! On devices that count in frames, a message and its receive must have the same number of frames. So a queue
//! pair takes messages of one [`Class`] only: short ones of a frame, or long ones of three. Other devices
//! have one queue pair, whose slots take messages of any length up to 16 KiB.
//!
//! This module posts nothing.

use super::wire::{
    Header, LONG_BYTES, LONG_PAYLOAD, OFFSET_UNIT, SHARED_BYTES, SHARED_PAYLOAD, SHORT_BYTES, SHORT_PAYLOAD,
};

/// Slots for short messages, or for messages of any length where all share a queue pair.
const SHORT_SLOTS: u32 = 160;
/// Slots for long messages, on a queue pair of their own: 384 frames, 1.5 MiB.
///
/// All of them are used in turn, so one of many has left the receiver's cache when the next message is
/// written to it. On two cores of an AMD EPYC, with 1 MiB of cache each, half a round trip of 64 KiB without
/// a cable model took 6.9, 5.8 and 5.4 us with 64, 96 and 128 slots.
const LONG_SLOTS: u32 = 128;
/// Short messages that a sender keeps.
const SHORT_SENDS: u32 = 64;
/// Long messages that a sender keeps where they have a queue pair of their own.
const LONG_SENDS: u32 = 32;
/// Messages of any length that a sender keeps where all share a queue pair.
const SHARED_SENDS: u32 = 64;
/// Places of a rail for unsequenced messages, which are short.
pub(super) const AUX_PLACES: u32 = 16;
/// Free slots whose receives are posted at once. Fewer are posted while the rank waits, when that takes no
/// time from a call.
pub(super) const REPOST_AT: usize = 16;
/// Receives posted between two polls of a rank that waits. More would delay the next message.
pub(super) const REPOST_IDLE: usize = 4;
/// Places that only control messages use, so that data never delays them for long.
const CONTROL_RESERVE: usize = 16;
/// Places that only repeated messages use, so that a repeat never waits for one for long.
const REPEAT_RESERVE: u32 = 4;
/// A padded long message: the fewest bytes that have as many frames as a long slot.
const LEAST_LONG_BYTES: usize = LONG_BYTES - SHORT_BYTES + 1;
/// Fewer bytes than this travel in one or two short messages, since a cable would also carry the padding of a
/// long one.
///
/// Two ranks on an AMD EPYC took, for 5 to 6.5 KiB in two short messages and in a long one, on a cable of
/// 5 us and 75 Gb/s 6.5 to 6.7 and 7.0 to 7.1 us for an `all_reduce`; without a cable model 1.9 to 2.1 and
/// 1.5 to 1.7 us, and 1.4 to 1.5 and 1.5 to 1.7 us for half a round trip.
const LEAST_LONG_PAYLOAD: usize = 2 * SHORT_PAYLOAD + 1;

/// Length class of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Class {
    Short,
    Long,
}

/// The queue pairs of a rail that take messages with a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queues {
    /// One, for messages of any length; devices that don't count in frames.
    Shared,
    /// One for short messages.
    Short,
    /// One for short and one for long messages.
    Both,
}

impl Queues {
    /// Bytes of the payload of the next message, where `left` bytes are left to send.
    #[inline]
    pub(super) fn payload(self, left: usize) -> usize {
        match self {
            Queues::Shared => left.min(SHARED_PAYLOAD),
            Queues::Both if left >= LEAST_LONG_PAYLOAD => long_part(left),
            Queues::Short | Queues::Both if left <= SHORT_PAYLOAD => left,
            Queues::Short | Queues::Both if left < LEAST_LONG_PAYLOAD => even_part(left, SHORT_PAYLOAD),
            Queues::Short | Queues::Both => SHORT_PAYLOAD,
        }
    }

    /// Class of a message with that payload.
    #[inline]
    pub(super) fn class(self, payload: usize) -> Class {
        match self {
            Queues::Shared => Class::Long,
            Queues::Both if payload > SHORT_PAYLOAD => Class::Long,
            Queues::Short | Queues::Both => Class::Short,
        }
    }

    /// Number of the queue pair that takes messages of a class.
    #[inline]
    pub(super) fn queue(self, class: Class) -> usize {
        usize::from(self == Queues::Both && class == Class::Long)
    }

    /// Bytes that are sent for a message, padded to the frames that its receive has.
    #[inline]
    pub(super) fn wire_bytes(self, class: Class, bytes: usize) -> usize {
        if self == Queues::Both && class == Class::Long { bytes.max(LEAST_LONG_BYTES) } else { bytes }
    }

    /// Receive slots of each queue pair.
    pub(super) const fn receives(self) -> &'static [SlotCounts] {
        const SHARED: SlotCounts = SlotCounts::new(SHORT_SLOTS, SHARED_BYTES, SHARED_SENDS + AUX_PLACES);
        const SHORT: SlotCounts = SlotCounts::new(SHORT_SLOTS, SHORT_BYTES, SHORT_SENDS + AUX_PLACES);
        const LONG: SlotCounts = SlotCounts::new(LONG_SLOTS, LONG_BYTES, LONG_SENDS);
        match self {
            Queues::Shared => &[SHARED],
            Queues::Short => &[SHORT],
            Queues::Both => &[SHORT, LONG],
        }
    }

    /// Bytes of all receive slots of a rail.
    pub(super) fn receive_bytes(self) -> usize {
        self.receives().iter().map(SlotCounts::span).sum()
    }

    /// Send places of each class: their number, and the bytes of one.
    fn sends(self) -> [(u32, usize); 2] {
        match self {
            Queues::Shared => [(0, 0), (SHARED_SENDS + REPEAT_RESERVE, SHARED_BYTES)],
            Queues::Short => [(SHORT_SENDS + REPEAT_RESERVE, SHORT_BYTES), (0, 0)],
            Queues::Both => {
                [(SHORT_SENDS + REPEAT_RESERVE, SHORT_BYTES), (LONG_SENDS + REPEAT_RESERVE, LONG_BYTES)]
            }
        }
    }

    /// Bytes of a [`SendStore`].
    pub(super) fn send_bytes(self) -> usize {
        self.sends().iter().map(|(count, bytes)| *count as usize * stride(*bytes)).sum()
    }
}

/// Returns the payload of the next message where `left` bytes take a few of at most `most` bytes: about equal
/// parts, so that the receiver works on one while the sender prepares the next one.
#[inline]
fn even_part(left: usize, most: usize) -> usize {
    left.div_ceil(left.div_ceil(most)).next_multiple_of(OFFSET_UNIT).min(left)
}

/// Returns the payload of the next long message: about equal parts of `left` bytes, unless the last one would
/// need two short messages. Then it is left to a full short one.
#[inline]
fn long_part(left: usize) -> usize {
    let part = even_part(left, LONG_PAYLOAD);
    let is_last_between = (SHORT_PAYLOAD + 1..LEAST_LONG_PAYLOAD).contains(&(left - part));
    if is_last_between { left.next_multiple_of(OFFSET_UNIT) - SHORT_PAYLOAD } else { part }
}

/// Bytes of a cache line.
const CACHE_LINE: usize = 64;

/// Returns the bytes between the beginnings of places that have `bytes` bytes each: an odd number of cache
/// lines. Otherwise the beginnings of all places, which are all that a short message touches, would share a
/// few sets of the cache, and evict each other.
const fn stride(bytes: usize) -> usize {
    let lines = bytes.div_ceil(CACHE_LINE);
    (lines | 1) * CACHE_LINE
}

/// Number and size of the receive slots of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotCounts {
    pub(super) count: u32,
    /// Bytes of a slot.
    pub(super) bytes: usize,
    /// Slots that may hold messages. The others have room for all messages under way, so that none of them
    /// finds no receive, but for those that are sent again.
    most_kept: u32,
}

impl SlotCounts {
    /// `under_way` messages may be under way.
    const fn new(count: u32, bytes: usize, under_way: u32) -> SlotCounts {
        SlotCounts { count, bytes, most_kept: count - under_way - REPOST_AT as u32 }
    }

    /// Bytes from the beginning of a slot to that of the next one.
    const fn stride(&self) -> usize {
        stride(self.bytes)
    }

    /// Bytes of all slots.
    pub(super) const fn span(&self) -> usize {
        self.count as usize * self.stride()
    }
}

/// The receive slots of one queue pair.
#[derive(Debug)]
pub(super) struct SlotPool {
    base: usize,
    counts: SlotCounts,
    /// Slots without a message whose receives are not posted.
    free: Vec<u32>,
    /// Number of slots that hold a message.
    kept: u32,
}

impl SlotPool {
    /// Slots from the offset `base` on, all of them free.
    pub(super) fn new(base: usize, counts: SlotCounts) -> SlotPool {
        SlotPool { base, counts, free: (0..counts.count).rev().collect(), kept: 0 }
    }

    /// Offset of a slot in the slab, and its bytes.
    #[inline]
    pub(super) fn place(&self, slot: u32) -> (usize, usize) {
        (self.base + slot as usize * self.counts.stride(), self.counts.bytes)
    }

    /// Number of slots.
    pub(super) fn count(&self) -> u32 {
        self.counts.count
    }

    /// Number of free slots.
    #[inline]
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// Takes a free slot, to post its receive.
    #[inline]
    pub(super) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Returns a slot whose receive was not posted, or has completed without a message.
    #[inline]
    pub(super) fn put_back(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Notes that a slot holds a message.
    #[inline]
    pub(super) fn keep(&mut self) {
        self.kept += 1;
    }

    /// Frees a slot that held a message.
    #[inline]
    pub(super) fn release(&mut self, slot: u32) {
        self.kept -= 1;
        self.free.push(slot);
    }

    /// Whether no slot may hold a further message, so that it must be copied elsewhere.
    #[inline]
    pub(super) fn is_crowded(&self) -> bool {
        self.kept > self.counts.most_kept
    }

    /// Frees all slots but the given ones, which hold messages. The queue pair has lost all its receives.
    pub(super) fn reset(&mut self, is_kept: impl Fn(u32) -> bool) {
        self.free.clear();
        self.free.extend((0..self.counts.count).rev().filter(|slot| !is_kept(*slot)));
        self.kept = self.counts.count - self.free.len() as u32;
    }
}

/// The place of a message at its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// Offset in the slab.
    pub(super) at: usize,
    /// Bytes with the header, without padding.
    pub(super) bytes: usize,
    pub(super) class: Class,
    /// The rail that it must be sent by while that is up.
    pub(super) pinned: Option<u8>,
}

/// Places for the messages that a peer has not acknowledged.
#[derive(Debug)]
pub(super) struct SendStore {
    queues: Queues,
    /// Offsets of free places, of each class.
    free: [Vec<usize>; 2],
}

impl SendStore {
    /// Places from the offset `base` on.
    pub(super) fn new(queues: Queues, base: usize) -> SendStore {
        let [(shorts, short_bytes), (longs, long_bytes)] = queues.sends();
        let long_base = base + shorts as usize * stride(short_bytes);
        let places = |base: usize, count: u32, bytes: usize| {
            (0..count as usize).rev().map(|place| base + place * stride(bytes)).collect()
        };
        let free = [places(base, shorts, short_bytes), places(long_base, longs, long_bytes)];
        SendStore { queues, free }
    }

    /// Takes a place for a message with that payload; `None` when there is no room.
    #[inline]
    pub(super) fn take(&mut self, payload: usize, is_control: bool) -> Option<Kept> {
        let class = self.queues.class(payload);
        let free = &mut self.free[class as usize];
        let reserve = match (is_control, class, self.queues) {
            (true, ..) | (_, Class::Long, Queues::Both) => 0,
            _ => CONTROL_RESERVE,
        };
        if free.len() <= reserve + REPEAT_RESERVE as usize {
            return None;
        }
        let at = free.pop()?;
        Some(Kept { at, bytes: size_of::<Header>() + payload, class, pinned: None })
    }

    /// Takes a second place for a message that is repeated; `None` when there is no room.
    pub(super) fn take_again(&mut self, kept: &Kept) -> Option<Kept> {
        let at = self.free[kept.class as usize].pop()?;
        Some(Kept { at, ..*kept })
    }

    /// Returns the place of a message that has been acknowledged. No request may still send it.
    #[inline]
    pub(super) fn give_back(&mut self, kept: &Kept) {
        self.free[kept.class as usize].push(kept.at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_frames_of_their_receives() {
        for queues in [Queues::Shared, Queues::Short, Queues::Both] {
            for left in [0, 1, 4032, 4033, 8064, 8065, 16_384, 20_000, 1 << 20] {
                let payload = queues.payload(left);
                assert!(payload <= left && (payload > 0 || left == 0), "{queues:?} {left}");
                let class = queues.class(payload);
                let bytes = queues.wire_bytes(class, size_of::<Header>() + payload);
                let slot = queues.receives()[queues.queue(class)].bytes;
                assert!(bytes <= slot, "{queues:?} {left}");
                if queues != Queues::Shared {
                    assert_eq!(bytes.div_ceil(4096), slot.div_ceil(4096), "{queues:?} {left}");
                }
            }
        }
    }

    /// Payloads of the messages that `total` bytes travel in.
    fn parts(queues: Queues, total: usize) -> Vec<usize> {
        let mut left = total;
        let next = || {
            let part = queues.payload(left);
            left -= part;
            (part > 0).then_some(part)
        };
        std::iter::from_fn(next).collect()
    }

    /// 4 KiB were a full message and one of 64 bytes, whose receiver began to work when all had arrived.
    #[test]
    fn a_message_of_two_frames_travels_in_about_equal_parts() {
        for queues in [Queues::Short, Queues::Both] {
            for total in [4033, 4096, 5000, 8000, 8064] {
                let parts = parts(queues, total);
                assert_eq!(parts.len(), total.div_ceil(SHORT_PAYLOAD), "{queues:?} {total}");
                let (first, last) = (parts[0], parts[parts.len() - 1]);
                assert!(first - last < parts.len() * OFFSET_UNIT, "{queues:?} {total}: {parts:?}");
            }
        }
    }

    /// 8 KiB were three short messages, which took half as long again as a long one. Then they were a long
    /// one of five frames, of which a cable carried 8 KiB of padding.
    #[test]
    fn powers_of_two_from_8_kib_on_travel_in_long_messages_without_padding() {
        assert_eq!(parts(Queues::Both, 8064).len(), 2);
        for total in [8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10] {
            for part in parts(Queues::Both, total) {
                let bytes = size_of::<Header>() + part;
                assert_eq!(Queues::Both.class(part), Class::Long, "{total}: {part}");
                assert_eq!(Queues::Both.wire_bytes(Class::Long, bytes), bytes, "{total}: {part}");
            }
        }
    }

    /// Equal parts of 12.5 KB left 6 KB, which were two short messages.
    #[test]
    fn messages_are_as_few_as_their_bytes_allow() {
        for queues in [Queues::Shared, Queues::Short, Queues::Both] {
            let most = if queues == Queues::Short { SHORT_PAYLOAD } else { LONG_PAYLOAD };
            let most = if queues == Queues::Shared { SHARED_PAYLOAD } else { most };
            for total in LEAST_LONG_PAYLOAD..70_000 {
                let parts = parts(queues, total);
                assert_eq!(parts.len(), total.div_ceil(most), "{queues:?} {total}: {parts:?}");
                assert!(parts[..parts.len() - 1].iter().all(|part| part.is_multiple_of(OFFSET_UNIT)));
            }
        }
    }

    #[test]
    fn places_do_not_overlap_and_control_messages_find_one() {
        for queues in [Queues::Shared, Queues::Short, Queues::Both] {
            let mut store = SendStore::new(queues, 100);
            let mut taken: Vec<Kept> = Vec::new();
            for payload in [SHORT_PAYLOAD, LONG_PAYLOAD] {
                let fits = queues.payload(payload);
                taken.extend(std::iter::from_fn(|| store.take(fits, false)));
            }
            let control = std::iter::from_fn(|| store.take(16, true)).count();
            assert_eq!(control, CONTROL_RESERVE, "{queues:?}");
            let (first, last) = (taken[0], *taken.last().expect("taken"));
            let again = [first, last].map(|kept| std::iter::from_fn(|| store.take_again(&kept)).collect());
            taken.extend(again.into_iter().flat_map(|places: Vec<Kept>| places));
            assert!(taken.len() > 2 * REPEAT_RESERVE as usize && store.take_again(&first).is_none());
            let long_bytes = if queues == Queues::Shared { SHARED_BYTES } else { LONG_BYTES };
            let end =
                |kept: &Kept| kept.at + if kept.class == Class::Long { long_bytes } else { SHORT_BYTES };
            taken.sort_by_key(|kept| kept.at);
            assert!(taken.windows(2).all(|pair| end(&pair[0]) <= pair[1].at), "{queues:?}");
            assert!(taken.iter().all(|kept| end(kept) <= 100 + queues.send_bytes()), "{queues:?}");
            let many = taken.iter().filter(|kept| kept.class == queues.class(16)).take(5);
            many.for_each(|kept| store.give_back(kept));
            assert!(store.take(16, true).is_some() && store.take(16, true).is_none());
        }
    }

    #[test]
    fn slots_are_posted_or_kept_or_free() {
        let counts = SlotCounts { count: 4, bytes: 100, most_kept: 2 };
        let mut pool = SlotPool::new(0, counts);
        assert_eq!((pool.take(), pool.take(), pool.free()), (Some(0), Some(1), 2));
        assert_eq!(pool.place(1), (192, 100), "an odd number of cache lines further on");
        pool.keep();
        assert!(!pool.is_crowded());
        pool.release(0);
        assert_eq!(pool.free(), 3);
        (0..3).for_each(|_| pool.keep());
        assert!(pool.is_crowded());
        pool.reset(|slot| slot == 2);
        assert_eq!((pool.free(), pool.kept), (3, 1));
    }
}
