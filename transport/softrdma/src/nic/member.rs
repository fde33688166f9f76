//! This process as a member of a fabric: its shared files, its view of the fabric, and its timers.
//!
//! Every other part of the NIC works on a [`Member`]. The member executes nothing itself.

use super::{qp::QpRef, timer_queue::TimerQueue};
use crate::{
    control::Control,
    fabric_view::FabricView,
    shm::{Directory, Process, QPS, RobustGuard, RobustLock},
};
use rustix::io;
use std::sync::{Arc, atomic::Ordering::Relaxed};

/// This process as a member of a fabric.
#[derive(Debug)]
pub(crate) struct Member {
    /// The first field, because its drop ends the timer thread, which uses everything else.
    timers: TimerQueue,
    process: Process,
    fabric: Arc<FabricView>,
}

impl Member {
    /// Joins a fabric.
    pub(super) fn join(directory: Arc<Directory>, fabric: Arc<FabricView>) -> io::Result<Member> {
        let process = Process::join(directory, fabric.node as u32)?;
        let timers = TimerQueue::new(process.own_shared());
        Ok(Member { timers, process, fabric })
    }

    #[inline]
    pub(crate) fn timers(&self) -> &TimerQueue {
        &self.timers
    }

    #[inline]
    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    #[inline]
    pub(crate) fn fabric(&self) -> &FabricView {
        &self.fabric
    }

    /// Returns the fabric's control block: injected faults and counters.
    #[inline]
    pub(crate) fn control(&self) -> &Control {
        &self.process.directory.header().control
    }

    /// Returns the record of this process at `index`, used or not.
    #[inline]
    pub(crate) fn own_qp(&self, index: u32) -> Option<QpRef<'_>> {
        let view = self.process.own();
        Some(QpRef::new(view, view.qp(index)?))
    }

    /// Returns the queue pairs of this process.
    pub(super) fn own_qps(&self) -> impl Iterator<Item = QpRef<'_>> {
        (0..QPS).filter_map(|index| self.own_qp(index)).filter(|qp| qp.qpn() != 0)
    }

    /// Waits for a lock in shared memory, and takes it over from a dead process.
    #[inline]
    pub(super) fn lock<'a>(&self, lock: &'a RobustLock) -> RobustGuard<'a> {
        lock.lock(self.process.me, |owner| self.process.is_dead(owner))
    }

    /// Whether the node that a port belongs to is stalled by fault injection.
    #[inline]
    pub(super) fn is_stalled(&self, port: u32) -> bool {
        let node = self.fabric.device(port).node;
        self.control().nodes.get(node).is_some_and(|node| node.is_stalled.load(Relaxed) != 0)
    }
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use super::*;
    use crate::fabric::Fabric;
    use std::path::Path;

    const ONE_DEVICE: &str = "profile = \"ib\"\n[[node]]\nname = \"a\"\ndevice = [{ name = \"d\" }]\n";

    /// Opens a fabric of one device in a folder.
    pub(in super::super) fn open(folder: &tempfile::TempDir) -> (Arc<Directory>, Arc<FabricView>) {
        let fabric = Fabric::parse(ONE_DEVICE, Path::new("test")).expect("a fabric");
        let directory = Arc::new(Directory::open(folder.path(), fabric.digest).expect("a folder"));
        (directory, Arc::new(FabricView { fabric, node: 0 }))
    }

    /// Joins a fabric of one device in a folder.
    pub(in super::super) fn member(folder: &tempfile::TempDir) -> Member {
        let (directory, fabric) = open(folder);
        Member::join(directory, fabric).expect("a slot")
    }

    #[test]
    fn unused_records_are_not_queue_pairs() {
        let folder = tempfile::tempdir().expect("a folder");
        let member = member(&folder);
        assert_eq!(member.own_qps().count(), 0);
        let qp = member.own_qp(3).expect("a record");
        assert_eq!(qp.qpn(), 0);
        qp.record.fixed.qpn.store(3, Relaxed);
        assert_eq!(member.own_qps().map(|qp| qp.qpn()).collect::<Vec<_>>(), [3]);
        assert!(!qp.is_current(), "the reference is of the unused record");
    }
}
