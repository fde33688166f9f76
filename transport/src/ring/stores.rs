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
//! [`Sensor`] finds out which of the two is the case from the time that pieces take to be stored, compared
//! with that of a copy within a core's cache, which takes 17 ns per KiB there. It needs no answer of the
//! receiver. The cores of a rank may change, as those of a virtual machine do, so it looks again from time to
//! time.
//!
//! Only processors with non-temporal stores and a clock that costs nothing have the choice: `x86_64`.
//!
//! # Safety
//! [`Sensor::store`] and [`stream`] write to memory of their caller.

use super::{RingLayout, Stores};
use std::{mem, ptr, sync::OnceLock};

/// Smallest piece that is streamed; the end of a stream takes as long as a shorter piece.
const STREAMED_BYTES: usize = 1024;
/// Smallest piece whose time is taken; a core buffers the stores of a shorter one.
const TIMED_BYTES: usize = 4096;
/// Bytes of a lap whose pieces are streamed: they go to memory anyway, so a short lap keeps their addresses
/// in the core's translation buffers.
const STREAMED_LAP_BYTES: usize = 256 << 10;
/// Streaming is tried where storing through the caches takes this many times as long as within a core's
/// cache.
const SLOW: f32 = 5.0;
/// Streaming is kept where it saves the sender this many times a copy within a core's cache: the receiver
/// reads streamed bytes from memory, which costs it about three such copies more where a cache is shared.
///
/// Without a common cache it saves 20 and more for pieces of 32 KiB, and 9 to 17 for those of 4 KiB, at whose
/// end the stores are waited for; with one 0, and up to 7 for a moment.
const FAR: f32 = 8.0;
/// Timed pieces before a decision.
const TIMED_PIECES: u32 = 24;
/// A sender that streams looks from time to time whether the cores share a cache by now. It streams this many
/// times as much as a look takes before the next one: at first, and at most. What a look stores through the
/// caches may take three times as long as streamed. Streaming is tried as rarely where it was no better.
const LOOK_EVERY: u64 = 32;
const LOOK_EVERY_MOST: u64 = 128;

/// Decides how pieces are stored, from the time that they took.
#[derive(Debug)]
pub(super) struct Sensor {
    /// Ticks that a KiB takes within a core's cache; `None` where there is no choice.
    own: Option<f32>,
    lap_bytes: u64,
    /// Bytes of a look: the lap that counts for nothing, and the pieces that are timed.
    look_bytes: u64,
    streams: bool,
    /// Whether the present way has been compared with the other one since it began.
    is_judged: bool,
    /// Bytes stored since the way was changed.
    stored: u64,
    /// Pieces timed since the way was changed.
    timed: u32,
    /// Estimated medians of the ticks that a KiB takes: through the caches, and past them.
    cached_cost: f32,
    streamed_cost: f32,
    /// Bytes to store in the present way before the other one is tried.
    patience: u64,
    /// `patience` after the next change that was in vain.
    next_patience: u64,
}

impl Sensor {
    /// Creates the sensor of a sender of `layout`.
    pub(super) fn new(layout: &RingLayout) -> Sensor {
        match layout.stores {
            Stores::Auto => Sensor::of(ticks_per_kib(), layout),
            Stores::Cached => Sensor::of(None, layout),
            Stores::Streamed => Sensor { streams: ticks_per_kib().is_some(), ..Sensor::of(None, layout) },
        }
    }

    fn of(own: Option<f32>, layout: &RingLayout) -> Sensor {
        let lap_bytes = layout.lap_bytes as u64;
        let look_bytes = lap_bytes + u64::from(TIMED_PIECES) * layout.piece_bytes as u64;
        let cost = own.unwrap_or_default() * SLOW / 2.0;
        Sensor {
            own,
            lap_bytes,
            look_bytes,
            streams: false,
            is_judged: true,
            stored: 0,
            timed: 0,
            cached_cost: cost,
            streamed_cost: cost,
            patience: 0,
            next_patience: LOOK_EVERY * look_bytes,
        }
    }

    /// Returns the bytes after which the sender begins again at the start of the staging area.
    pub(super) fn lap_bytes(&self, layout: &RingLayout) -> usize {
        let least = STREAMED_LAP_BYTES.max(8 * layout.piece_bytes);
        if self.streams { layout.lap_bytes.min(least) } else { layout.lap_bytes }
    }

