//! Counts of ended calls by kind, where metrics are on.
//!
//! The thread that makes a communicator's calls is the only writer, so a count is a load and a store. Readers
//! may see the counts of a call that has just ended in part.

use crate::call::CallRecord;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Nanoseconds after which the counters of links are published again.
const PUBLICATION_INTERVAL: u64 = 10_000_000;

/// Counts of calls of one communicator, by kind.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    kinds: [Counts; CallRecord::KINDS],
    /// Time of the latest publication of other counters, in nanoseconds of the recorder's clock.
    published: AtomicU64,
}

/// Counts of one kind of calls.
#[derive(Debug, Default)]
struct Counts {
    done: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
    nanos: AtomicU64,
}

/// Counts of one kind of calls at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KindCounts {
    pub(crate) kind: usize,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    /// Bytes of the larger of input and output, of calls that were carried out.
    pub(crate) bytes: u64,
    /// Nanoseconds in calls that were carried out.
    pub(crate) nanos: u64,
}

/// Adds to a counter that only this thread writes.
fn add(counter: &AtomicU64, value: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(value), Relaxed);
}

impl Tally {
    /// Counts a call of a kind ([`CallRecord::kind_code`]).
    pub(crate) fn add(&self, kind: usize, bytes: u64, nanos: u64, is_done: bool) {
        let counts = &self.kinds[kind];
        if !is_done {
            return add(&counts.failed, 1);
        }
        add(&counts.bytes, bytes);
        add(&counts.nanos, nanos);
        add(&counts.done, 1);
    }

    /// Whether the counters of links were published long before this time, in nanoseconds.
    pub(crate) fn is_publication_due(&self, now: u64) -> bool {
        let published = self.published.load(Relaxed);
        let is_due = published == 0 || now.saturating_sub(published) >= PUBLICATION_INTERVAL;
        if is_due {
            self.published.store(now, Relaxed);
        }
        is_due
    }

    /// Returns the counts of the kinds that had calls.
    pub(crate) fn counts(&self) -> impl Iterator<Item = KindCounts> + '_ {
        let read = |(kind, counts): (usize, &Counts)| {
            let [done, failed, bytes, nanos] =
                [&counts.done, &counts.failed, &counts.bytes, &counts.nanos].map(|count| count.load(Relaxed));
            KindCounts { kind, done, failed, bytes, nanos }
        };
        self.kinds.iter().enumerate().map(read).filter(|counts| counts.done + counts.failed > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_kind_and_failed_ones_apart() {
        let tally = Tally::default();
        tally.add(0, 100, 7, true);
        tally.add(0, 20, 3, true);
        tally.add(2, 5, 5, false);
        let counts: Vec<KindCounts> = tally.counts().collect();
        assert_eq!(
            counts,
            [
                KindCounts { kind: 0, done: 2, failed: 0, bytes: 120, nanos: 10 },
                KindCounts { kind: 2, done: 0, failed: 1, bytes: 0, nanos: 0 },
            ]
        );
    }

    #[test]
    fn counters_of_links_are_published_at_once_and_then_at_intervals() {
        let tally = Tally::default();
        let due = |now| tally.is_publication_due(now);
        assert_eq!(
            [due(5), due(6), due(5 + PUBLICATION_INTERVAL), due(6 + PUBLICATION_INTERVAL)],
            [true, false, true, false]
        );
    }
}
