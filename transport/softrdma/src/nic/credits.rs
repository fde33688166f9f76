//! Credits: queue slots that are free again because their completions were polled.

use crate::{
    shm::{QPS, RQS},
    sync::AtomicU64,
};
use std::{iter, sync::atomic::Ordering::Relaxed};

/// Freed slots of this process's send and receive queues, counted from the creation of each queue.
///
/// A slot is written again only once its completion was polled, as with hardware.
#[derive(Debug)]
pub(crate) struct Credits {
    sends: Box<[AtomicU64]>,
    receives: Box<[AtomicU64]>,
}

impl Credits {
    pub(super) fn new() -> Credits {
        let words = |count: u32| iter::repeat_with(AtomicU64::default).take(count as usize).collect();
        Credits { sends: words(QPS), receives: words(RQS) }
    }

    /// Returns the freed requests of the queue pair at an index.
    #[inline]
    pub(crate) fn freed_sends(&self, qp: u32) -> u64 {
        self.sends[qp as usize].load(Relaxed)
    }

    /// Sets the freed requests of a queue pair. A completion frees all requests before it, too.
    #[inline]
    pub(crate) fn set_freed_sends(&self, qp: u32, freed: u64) {
        self.sends[qp as usize].store(freed, Relaxed);
    }

    /// Returns the freed receives of the receive queue at an index.
    #[inline]
    pub(crate) fn freed_receives(&self, rq: u32) -> u64 {
        self.receives[rq as usize].load(Relaxed)
    }

    pub(crate) fn set_freed_receives(&self, rq: u32, freed: u64) {
        self.receives[rq as usize].store(freed, Relaxed);
    }

    /// Frees one receive. Ignores an index outside of the table.
    #[inline]
    pub(crate) fn free_receive(&self, rq: u32) {
        if let Some(word) = self.receives.get(rq as usize) {
            word.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn slots_are_counted_by_queue() {
        let credits = Credits::new();
        credits.set_freed_sends(3, 7);
        credits.free_receive(3);
        credits.free_receive(3);
        credits.free_receive(u32::MAX);
        assert_eq!((credits.freed_sends(3), credits.freed_receives(3)), (7, 2));
        assert_eq!((credits.freed_sends(2), credits.freed_receives(4)), (0, 0));
    }
}
