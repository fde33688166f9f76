//! The time that pieces take to be stored and to be read, by how they are stored.
//!
//! A sender asks for the time of a read by a mark in the cell ([`Way`]). The receiver publishes its
//! [`Costs`] beside its counters, and [`super::stores`] compares.
//!
//! # Safety
//! The only unsafe code reads the processor's clock.

use std::sync::OnceLock;

/// How a piece is stored into the staging area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through the caches.
    Cached,
    /// Past the caches, to memory.
    Streamed,
}

impl Way {
    /// Returns the mark of a cell: 0 where the time of the read is not asked for.
    #[inline]
    pub(super) fn mark(way: Option<Way>) -> u64 {
        way.map_or(0, |way| 1 + way as u64)
    }

    /// Returns what a mark says.
    #[inline]
    pub(super) fn of_mark(mark: u64) -> Option<Way> {
        match mark {
            1 => Some(Way::Cached),
            2 => Some(Way::Streamed),
            _ => None,
        }
    }
}

/// A read whose time is taken.
#[derive(Debug)]
pub(crate) struct TimedRead {
    way: Way,
    began: u64,
}

impl TimedRead {
    /// Begins to read a piece that was stored in this way.
    #[inline]
    pub(crate) fn begin(way: Way) -> TimedRead {
        TimedRead { way, began: ticks() }
    }

    /// Adds the time since the beginning, for a piece of `len` bytes.
    #[inline]
    pub(super) fn end(self, len: usize, costs: &mut Costs) {
        costs.add(self.way, len, ticks().wrapping_sub(self.began));
    }
}

/// Estimated medians of the ticks that a KiB takes; 0 where nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Costs {
    cached: f32,
    streamed: f32,
}

impl Costs {
    /// Returns costs that begin at the same estimate.
    pub(super) fn starting_at(ticks_per_kib: f32) -> Costs {
        Costs { cached: ticks_per_kib, streamed: ticks_per_kib }
    }

    /// Adds the ticks that a piece of `len` bytes took.
    pub(super) fn add(&mut self, way: Way, len: usize, ticks: u64) {
        let sample = (ticks as f32 * 1024.0 / len as f32).max(1.0);
        let cost = match way {
            Way::Cached => &mut self.cached,
            Way::Streamed => &mut self.streamed,
        };
        // Steps of a fixed ratio lead to the median, which a rank that is preempted in a copy does not move.
        // The first sample may be such a copy.
        *cost = match *cost {
            0.0 => sample,
            cost if sample > cost => cost * 1.0625,
            cost if sample < cost / 4.0 => cost / 2.0,
            cost => cost / 1.0625,
        };
    }

    /// Returns the ticks that a KiB takes, if known.
    pub(super) fn of(&self, way: Way) -> Option<f32> {
        let cost = match way {
            Way::Cached => self.cached,
            Way::Streamed => self.streamed,
        };
        (cost > 0.0).then_some(cost)
    }

    /// Returns the costs as a word of shared memory.
    pub(super) fn to_word(self) -> u64 {
        u64::from(self.cached.to_bits()) | u64::from(self.streamed.to_bits()) << 32
    }

    /// Returns the costs of a word. What cannot be a cost counts as unknown.
    pub(super) fn from_word(word: u64) -> Costs {
        let cost = |bits: u64| Some(f32::from_bits(bits as u32)).filter(|cost| cost.is_finite());
        let cost = |bits| cost(bits).unwrap_or_default().max(0.0);
        Costs { cached: cost(word), streamed: cost(word >> 32) }
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
pub(super) fn ticks_per_kib() -> Option<f32> {
    const KIB: usize = 8;
    /// Words between the arrays, so that their lines are at different places of a page. A measurement was
    /// seen to take 4.5 times as long as the others while the arrays lay side by side.
    const APART: usize = 2048 / 8;
    static OWN: OnceLock<f32> = OnceLock::new();
    if !cfg!(all(target_arch = "x86_64", not(miri), not(loom))) {
        return None;
    }
    Some(*OWN.get_or_init(|| {
        let mut words = [1u64; 2 * KIB * 128 + APART];
        let (source, target) = words.split_at_mut(KIB * 128 + APART);
        let least = (0..64).map(|_| {
            let start = ticks();
            std::hint::black_box(&mut *target).copy_from_slice(std::hint::black_box(&source[..KIB * 128]));
            ticks().wrapping_sub(start)
        });
        least.min().unwrap_or_default().max(1) as f32 / KIB as f32
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_leads_to_the_median_also_from_an_interrupted_first_piece() {
        let mut costs = Costs::default();
        assert_eq!(costs.of(Way::Cached), None);
        costs.add(Way::Cached, 4096, 10_000_000);
        for i in 0..24 {
            let interruption = if i % 5 == 0 { 1_000_000 } else { 0 };
            costs.add(Way::Cached, 4096, 400 + interruption);
        }
        let cached = costs.of(Way::Cached).unwrap();
        assert!((50.0..400.0).contains(&cached), "{cached} ticks per KiB");
        assert_eq!(costs.of(Way::Streamed), None, "the other way is not known yet");
    }

    #[test]
    fn costs_pass_through_a_word_and_impossible_ones_are_unknown() {
        let costs = Costs { cached: 105.5, streamed: 0.0 };
        assert_eq!(Costs::from_word(costs.to_word()), costs);
        assert_eq!(Costs::from_word(0), Costs::default());
        for impossible in [f32::NAN, f32::INFINITY, -1.0] {
            let costs = Costs::starting_at(impossible);
            assert_eq!(Costs::from_word(costs.to_word()), Costs::default());
        }
    }

    #[test]
    fn a_mark_says_how_the_piece_was_stored() {
        for way in [None, Some(Way::Cached), Some(Way::Streamed)] {
            assert_eq!(Way::of_mark(Way::mark(way)), way);
        }
        assert_eq!(Way::of_mark(200), None);
    }
}