    /// Whether a piece of `len` bytes is stored past the caches.
    #[inline]
    pub(super) fn streams(&self, len: usize) -> bool {
        self.streams && len >= STREAMED_BYTES
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
                stream(target, source, len);
            } else {
                ptr::copy_nonoverlapping(source, target, len);
            }
        }
        self.stored += len as u64;
        if let Some(start) = start {
            self.took(len, ticks().wrapping_sub(start));
        }
    }

    /// Notes the ticks that a stored piece took.
    ///
    /// Pieces of the first lap through the caches count for nothing: their pages may be new, and their lines
    /// in memory.
    fn took(&mut self, len: usize, ticks: u64) {
        let Some(own) = self.own else { return };
        if !self.streams && self.stored <= self.lap_bytes {
            return;
        }
        let sample = ticks as f32 * 1024.0 / len as f32;
        let cost = if self.streams { &mut self.streamed_cost } else { &mut self.cached_cost };
        // Steps of a fixed ratio lead to the median, which a rank that is preempted in a copy does not move.
        *cost *= if sample > *cost { 1.0625 } else { 1.0 / 1.0625 };
        *cost = cost.clamp(own / 4.0, 64.0 * own);
        // There is nothing to decide while pieces take a short time through the caches.
        let is_fast = !self.streams && self.is_judged && self.cached_cost <= SLOW * own;
        self.timed = if is_fast { 0 } else { self.timed + 1 };
        if self.timed >= TIMED_PIECES {
            self.decide();
        }
    }

    fn decide(&mut self) {
        let saved = self.cached_cost - self.streamed_cost;
        let is_far = self.own.is_some_and(|own| saved > FAR * own);
        let is_right = self.streams == is_far;
        let was_judged = mem::replace(&mut self.is_judged, true);
        if !was_judged && !is_right {
            // The change was in vain.
            self.change(!self.streams, self.next_patience);
            self.next_patience = (2 * self.next_patience).min(LOOK_EVERY_MOST * self.look_bytes);
        } else if !was_judged {
            self.next_patience = LOOK_EVERY * self.look_bytes;
            self.patience = if self.streams { self.next_patience } else { 0 };
        } else if self.stored >= self.patience {
            self.change(!self.streams, 0);
            self.is_judged = false;
        }
    }

    fn change(&mut self, streams: bool, patience: u64) {
        self.streams = streams;
        self.stored = 0;
        self.timed = 0;
        self.patience = patience;
    }
}

/// Whether [`ticks`] counts.
pub(super) const HAS_TICKS: bool = cfg!(all(target_arch = "x86_64", not(miri)));

/// Returns the processor's clock, which costs less than a cache miss.
#[inline]
pub(super) fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86_64 processor has the instruction, which reads a register.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    0
}

/// Returns the ticks that copying a KiB takes within a core's own cache; `None` where pieces can't be
/// streamed.
fn ticks_per_kib() -> Option<f32> {
    const KIB: usize = 8;
    static OWN: OnceLock<f32> = OnceLock::new();
    if !cfg!(all(target_arch = "x86_64", not(miri), not(loom))) {
        return None;
    }
    Some(*OWN.get_or_init(|| {
        let (source, mut target) = ([1u64; KIB * 128], [0u64; KIB * 128]);
        let least = (0..16).map(|_| {
            let start = ticks();
            std::hint::black_box(&mut target).copy_from_slice(std::hint::black_box(&source));
            ticks().wrapping_sub(start)
        });
        least.min().unwrap_or_default().max(1) as f32 / KIB as f32
    }))
}

