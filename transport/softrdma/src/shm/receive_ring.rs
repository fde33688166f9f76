//! The slots of a receive queue's ring.

use super::{
    complete::QueueKind,
    process::View,
    records::{RecvSlot, RqRecord, Sge},
};
use std::sync::atomic::Ordering::Relaxed;

impl RqRecord {
    pub(crate) fn kind(&self) -> QueueKind {
        if self.producer.is_shared.load(Relaxed) == 0 { QueueKind::Receive } else { QueueKind::SharedReceive }
    }

    /// Returns the slot of a receive, and its first scatter element.
    pub(crate) fn slot(&self, view: &View, number: u64) -> Option<(*mut RecvSlot, *mut Sge)> {
        let stride = self.producer.stride.load(Relaxed);
        let at = (number & self.producer.mask.load(Relaxed)).checked_mul(stride)?;
        let offset = self.producer.ring.load(Relaxed).checked_add(at)?;
        let room = stride.checked_sub(size_of::<RecvSlot>() as u64)?;
        view.range().bytes(offset, stride as usize)?;
        let slot = view.range().at::<RecvSlot>(offset)?;
        (room as usize / size_of::<Sge>() > 0).then(|| (slot, slot.wrapping_add(1).cast::<Sge>()))
    }

    /// Returns the scatter elements that a slot has room for.
    pub(crate) fn max_sges(&self) -> u64 {
        self.producer.stride.load(Relaxed).saturating_sub(size_of::<RecvSlot>() as u64)
            / size_of::<Sge>() as u64
    }

    /// Returns the time at which a completion that is due at `due` may be seen.
    ///
    /// Completions of a queue pair's own receives, flushed ones included, are seen in the order of the
    /// receives.
    #[inline]
    pub(crate) fn in_order(&self, due: u64) -> u64 {
        let last = &self.consumer.last_due;
        if self.kind() == QueueKind::SharedReceive {
            return due;
        }
        if due > last.load(Relaxed) {
            last.store(due, Relaxed);
        }
        last.load(Relaxed)
    }
}
