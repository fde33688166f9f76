//! How a sender stores pieces into the staging area: through the caches, or past them.
//!
//! A store through the caches takes the line out of the other core's cache, if that core has read it before.
//! The store is cheap between cores with a common cache, in which the receiver also finds the line. Between
//! other cores, as in two core complexes of an AMD processor, it costs several times as much as a store to
//! memory (non-temporal), which waits for nobody; the receiver then reads from memory. Two cores of an AMD
//! EPYC, median ns per KiB of messages of 64 KiB that both exchange, in pieces of 32 KiB:
//!
//! | | stored through | read | stored past | read |
//! |---|---:|---:|---:|---:|
//! | a common cache | 27 | 38 | 31 | 81 |
//! | none | 250 | 110 | 26 | 84 |
//!
//! [`Sensor`] finds out which of the two is the case. Where storing through the caches takes far longer than
//! a copy within a core's cache (17 ns per KiB there), it streams some pieces, and compares what they take
//! the sender to store and the receiver to read. The receiver takes times only while the sender asks for them
//! ([`super::costs`]). What the sender saves is not enough to tell: without a common cache it saves as long
//! as 3 such copies on a processor whose stores to memory are slow (Zen 1), and with one up to 7 on the other
//! one, for short pieces, where it costs the receiver more. The cores of a rank may change, as those of a
//! virtual machine do, so it looks again from time to time.
//!
//! Only processors with non-temporal stores and a clock that costs nothing have the choice: `x86_64`.
//!
//! # Safety
//! [`Sensor::store`] writes to memory of its caller.

use super::{
    RingLayout, Stores,
    costs::{Costs, Way, ticks, ticks_per_kib},
    fetches,
};
use crate::streaming::Stream;
use std::{mem, ptr};

/// Smallest piece that is streamed; the end of a stream takes as long as a shorter piece.
const STREAMED_BYTES: usize = 1024;
/// Smallest piece whose lines are fetched ahead.
const FETCHED_BYTES: usize = 4096;
/// Smallest piece whose time is taken; a core buffers the stores of a shorter one.
const TIMED_BYTES: usize = 4096;
/// Bytes of the first lap. Each lap is twice as long as the one before until laps are whole. So at most half
/// of the pieces of a lap have new pages, and a pair of ranks that sends little uses little memory. A new
/// page takes 2 us: 256 bytes, sent in turns for 20 ms after shorter ones, took 0.77 us while most pages were
/// new, and 0.45 us later.
const FIRST_LAP_BYTES: usize = 256 << 10;
/// Bytes of a lap whose pieces are streamed: they go to memory anyway, so a short lap keeps their addresses
/// in the core's translation buffers.
const STREAMED_LAP_BYTES: usize = 256 << 10;
/// Streaming is tried where storing through the caches takes this many times as long as within a core's
/// cache.
const SLOW: f32 = 5.0;
/// Streaming is kept where storing and reading a piece takes at most this share of what it takes through the
/// caches.
const STREAMED_SHARE: f32 = 0.9;
/// Timed pieces before a decision.
const TIMED_PIECES: u32 = 24;
/// A sender that streams looks from time to time whether the cores share a cache by now. It streams this many
/// times as much as a look takes before the next one: at first, and at most. What a look stores through the
/// caches may take three times as long as streamed. Streaming is tried as rarely where it was no better.
const LOOK_EVERY: u64 = 32;
const LOOK_EVERY_MOST: u64 = 128;

/// Decides how pieces are stored, from the time that they took to be stored and to be read.
#[derive(Debug)]
pub(super) struct Sensor {
    /// Ticks that a KiB takes within a core's cache; `None` where there is no choice.
    own: Option<f32>,
    /// Bytes of a whole lap, and of the present one.
    lap_bytes: u64,
    grown_bytes: usize,
    /// Bytes of a look: the lap that counts for nothing, and the pieces that are timed.
    look_bytes: u64,
    /// Whether lines are fetched ahead of stores through the caches.
    fetches: bool,
    streams: bool,
    /// Whether the present way has been compared with the other one since it began.
    is_judged: bool,
    /// Bytes stored since the way was changed.
    stored: u64,
    /// Pieces timed since the way was changed.
    timed: u32,
    stores: Costs,
    /// End of the timed pieces, which the receiver has to read before the ways are compared.
    timed_to: Option<u64>,
    /// Bytes to store in the present way before the other one is tried.
    patience: u64,
    /// `patience` after the next change that was in vain.
    next_patience: u64,
}

