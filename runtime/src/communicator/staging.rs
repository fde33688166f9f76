//! Sizes of the staging areas of shared memory, by the number of ranks and the caches of this machine.
//!
//! A sender writes its pieces into a staging area, lap by lap, and the receiver reads them. The caches that a
//! lap fits into decide what a line costs:
//!
//! - a lap in the cache of one core: every line that is written is taken out of the other core's cache, and
//!   every line that is read out of the writer's;
//! - a longer lap, in the cache that the cores share: lines have moved there when they are used again, which
//!   is several times as fast;
//! - laps of all pairs of ranks that exceed that cache: lines come from memory.
//!
//! `all_reduce` of 2 ranks on two cores of an AMD EPYC (1 MiB of second-level cache each, 32 MiB shared),
//! shortest times in microseconds, by bytes of a lap:
//!
//! | bytes | 256 KiB | 4 MiB | 8 MiB | 16 MiB | 32 MiB |
//! |---|---:|---:|---:|---:|---:|
//! | 16 KiB | 2.4 | 1.2 | 1.4 | 2.3 | 2.4 |
//! | 256 KiB | 34 | 15 | 17 | 25 | 31 |
//! | 4 MiB | 810 | 330 | 470 | 700 | 710 |
//!
//! On 4 ranks that share these cores, laps of 512 KiB gain 5 to 10 % from 1 MiB on. On an Intel Xeon (2 MiB
//! of second-level cache, 260 MiB shared) laps of 4 MiB take 0.88 to 0.98 of the time of those of 8 MiB.
//! Pieces are stored past the caches, in laps of their own, where the two cores share no cache
//! (`transport::ring`).
//!
//! All ranks of a job agree on the size of the areas, but not on the laps: machines differ.

use crate::processors::Caches;

/// Bytes of the staging areas of a rank together, at most, where they are longer than [`LEAST`].
const TOGETHER: usize = 64 << 20;
/// Bytes of a staging area, at least and at most.
const LEAST: usize = 256 << 10;
const MOST: usize = 8 << 20;
/// Bytes of a lap at most. Two of them, one in each direction, have 2,048 pages of 4 KiB, about as many as
/// the translation buffers of a core hold.
const LONGEST_LAP: usize = 4 << 20;
/// Buffers of a ring at most. Twice as many of half the length took 1.0 to 1.1 times as long, on 2 ranks.
const MOST_BUFFERS: usize = 8;

/// Returns the bytes of the staging area of a pair of ranks in a direction, for a job of `ranks` ranks.
///
/// It depends on nothing else, since all ranks of a job must get the same size. Only laps take up memory.
pub(super) fn area_bytes(ranks: u32) -> usize {
    (TOGETHER / (ranks.max(1) as usize).next_power_of_two()).clamp(LEAST, MOST)
}

/// Returns the bytes of a lap in an area of `area_bytes`, for a job of `ranks` ranks.
pub(super) fn lap_bytes(area_bytes: usize, ranks: u32) -> usize {
    Caches::here().map_or(LEAST, |caches| lap_for(caches, ranks)).min(area_bytes)
}

/// Returns the buffers that change hands, in a ring with a staging area of `area_bytes`: an eighth of it
/// together, two at least.
pub(super) fn buffers(area_bytes: usize, piece_bytes: usize) -> usize {
    (area_bytes / 8 / (2 * piece_bytes)).clamp(2, MOST_BUFFERS)
}

/// Whether senders fetch the lines of their next stores ahead, in laps of this length: on processors of
/// Intel, where a lap does not fit into a core's own caches ([`transport::ring`]).
pub(super) fn fetches(lap_bytes: usize) -> bool {
    transport::is_intel() && Caches::here().is_some_and(|caches| lap_bytes > caches.own)
}

/// Returns the bytes of a lap that these caches take best.
///
/// The laps of all pairs of ranks together take a quarter of the last level, and those of a pair in both
/// directions are eight times as long as the core's own caches at most.
fn lap_for(caches: &Caches, ranks: u32) -> usize {
    let ranks = ranks.max(2) as usize;
    let share = caches.last / 4 / (ranks * (ranks - 1));
    let lap = share.min(4 * caches.own).max(1);
    // The nearest power of two, by ratio.
    let below = 1 << lap.ilog2();
    let nearest = if lap * lap > 2 * below * below { 2 * below } else { below };
    nearest.clamp(LEAST, LONGEST_LAP)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn buffers_take_up_an_eighth_of_an_area_but_two_at_least_and_eight_at_most() {
        let of = |area_bytes| buffers(area_bytes, MIB / 32);
        assert_eq!([MIB / 4, MIB, 2 * MIB, 4 * MIB, 8 * MIB].map(of), [2, 2, 4, 8, 8]);
    }

    #[test]
    fn laps_are_longer_than_a_core_s_caches_and_fit_into_the_shared_one() {
        let epyc = Caches { own: MIB, last: 32 * MIB };
        assert_eq!([2, 4, 8, 64].map(|ranks| lap_for(&epyc, ranks)), [4 * MIB, MIB / 2, LEAST, LEAST]);
        let xeon = Caches { own: 2 * MIB, last: 480 * MIB };
        assert_eq!([2, 4, 16].map(|ranks| lap_for(&xeon, ranks)), [4 * MIB, 4 * MIB, MIB / 2]);
        let laptop = Caches { own: MIB / 4, last: 6 * MIB };
        assert_eq!([2, 4].map(|ranks| lap_for(&laptop, ranks)), [MIB, LEAST]);
    }

    #[test]
    fn areas_of_many_ranks_are_small_and_laps_fit_into_them() {
        assert_eq!(
            [1, 2, 4, 8, 9, 16, 256, 4096].map(area_bytes).map(|bytes| bytes >> 10),
            [8192, 8192, 8192, 8192, 4096, 4096, 256, 256]
        );
        assert_eq!(lap_bytes(LEAST, 2), LEAST);
    }
}
