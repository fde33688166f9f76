//! How a sender that finds no receive, and a receiver that posts one, agree on who of them carries the message out.
//!
//! The sender says that it waits and looks again; the receiver posts and looks for waiting senders then. Whatever
//! the order, one of the two sees the other; both may, and then the lock of the send queue decides.

use super::records::{RqRecord, Signals};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

impl RqRecord {
    /// The number of the next receive, if one is posted. Under the consumer's lock.
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

    /// Shows receives up to `tail` to those who fill them. The producer looks for waiting senders then.
    #[inline]
    pub(crate) fn publish(&self, tail: u64) {
        self.producer.tail.store(tail, SeqCst);
    }

    /// Does any queue pair's peer wait for a receive of this shared queue? Forgets it.
    #[inline]
    pub(crate) fn take_waiting(&self) -> bool {
        self.producer.peers_wait.load(SeqCst) != 0 && self.producer.peers_wait.swap(0, SeqCst) != 0
    }
}

impl Signals {
    /// A sender has found no receive, and looks once more after this.
    pub(crate) fn note_waiting(&self, queue: Option<&RqRecord>) {
        self.peer_waits.store(1, SeqCst);
        if let Some(queue) = queue {
            queue.producer.peers_wait.store(1, SeqCst);
        }
    }

    /// Does the peer wait for a receive or a state of ours? Forgets it.
    #[inline]
    pub(crate) fn take_waiting(&self) -> bool {
        self.peer_waits.load(SeqCst) != 0 && self.peer_waits.swap(0, SeqCst) != 0
    }
}
