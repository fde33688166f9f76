//! Counts the calls of this process that are in progress, of all groups and messages.
//!
//! A leaving rank waits until it makes no call, and notices when it has made none for a while
//! ([`crate::leave`]).

use crate::turn;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire},
};

/// Counters shared by everything that makes calls.
#[derive(Debug)]
pub(crate) struct Activity {
    begun: AtomicU64,
    ended: AtomicU64,
    /// Whether the thread of a call shares its core with the thread that queued it.
    shares_core: bool,
}

/// A call in progress, until it is dropped.
#[derive(Debug)]
pub(crate) struct CallInProgress<'a>(&'a Activity);

impl Activity {
    /// Returns counters without a call. `shares_core` says whether the thread of a call shares its core with
    /// the thread that queued it.
    pub(crate) fn new(shares_core: bool) -> Arc<Activity> {
        Arc::new(Activity { begun: AtomicU64::new(0), ended: AtomicU64::new(0), shares_core })
    }

    /// Counts a call from now until the returned value is dropped.
    #[inline]
    pub(crate) fn begin(&self) -> CallInProgress<'_> {
        self.begun.fetch_add(1, AcqRel);
        if self.shares_core {
            turn::give_way();
        }
        CallInProgress(self)
    }

    /// Returns the number of calls that have begun and ended; `None` while one is in progress.
    pub(crate) fn ended_calls(&self) -> Option<u64> {
        // A call that ends between the two reads counts as in progress.
        let ended = self.ended.load(Acquire);
        (self.begun.load(Acquire) == ended).then_some(ended)
    }
}

impl Drop for CallInProgress<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, AcqRel);
        if self.0.shares_core {
            turn::note_end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_counts_as_ended_once_it_is_dropped() {
        let activity = Activity::new(true);
        assert_eq!(activity.ended_calls(), Some(0));
        let (first, second) = (activity.begin(), activity.begin());
        drop(first);
        assert_eq!(activity.ended_calls(), None);
        drop(second);
        assert_eq!(activity.ended_calls(), Some(2));
    }
}
