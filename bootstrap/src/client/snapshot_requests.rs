//! Requests of a rank for snapshots of its job, by purpose, and their replies.
//!
//! The server replies to each request with a message of its own. Snapshots arrive in the order of the
//! requests; only a claim can be refused. This module sends and receives nothing.

use crate::snapshot::Snapshot;
use std::collections::VecDeque;

/// Reply to a request for a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotReply {
    /// The snapshot.
    Snapshot(Snapshot),
    /// This rank has asked for it before, and reports.
    ClaimedBy(u32),
    /// The connection has ended.
    ServerGone,
}

/// Requests of this rank for snapshots, and their replies.
#[derive(Debug, Default)]
pub(super) struct SnapshotRequests {
    /// Purposes of the requests without a reply, the oldest first.
    awaited: VecDeque<SnapshotPurpose>,
    /// Reply for each purpose that no thread has taken.
    replies: [Option<SnapshotReply>; 2],
}

/// Purpose of a snapshot. Each has replies of its own, so that one thread may wait for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SnapshotPurpose {
    /// The report of a hang.
    Report,
    /// Metrics of the ranks.
    Metrics,
}

impl SnapshotRequests {
    pub(super) fn add(&mut self, purpose: SnapshotPurpose) {
        self.replies[purpose as usize] = None;
        self.awaited.push_back(purpose);
    }

    /// Records a reply; one that was not asked for is ignored.
    pub(super) fn record(&mut self, reply: SnapshotReply) {
        let is_its = |purpose: &SnapshotPurpose| match reply {
            SnapshotReply::ClaimedBy(_) => *purpose == SnapshotPurpose::Report,
            _ => true,
        };
        if let Some(purpose) =
            self.awaited.iter().position(is_its).and_then(|index| self.awaited.remove(index))
        {
            self.replies[purpose as usize] = Some(reply);
        }
    }

    /// Takes the reply for a purpose, if it has arrived.
    pub(super) fn take(&mut self, purpose: SnapshotPurpose) -> Option<SnapshotReply> {
        self.replies[purpose as usize].take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::JobMembers;

    fn snapshot(id: u64) -> SnapshotReply {
        let members = JobMembers { id, job: String::new(), size: 0, rendezvous_pid: 0, ranks: Vec::new() };
        SnapshotReply::Snapshot(Snapshot { members, ranks: Vec::new() })
    }

    #[test]
    fn snapshots_go_to_their_requests_in_order_and_a_refused_claim_to_the_report() {
        let (report, metrics) = (SnapshotPurpose::Report, SnapshotPurpose::Metrics);
        let mut requests = SnapshotRequests::default();
        requests.record(snapshot(1));
        assert_eq!(requests.replies, [None, None], "nothing was asked for");
        [metrics, report].into_iter().for_each(|purpose| requests.add(purpose));
        requests.record(snapshot(2));
        assert_eq!(requests.replies, [None, Some(snapshot(2))]);
        requests.record(snapshot(3));
        assert_eq!(requests.replies, [Some(snapshot(3)), Some(snapshot(2))]);
        [metrics, report].into_iter().for_each(|purpose| requests.add(purpose));
        requests.record(SnapshotReply::ClaimedBy(7));
        assert_eq!(requests.replies, [Some(SnapshotReply::ClaimedBy(7)), None]);
        requests.record(snapshot(4));
        assert_eq!(requests.replies, [Some(SnapshotReply::ClaimedBy(7)), Some(snapshot(4))]);
    }
}
