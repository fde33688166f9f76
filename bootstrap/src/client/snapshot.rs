//! Requests for snapshots of a job, from any thread of a rank.

use super::{
    channel::Channel,
    locked,
    snapshot_requests::{SnapshotPurpose, SnapshotReply},
};
use std::{
    sync::{Arc, Mutex, Weak},
    thread,
    time::{Duration, Instant},
};

/// Longest time for which a waiting requester keeps other threads from the connection.
const TURN: Duration = Duration::from_millis(10);

/// The means to ask for snapshots of the job of a connection, while that is open.
#[derive(Clone, Debug)]
pub struct SnapshotRequester {
    channel: Weak<Mutex<Channel>>,
    purpose: SnapshotPurpose,
}

impl SnapshotRequester {
    pub(super) fn new(channel: &Arc<Mutex<Channel>>) -> SnapshotRequester {
        SnapshotRequester { channel: Arc::downgrade(channel), purpose: SnapshotPurpose::Report }
    }

    /// Returns a requester for metrics. One thread of the rank may wait for its replies while another one
    /// waits for those of a report.
    #[must_use]
    pub fn for_metrics(&self) -> SnapshotRequester {
        SnapshotRequester { purpose: SnapshotPurpose::Metrics, ..self.clone() }
    }

    /// Asks for a snapshot. With `claim` the reply is one only if no other rank has asked so within the last
    /// seconds. Only one thread of the rank may wait for replies of one purpose at a time.
    pub fn request(&self, claim: bool) {
        if let Some(channel) = self.channel.upgrade() {
            locked(&channel).request_snapshot(self.purpose, claim);
        }
    }

    /// Waits for the reply until the deadline.
    #[must_use]
    pub fn wait(&self, deadline: Instant) -> Option<SnapshotReply> {
        loop {
            let Some(channel) = self.channel.upgrade() else { return Some(SnapshotReply::ServerGone) };
            let left = deadline.saturating_duration_since(Instant::now());
            let mut open = locked(&channel);
            open.read_ahead(left.min(TURN));
            if let Some(requests) = open.take_requests() {
                requests.answer().iter().for_each(|answer| open.post(answer));
            }
            match open.take_snapshot(self.purpose) {
                None if left.is_zero() => return None,
                None => {}
                reply => return reply,
            }
            drop(open);
            // Locks are not fair; the status thread may wait for this one.
            thread::yield_now();
        }
    }
}
