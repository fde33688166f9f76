//! Sets of offsets: the free parts of a slab, and the parts that were in use before.
//!
//! This module computes with numbers only and accesses no memory.

use std::{collections::BTreeMap, ops::Range};

/// A set of offsets, as disjoint ranges that are not adjacent: start to length.
#[derive(Debug, Default)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Returns the set of all offsets below `len`.
    pub(super) fn up_to(len: u64) -> Ranges {
        let mut ranges = Ranges::default();
        ranges.insert(0, len);
        ranges
    }

    /// Returns the number of offsets in the set.
    pub(super) fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Adds a range that is disjoint from the set, and merges it with its neighbors.
    pub(super) fn insert(&mut self, mut start: u64, mut len: u64) {
        if let Some((&before, &before_len)) = self.0.range(..start).next_back()
            && before + before_len == start
        {
            self.0.remove(&before);
            (start, len) = (before, before_len + len);
        }
        if let Some(after_len) = self.0.remove(&(start + len)) {
            len += after_len;
        }
        if len > 0 {
            self.0.insert(start, len);
        }
    }

    /// Removes `wanted` consecutive offsets from the first range that has room for them, and returns the
    /// first of them.
    ///
    /// `fit` returns the first valid start at or after the given offset.
    pub(super) fn take(&mut self, wanted: u64, fit: impl Fn(u64) -> u64) -> Option<u64> {
        let (start, len, at) = self.0.iter().find_map(|(&start, &len)| {
            let at = fit(start);
            (at - start <= len && len - (at - start) >= wanted).then_some((start, len, at))
        })?;
        self.0.remove(&start);
        self.insert(start, at - start);
        self.insert(at + wanted, start + len - at - wanted);
        Some(at)
    }

    /// Adds a range to the set. Returns the parts of it that were in the set before.
    pub(super) fn cover(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        let first = self.0.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let touched = self.0.range(first..range.end).map(|(start, len)| *start..start + len);
        let common: Vec<Range<u64>> = touched
            .map(|old| old.start.max(range.start)..old.end.min(range.end))
            .filter(|common| common.start < common.end)
            .collect();
        let mut from = range.start;
        for known in common.iter().chain(std::iter::once(&(range.end..range.end))) {
            self.insert(from, known.start - from);
            from = known.end;
        }
        common
    }

    /// Removes a range, which lies in one range of the set.
    pub(super) fn remove(&mut self, range: &Range<u64>) {
        let Some((&start, &len)) = self.0.range(..=range.start).next_back() else { return };
        self.0.remove(&start);
        self.insert(start, range.start - start);
        self.insert(range.end, start + len - range.end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_joins_its_neighbours() {
        let mut free = Ranges::up_to(10);
        let taken: Vec<_> = (0..5).map(|_| free.take(2, |at| at)).collect();
        assert_eq!(taken, [0, 2, 4, 6, 8].map(Some));
        assert_eq!((free.take(1, |at| at), free.total()), (None, 0));
        free.insert(0, 2);
        free.insert(4, 2);
        assert_eq!(free.take(4, |at| at), None);
        free.insert(2, 2);
        assert_eq!(free.take(6, |at| at), Some(0));
    }

    #[test]
    fn what_is_left_out_before_a_place_that_fits_stays_free() {
        let mut free = Ranges::up_to(20);
        let even = |at: u64| at.next_multiple_of(8);
        assert_eq!(free.take(3, even), Some(0));
        assert_eq!(free.take(3, even), Some(8));
        assert_eq!(free.take(5, even), None, "from 16 on there are 4");
        assert_eq!((free.total(), free.take(5, |at| at)), (14, Some(3)));
    }

    #[test]
    fn what_is_removed_leaves_the_rest_of_its_range() {
        let mut used = Ranges::up_to(10);
        used.remove(&(4..6));
        assert_eq!((used.total(), used.cover(&(3..7))), (8, vec![3..4, 6..7]));
        used.remove(&(0..10));
        assert_eq!(used.total(), 0);
    }

    #[test]
    fn covering_tells_what_was_covered_already() {
        let mut used = Ranges::default();
        assert_eq!(used.cover(&(4..8)), []);
        assert_eq!(used.cover(&(12..16)), []);
        assert_eq!(used.cover(&(6..14)), [6..8, 12..14]);
        assert_eq!(used.cover(&(0..5)), std::iter::once(4..5).collect::<Vec<_>>());
        assert_eq!(used.cover(&(15..20)), std::iter::once(15..16).collect::<Vec<_>>());
        assert_eq!((used.cover(&(20..30)), used.total()), (vec![], 30));
    }
}