impl Sensor {
    /// Creates the sensor of a sender of `layout`.
    pub(super) fn new(layout: &RingLayout) -> Sensor {
        match layout.stores {
            Stores::Auto => Sensor { fetches: layout.fetches, ..Sensor::of(ticks_per_kib(), layout) },
            Stores::Cached => Sensor::of(None, layout),
            Stores::Fetched => Sensor { fetches: true, ..Sensor::of(None, layout) },
            Stores::Streamed => Sensor { streams: ticks_per_kib().is_some(), ..Sensor::of(None, layout) },
        }
    }

    fn of(own: Option<f32>, layout: &RingLayout) -> Sensor {
        let lap_bytes = layout.lap_bytes as u64;
        let grown_bytes = FIRST_LAP_BYTES.max(8 * layout.piece_bytes).min(layout.lap_bytes);
        let look_bytes = lap_bytes + u64::from(TIMED_PIECES) * layout.piece_bytes as u64;
        Sensor {
            own,
            lap_bytes,
            grown_bytes,
            look_bytes,
            fetches: false,
            streams: false,
            is_judged: true,
            stored: 0,
            timed: 0,
            stores: Costs::starting_at(own.unwrap_or_default() * SLOW / 2.0),
            timed_to: None,
            patience: 0,
            next_patience: LOOK_EVERY * look_bytes,
        }
    }

    /// Returns the bytes after which the sender begins again at the start of the staging area.
    pub(super) fn lap_bytes(&self, layout: &RingLayout) -> usize {
        let least = STREAMED_LAP_BYTES.max(8 * layout.piece_bytes);
        if self.streams { self.grown_bytes.min(least) } else { self.grown_bytes }
    }

    /// Notes that the sender begins again at the start of the staging area.
    pub(super) fn lap_ended(&mut self) {
        if !self.streams {
            self.grown_bytes = (2 * self.grown_bytes).min(self.lap_bytes as usize);
        }
    }

    fn is_grown(&self) -> bool {
        self.grown_bytes as u64 >= self.lap_bytes
    }

    /// Whether a piece of `len` bytes is stored past the caches.
    #[inline]
    pub(super) fn streams(&self, len: usize) -> bool {
        self.streams && len >= STREAMED_BYTES
    }

    /// Returns how the next piece, of `len` bytes, is stored, if the receiver shall time its read.
    #[inline]
    pub(super) fn timed_way(&self, len: usize) -> Option<Way> {
        if self.own.is_none() || len < TIMED_BYTES || !self.counts() || self.is_fast() {
            return None;
        }
        Some(self.way())
    }

    fn way(&self) -> Way {
        if self.streams { Way::Streamed } else { Way::Cached }
    }

    /// Whether times count. Pieces of the first whole lap through the caches, and of shorter laps before it,
    /// count for nothing: their pages may be new, and their lines in memory.
    fn counts(&self) -> bool {
        self.streams || self.stored > self.lap_bytes
    }

    /// Whether pieces take a short time through the caches, so that there is nothing to decide.
    pub(super) fn is_fast(&self) -> bool {
        let is_short = |own| self.stores.of(Way::Cached).is_none_or(|cached| cached <= SLOW * own);
        !self.streams && self.is_judged && self.own.is_none_or(is_short)
    }

    /// Copies a piece to `target`, so that a store with release order hands it over.
    ///
    /// # Safety
    /// `source` must be readable and `target` writable for `len` bytes, and they must not overlap. `target`
    /// must be aligned to a cache line.
    pub(super) unsafe fn store(&mut self, target: *mut u8, source: *const u8, len: usize) {
        let streams = self.streams(len);
        let start = (self.own.is_some() && len >= TIMED_BYTES).then(ticks);
        // SAFETY: the caller keeps the contract.
        unsafe {
            if streams {
                Stream::begin().copy(target, source, len);
            } else if self.fetches && len >= FETCHED_BYTES {
                fetches::copy(target, source, len);
            } else {
                ptr::copy_nonoverlapping(source, target, len);
            }
        }
        // Shorter laps count for nothing.
        self.stored += if self.is_grown() || self.streams { len as u64 } else { 0 };
        if let Some(start) = start {
            self.took(len, ticks().wrapping_sub(start));
        }
    }

    /// Notes the ticks that a stored piece took.
    fn took(&mut self, len: usize, ticks: u64) {
        if !self.counts() {
            return;
        }
        self.stores.add(self.way(), len, ticks);
        self.timed = if self.is_fast() { 0 } else { self.timed.saturating_add(1) };
    }

