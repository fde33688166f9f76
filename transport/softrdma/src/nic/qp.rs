//! References to queue pairs, of this process or of a peer.

use super::qp_number;
use crate::{
    clock::coarse_now,
    shm::{QpRecord, View},
};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use verbs_sys::QpState;

/// A queue pair: the view of the process that owns it, and its record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpRef<'a> {
    pub(crate) view: &'a View,
    pub(crate) record: &'a QpRecord,
    qpn: u32,
}

impl<'a> QpRef<'a> {
    pub(crate) fn new(view: &'a View, record: &'a QpRecord) -> QpRef<'a> {
        QpRef { view, record, qpn: record.fixed.qpn.load(Relaxed) }
    }

    /// Returns the queue pair's number when the reference was made; zero for an unused record.
    pub(crate) fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Whether the record still belongs to this queue pair. The caller must hold a lock of the queue pair,
    /// which its owner takes before it destroys the queue pair.
    pub(super) fn is_current(&self) -> bool {
        self.qpn != 0 && self.record.fixed.qpn.load(Relaxed) == self.qpn
    }

    pub(crate) fn state(&self) -> QpState {
        QpState(self.record.fixed.state.load(Acquire))
    }

    /// Returns the record's index in the table of its process.
    pub(crate) fn index(&self) -> u32 {
        qp_number::index(self.qpn)
    }

    /// Notes that a message passes, or that the queue pair becomes able to pass one.
    pub(crate) fn note_use(&self) {
        self.record.send.last_used.store(coarse_now(), Relaxed);
    }

    /// Returns the time at which a completion that is due at `due` may be seen.
    ///
    /// Completions of a queue pair, failed ones included, are seen in the order of its requests.
    #[inline]
    pub(super) fn in_order(&self, due: u64) -> u64 {
        let last = &self.record.send.last_due;
        if due > last.load(Relaxed) {
            last.store(due, Relaxed);
        }
        last.load(Relaxed)
    }

    /// Returns how long the sender waits for an acknowledgement, in nanoseconds; `None` for ever.
    pub(super) fn ack_timeout(&self) -> Option<u64> {
        match self.record.signals.timeout.load(Relaxed) & 31 {
            0 => None,
            exponent => Some(4096 << exponent),
        }
    }
}
