//! Faults that somebody injects from outside: commands about queue pairs, and nodes that stall.
//!
//! One word counts changes, and is looked at whenever work is posted and now and then when nothing is found.
//! Only when it has changed is more read.

use super::Nic;
use crate::{control::Command, shm::QPS};
use std::sync::{
    PoisonError,
    atomic::Ordering::{Acquire, Relaxed, SeqCst},
};
use verbs_sys::EventType;

impl Nic {
    /// Carries out commands that have come since the last look.
    #[inline]
    pub(crate) fn notice(&self) {
        let changes = self.control().changes.load(Acquire);
        if changes != self.seen_changes.load(Relaxed) {
            self.seen_changes.store(changes, Relaxed);
            self.obey();
        }
    }

    #[cold]
    fn obey(&self) {
        let mut seen = self.seen_commands.lock().unwrap_or_else(PoisonError::into_inner);
        let (commands, last) = self.control().commands_after(*seen);
        *seen = last;
        drop(seen);
        for command in commands {
            let (port, qpn, overflows) = match command {
                Command::FailQp { port, qp } => (port, qp, false),
                Command::OverflowCq { port, qp } => (port, qp, true),
            };
            self.fail_all(port, qpn, overflows);
        }
    }

    /// Fails the queue pairs of a port, or one of them.
    fn fail_all(&self, port: u32, qpn: u32, overflows: bool) {
        for at in (0..QPS).filter_map(|index| self.own_qp(index)) {
            let is_meant =
                at.qpn() != 0 && at.qp.fixed.port.load(Relaxed) == port && (qpn == 0 || at.qpn() == qpn);
            if !is_meant {
                continue;
            }
            if overflows {
                for cq in [&at.qp.fixed.send_cq, &at.qp.fixed.recv_cq] {
                    if let Some(record) = at.view.cq(cq.load(Relaxed)) {
                        record.fixed.overrun.fetch_max(1, SeqCst);
                        self.overrun(at.view, record);
                    }
                }
            }
            self.fail(at, Some(EventType::QP_FATAL));
        }
    }

    /// Has somebody stalled the node that a port belongs to?
    #[inline]
    pub(crate) fn is_stalled(&self, port: u32) -> bool {
        let node = self.world.device(port).node;
        self.control().nodes.get(node).is_some_and(|node| node.is_stalled.load(Relaxed) != 0)
    }
}