    /// Whether the way is to be decided upon before the next piece.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.timed >= TIMED_PIECES && (!self.is_judged || self.stored >= self.patience)
    }

    /// Decides how the next pieces are stored. Pieces up to the position `stored` have been stored, and those
    /// up to `consumed` read, at the `reads` costs.
    pub(super) fn decide(&mut self, stored: u64, consumed: u64, reads: Costs) {
        if mem::replace(&mut self.is_judged, true) {
            self.change(!self.streams, 0);
            self.is_judged = false;
            return;
        }
        if consumed < *self.timed_to.get_or_insert(stored) {
            self.is_judged = false;
        } else if self.streams == self.gains(reads) {
            self.timed_to = None;
            self.next_patience = LOOK_EVERY * self.look_bytes;
            self.patience = if self.streams { self.next_patience } else { 0 };
        } else {
            // The change was in vain.
            self.change(!self.streams, self.next_patience);
            self.next_patience = (2 * self.next_patience).min(LOOK_EVERY_MOST * self.look_bytes);
        }
    }

    /// Whether streaming is the faster way.
    fn gains(&self, reads: Costs) -> bool {
        let both = |way| Some(self.stores.of(way)? + reads.of(way)?);
        let (cached, streamed) = (both(Way::Cached), both(Way::Streamed));
        cached.zip(streamed).is_some_and(|(cached, streamed)| streamed < STREAMED_SHARE * cached)
    }

    fn change(&mut self, streams: bool, patience: u64) {
        self.streams = streams;
        self.stored = 0;
        self.timed = 0;
        self.timed_to = None;
        self.patience = patience;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const KIB: usize = 1 << 10;
    const LAP: usize = 4 << 20;
    const LAYOUT: RingLayout = RingLayout {
        cells: 8,
        staging_bytes: LAP,
        piece_bytes: 32 * KIB,
        buffers: 2,
        lap_bytes: LAP,
        stores: Stores::Auto,
        fetches: false,
    };
    /// Ticks per KiB within a core's cache.
    const OWN: f32 = 40.0;

    /// Ticks that a KiB takes two cores: to be stored and to be read.
    #[derive(Clone, Copy)]
    struct Cores {
        cached: [u64; 2],
        streamed: [u64; 2],
    }

    /// Two cores with a common cache.
    const NEAR: Cores = Cores { cached: [70, 100], streamed: [80, 210] };
    /// Two cores without one.
    const APART: Cores = Cores { cached: [600, 280], streamed: [65, 215] };
    /// The same of an older processor, whose stores to memory are slow (Zen 1; [`OWN`] is 55 there).
    const SLOW_MEMORY: Cores = Cores { cached: [400, 300], streamed: [225, 235] };

    impl Cores {
        /// Returns the cores with a source that takes `cold` ticks per KiB to be read.
        fn with_source(self, cold: u64) -> Cores {
            let store = |[store, read]: [u64; 2]| [store + cold, read];
            Cores { cached: store(self.cached), streamed: store(self.streamed) }
        }
    }

    /// A sender and a receiver, as far as they decide how pieces are stored.
    struct Pair {
        sensor: Sensor,
        reads: Costs,
        /// Pieces that the receiver has yet to read, with their marks.
        unread: VecDeque<Option<Way>>,
        position: u64,
    }

    impl Pair {
        fn new(own: f32, layout: &RingLayout) -> Pair {
            let sensor = Sensor::of(Some(own), layout);
            Pair { sensor, reads: Costs::default(), unread: VecDeque::new(), position: 0 }
        }

        /// Sends a piece, and reads the piece before the last `BEHIND` ones. `late` are ticks of an
        /// interruption of the sender. Returns whether the piece was streamed.
        fn send_piece(&mut self, piece: usize, cores: Cores, late: u64) -> bool {
            const BEHIND: usize = 3;
            if self.sensor.is_due() {
                let consumed = self.position - (self.unread.len() * piece) as u64;
                self.sensor.decide(self.position, consumed, self.reads);
            }
            let (kib, streams) = ((piece / KIB) as u64, self.sensor.streams);
            let ticks = |[store, read]: [u64; 2]| (store * kib, read * kib);
            let (store, read) = ticks(if streams { cores.streamed } else { cores.cached });
            self.unread.push_back(self.sensor.timed_way(piece));
            self.sensor.stored += piece as u64;
            self.sensor.took(piece, store + late);
            self.position += piece as u64;
            if self.unread.len() > BEHIND
                && let Some(Some(way)) = self.unread.pop_front()
            {
                self.reads.add(way, piece, read);
            }
            streams
        }

        /// Sends pieces of 32 KiB until `bytes` have been sent; returns the bytes that were streamed. Every
        /// `outliers`th piece is interrupted.
        fn send(&mut self, bytes: usize, cores: Cores, outliers: usize) -> usize {
            let piece = 32 * KIB;
            let late = |i: usize| if i.is_multiple_of(outliers) { 10_000_000 } else { 0 };
            (0..bytes / piece).filter(|i| self.send_piece(piece, cores, late(*i))).count() * piece
        }
    }

    const GIB: usize = 1 << 30;
    const SELDOM: usize = 1000;

    #[test]
    fn cores_with_a_common_cache_use_it() {
        let mut pair = Pair::new(OWN, &LAYOUT);
        assert_eq!(pair.send(GIB, NEAR, 4), 0, "interruptions are no reason to stream");
    }

    #[test]
    fn a_source_in_memory_is_no_reason_to_stream() {
        let mut pair = Pair::new(OWN, &LAYOUT);
        let streamed = pair.send(8 * GIB, NEAR.with_source(200), SELDOM);
        assert!((1..8 * GIB / 500).contains(&streamed), "it was tried: {streamed} bytes");
    }

    #[test]
    fn new_pages_do_not_count() {
        let mut pair = Pair::new(OWN, &LAYOUT);
        assert_eq!(pair.send(LAP, APART.with_source(60_000), SELDOM), 0);
        assert_eq!(pair.send(GIB, NEAR, SELDOM), 0);
    }

    #[test]
    fn cores_without_a_common_cache_stream_nearly_everything() {
        for (own, cores) in [(OWN, APART), (55.0, SLOW_MEMORY)] {
            for lap_bytes in [256 * KIB, LAP] {
                let mut pair = Pair::new(own, &RingLayout { lap_bytes, ..LAYOUT });
                pair.send(GIB, cores, SELDOM);
                let streamed = pair.send(8 * GIB, cores, SELDOM);
                assert!(streamed > 8 * GIB / 1000 * 985, "{streamed} bytes with laps of {lap_bytes}");
            }
        }
    }

    #[test]
    fn short_pieces_are_streamed_although_their_end_takes_time() {
        let mut pair = Pair::new(OWN, &LAYOUT);
        let short = Cores { cached: [650, 280], streamed: [290, 280] };
        (0..GIB / 4096).for_each(|_| _ = pair.send_piece(4096, short, 0));
        assert!(pair.sensor.streams);
    }

    #[test]
    fn short_pieces_are_stored_through_a_common_cache_although_streaming_takes_the_sender_less() {
        let mut pair = Pair::new(OWN, &LAYOUT);
        // They take more than five times as long as within a core's cache, now and then.
        let short = |i: usize| Cores { cached: [190 + i as u64 % 7 * 30, 120], streamed: [80, 500] };
        let streamed = (0..GIB / 4096).filter(|i| pair.send_piece(4096, short(*i), 0)).count();
        assert!((1..GIB / 4096 / 50).contains(&streamed), "it was tried: {streamed} pieces");
    }

    #[test]
    fn a_change_is_noticed() {
        let mut pair = Pair::new(OWN, &LAYOUT);
        for _ in 0..3 {
            pair.send(2 * LAP, APART, SELDOM);
            assert!(pair.sensor.streams, "cores were parted");
            let most = (LOOK_EVERY_MOST * pair.sensor.look_bytes) as usize;
            pair.send(2 * most, NEAR, SELDOM);
            assert!(!pair.sensor.streams, "cores were joined");
        }
    }

    #[test]
    fn a_receiver_that_takes_no_times_gets_its_pieces_through_the_caches() {
        let mut sensor = Sensor::of(Some(OWN), &LAYOUT);
        let mut streamed = 0;
        for _ in 0..GIB / 4096 {
            if sensor.is_due() {
                sensor.decide(sensor.stored, sensor.stored, Costs::default());
            }
            streamed += usize::from(sensor.streams);
            sensor.stored += 4096;
            sensor.took(4096, if sensor.streams { 260 } else { 2400 });
        }
        assert!(streamed < GIB / 4096 / 20, "{streamed} pieces");
    }
}
