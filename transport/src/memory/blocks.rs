//! The state of a slab's memory: which offsets are free, and which pages hold bytes of earlier buffers.
//!
//! This module computes with numbers only and accesses no memory: the slab zeroes, reserves and gives back
//! pages. Offsets are in bytes.

use super::ranges::Ranges;
use std::ops::Range;

/// Sets of offsets in a slab.
#[derive(Debug)]
pub(super) struct Blocks {
    free: Ranges,
    /// Ranges with pages that may hold bytes of buffers: those of buffers, and kept ones.
    used: Ranges,
    /// Bytes of `free` that are in `used`, too: kept ones.
    kept: u64,
    /// Most bytes that `kept` may be.
    limit: u64,
}

impl Blocks {
    /// Returns the state of a slab of `total` bytes without buffers, which keeps the pages of `limit` bytes
    /// of freed ones.
    pub(super) fn new(total: u64, limit: u64) -> Blocks {
        Blocks { free: Ranges::up_to(total), used: Ranges::default(), kept: 0, limit }
    }

    /// Returns the number of free bytes.
    pub(super) fn free_bytes(&self) -> u64 {
        self.free.total()
    }

    /// Takes `wanted` bytes from the first free range that has room for them. Returns their offset, and the
    /// ranges among them with kept pages.
    ///
    /// `fit` returns the first valid start at or after the given offset.
    pub(super) fn take(&mut self, wanted: u64, fit: impl Fn(u64) -> u64) -> Option<(u64, Vec<Range<u64>>)> {
        let offset = self.free.take(wanted, fit)?;
        let kept = self.used.cover(&(offset..offset + wanted));
        self.kept -= kept.iter().map(|range| range.end - range.start).sum::<u64>();
        Some((offset, kept))
    }

    /// Makes a taken range free and keeps its pages. Returns false, without an effect, beyond the limit.
    pub(super) fn keep(&mut self, offset: u64, len: u64) -> bool {
        let keeps = self.kept.checked_add(len).is_some_and(|kept| kept <= self.limit);
        if keeps {
            self.kept += len;
            self.free.insert(offset, len);
        }
        keeps
    }

    /// Makes a taken range free whose pages were given back.
    pub(super) fn forget(&mut self, offset: u64, len: u64) {
        self.used.remove(&(offset..offset + len));
        self.free.insert(offset, len);
    }

    /// Keeps the pages of a slab of the same memory, whose buffers are all freed, whatever the limit.
    pub(super) fn keep_all_of(&mut self, former: &mut Blocks) {
        self.used = std::mem::take(&mut former.used);
        self.kept = self.used.total();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(blocks: &mut Blocks, wanted: u64) -> (u64, Vec<Range<u64>>) {
        blocks.take(wanted, |at| at).expect("room")
    }

    #[test]
    fn kept_pages_are_told_to_the_next_buffer_and_count_up_to_the_limit() {
        let mut blocks = Blocks::new(10, 4);
        assert_eq!(take(&mut blocks, 6), (0, vec![]));
        assert!(!blocks.keep(0, 6), "beyond the limit");
        blocks.forget(0, 6);
        assert_eq!((take(&mut blocks, 3), take(&mut blocks, 3)), ((0, vec![]), (3, vec![])));
        assert!(blocks.keep(0, 3));
        assert!(!blocks.keep(3, 3), "more than 4 in all");
        blocks.forget(3, 3);
        assert_eq!((take(&mut blocks, 5), blocks.free_bytes()), ((0, std::iter::once(0..3).collect()), 5));
        blocks.forget(0, 5);
        assert_eq!(take(&mut blocks, 10), (0, vec![]));
    }

    #[test]
    fn what_a_former_slab_has_kept_is_told() {
        let (mut former, mut blocks) = (Blocks::new(10, u64::MAX), Blocks::new(10, 2));
        let (offset, _) = take(&mut former, 4);
        assert!(former.keep(offset, 4));
        blocks.keep_all_of(&mut former);
        assert_eq!(take(&mut blocks, 10), (0, std::iter::once(0..4).collect()));
    }
}
