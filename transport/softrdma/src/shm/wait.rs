//! The agreement between a sender that finds no receive and a receiver that posts one, on which of them
//! executes the request.
//!
//! The sender notes that it waits and looks again; the receiver posts and then looks for waiting senders.
//! In either order, at least one of the two sees the other. If both do, the lock of the send queue
//! decides.

use super::records::{RqRecord, Signals};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

impl RqRecord {
    /// Returns the number of the next receive, if one is posted. The caller holds the consumer's lock.
    #[inline]
    pub(crate) fn next_receive(&self) -> Option<u64> {
        let head = self.consumer.head.load(Relaxed);
        if head == self.consumer.seen_tail.load(Relaxed) {
            let tail = self.producer.tail.load(SeqCst);
            self.consumer.seen_tail.store(tail, Relaxed);
            if head == tail {
                return None;
            }
        }
        Some(head)
    }

    /// Shows receives up to `tail` to senders. The receiver looks for waiting senders after this.
    #[inline]
    pub(crate) fn publish(&self, tail: u64) {
        self.producer.tail.store(tail, SeqCst);
    }

    /// Whether the peer of any queue pair waits for a receive of this shared queue. Clears the note.
    #[inline]
    pub(crate) fn take_waiting(&self) -> bool {
        self.producer.peers_wait.load(SeqCst) != 0 && self.producer.peers_wait.swap(0, SeqCst) != 0
    }
}

impl Signals {
    /// Notes that a sender has found no receive. The sender looks once more after this.
    pub(crate) fn note_waiting(&self, queue: Option<&RqRecord>) {
        self.peer_waits.store(1, SeqCst);
        if let Some(queue) = queue {
            queue.producer.peers_wait.store(1, SeqCst);
        }
    }

    /// Whether the peer waits for a receive or a state of this queue pair. Clears the note.
    #[inline]
    pub(crate) fn take_waiting(&self) -> bool {
        self.peer_waits.load(SeqCst) != 0 && self.peer_waits.swap(0, SeqCst) != 0
    }
}
