//! Counts of fetched and acknowledged events, so that no object is destroyed while an event about it is in
//! use.

use crate::sync::AtomicU32;
use std::{sync::atomic::Ordering::SeqCst, thread, time::Duration};

/// Events of an object: how many were fetched and how many acknowledged.
#[derive(Debug, Default)]
pub(super) struct EventAcks {
    fetched: AtomicU32,
    acknowledged: AtomicU32,
}

impl EventAcks {
    pub(super) fn fetch(&self) {
        self.fetched.fetch_add(1, SeqCst);
    }

    pub(super) fn acknowledge(&self, count: u32) {
        self.acknowledged.fetch_add(count, SeqCst);
    }

    /// Waits until all fetched events are acknowledged, for ever if need be, like libibverbs.
    ///
    /// The caller destroys the object after this, and has made sure that no more events are fetched.
    pub(super) fn wait(&self) {
        let mut turns = 0u32;
        while self.fetched.load(SeqCst) != self.acknowledged.load(SeqCst) {
            turns += 1;
            if turns < 1000 { thread::yield_now() } else { thread::sleep(Duration::from_millis(1)) }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_with_the_last_acknowledgement() {
        let acks = EventAcks::default();
        acks.wait();
        acks.fetch();
        acks.fetch();
        acks.acknowledge(1);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| acks.wait());
            assert!(!waiting.is_finished());
            acks.acknowledge(1);
        });
    }
}
