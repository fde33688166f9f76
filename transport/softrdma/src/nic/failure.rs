//! Queue pairs that an executing request has failed, until the locks are free under which they are flushed.

use super::qp::QpRef;
use crate::shm::Owner;
use verbs_sys::EventType;

/// Failures that are applied once the lock of a send queue is free again.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// The event of the queue pair's own failure; `None` inside for a failure without an event.
    pub(super) own: Option<Option<EventType>>,
    /// The peer that has failed: its process, its index there, and the event.
    pub(super) peer: Option<(Owner, u32, EventType)>,
}

impl Failures {
    /// Notes that the peer has failed.
    pub(super) fn fail_peer(&mut self, peer: QpRef<'_>, event: EventType) {
        self.peer = Some((peer.view.owner, peer.index(), event));
    }
}