/// Copies past the caches. A store with release order that follows comes after all of it.
///
/// # Safety
/// As for [`Sensor::store`].
#[cfg(target_arch = "x86_64")]
unsafe fn stream(target: *mut u8, source: *const u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    let whole = len - len % RingLayout::LINE;
    // SAFETY: all accesses are inside the `len` bytes that the caller vouches for; `target` is aligned to a
    // line, and so are its parts of 16 bytes. The instructions are part of every x86_64 processor. The fence
    // orders the stores, which are not ordered otherwise, before all later ones.
    unsafe {
        for at in (0..whole).step_by(16) {
            let part = _mm_loadu_si128(source.add(at).cast::<__m128i>());
            _mm_stream_si128(target.add(at).cast::<__m128i>(), part);
        }
        ptr::copy_nonoverlapping(source.add(whole), target.add(whole), len - whole);
        _mm_sfence();
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(target: *mut u8, source: *const u8, len: usize) {
    // SAFETY: the caller keeps the contract, which is the same.
    unsafe { ptr::copy_nonoverlapping(source, target, len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;
    const LAP: usize = 4 << 20;
    const LAYOUT: RingLayout = RingLayout {
        cells: 8,
        staging_bytes: LAP,
        piece_bytes: 32 * KIB,
        lap_bytes: LAP,
        stores: Stores::Auto,
    };
    /// Ticks per KiB within a core's cache.
    const OWN: f32 = 40.0;
    /// Ticks per KiB to a line that the other core has read.
    const NEAR: u64 = 70;
    const APART: u64 = 600;

    /// Ticks per KiB past the caches.
    const PAST: u64 = 65;

    /// Sends pieces of 32 KiB until `bytes` have been sent; returns the bytes that were streamed. `cold` is
    /// what reading the source costs per KiB. Every `outliers`th piece is interrupted.
    fn send(sensor: &mut Sensor, bytes: usize, ticks_per_kib: u64, cold: u64, outliers: usize) -> usize {
        let piece = 32 * KIB;
        let mut streamed = 0;
        for i in 0..bytes / piece {
            let interruption = if i % outliers == 0 { 10_000_000 } else { 0 };
            streamed += if sensor.streams { piece } else { 0 };
            let cost = cold + if sensor.streams { PAST } else { ticks_per_kib };
            sensor.stored += piece as u64;
            sensor.took(piece, cost * 32 + interruption);
        }
        streamed
    }

    const GIB: usize = 1 << 30;
    const SELDOM: usize = 1000;

    #[test]
    fn cores_with_a_common_cache_use_it() {
        let mut sensor = Sensor::of(Some(OWN), &LAYOUT);
        assert_eq!(send(&mut sensor, GIB, NEAR, 0, 4), 0, "interruptions are no reason to stream");
    }

    #[test]
    fn a_source_in_memory_is_no_reason_to_stream() {
        let mut sensor = Sensor::of(Some(OWN), &LAYOUT);
        let streamed = send(&mut sensor, 8 * GIB, NEAR, 200, SELDOM);
        assert!(streamed < 8 * GIB / 500, "{streamed} bytes");
    }

    #[test]
    fn new_pages_do_not_count() {
        let mut sensor = Sensor::of(Some(OWN), &LAYOUT);
        assert_eq!(send(&mut sensor, LAP, 100 * APART, 0, SELDOM), 0);
        assert_eq!(send(&mut sensor, GIB, NEAR, 0, SELDOM), 0);
    }

    #[test]
    fn cores_without_a_common_cache_stream_nearly_everything() {
        for lap_bytes in [256 * KIB, LAP] {
            let mut sensor = Sensor::of(Some(OWN), &RingLayout { lap_bytes, ..LAYOUT });
            send(&mut sensor, GIB, APART, 0, SELDOM);
            let streamed = send(&mut sensor, 8 * GIB, APART, 0, SELDOM);
            assert!(streamed > 8 * GIB / 1000 * 985, "{streamed} bytes with laps of {lap_bytes}");
        }
    }

    #[test]
    fn short_pieces_are_streamed_although_their_end_takes_time() {
        let mut sensor = Sensor::of(Some(OWN), &LAYOUT);
        // Ticks of pieces of 4 KiB as seen between cores without a common cache.
        for _ in 0..GIB / 4096 {
            let ticks = if sensor.streams { 4 * 290 } else { 4 * 650 };
            sensor.stored += 4096;
            sensor.took(4096, ticks);
        }
        assert!(sensor.streams);
    }

    #[test]
    fn short_pieces_are_stored_through_a_common_cache() {
        let mut sensor = Sensor::of(Some(OWN), &LAYOUT);
        // They take more than five times as long as within a core's cache, now and then.
        let mut streamed = 0;
        for i in 0..GIB / 4096 {
            streamed += usize::from(sensor.streams);
            let ticks = if sensor.streams { 4 * 80 } else { 4 * (190 + i as u64 % 7 * 30) };
            sensor.stored += 4096;
            sensor.took(4096, ticks);
        }
        assert!(streamed < GIB / 4096 / 50, "{streamed} pieces");
    }

    #[test]
    fn a_change_is_noticed() {
        let mut sensor = Sensor::of(Some(OWN), &LAYOUT);
        for _ in 0..3 {
            send(&mut sensor, 2 * LAP, APART, 0, SELDOM);
            assert!(sensor.streams, "cores were parted");
            let most = (LOOK_EVERY_MOST * sensor.look_bytes) as usize;
            send(&mut sensor, 2 * most, NEAR, 0, SELDOM);
            assert!(!sensor.streams, "cores were joined");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "non-temporal stores are assembly")]
    fn streamed_bytes_are_those_of_the_source() {
        let source: Vec<u8> = (0..40_000u32).map(|i| (i % 251) as u8).collect();
        for len in [1, 63, 64, 65, 1024, 4095, 4096, 32_768, 39_990] {
            for offset in [0, 1, 8] {
                let mut lines = vec![[0u64; 8]; 640];
                let target = lines.as_mut_ptr().cast::<u8>();
                let target = target.wrapping_add(target.align_offset(RingLayout::LINE));
                // SAFETY: both are longer than `len`, and `target` is aligned to a line within its vector.
                let copy = unsafe {
                    stream(target, source.as_ptr().add(offset), len);
                    std::slice::from_raw_parts(target, len + 1)
                };
                assert_eq!(copy[..len], source[offset..offset + len]);
                assert_eq!(copy[len], 0, "nothing is written behind {len} bytes");
            }
        }
    }
}
