//! Who is at the other end.

use super::{At, Nic, now, number};
use crate::{
    shm::{SendSlot, View},
    world::Wire,
};
use std::sync::atomic::Ordering::Relaxed;
use verbs_sys::{QpState, QpType};

/// Nanoseconds that a request waits before it is asked each time whether its peer lives.
const A_WHILE: u64 = 1_000_000;

/// Whom a request is for.
#[derive(Debug)]
pub(super) enum Peer<'a> {
    /// Somebody who takes it.
    Ready(At<'a>, Wire<'a>),
    /// Nobody answers, which may change.
    Silent,
    /// Its process is gone, which will not change.
    Gone,
}

impl Nic {
    /// The queue pair that one is connected to.
    pub(super) fn connected<'a>(&'a self, at: At<'a>) -> Peer<'a> {
        let fixed = &at.qp.fixed;
        let qpn = fixed.dest_qpn.load(Relaxed);
        let wire = self.world.wire(self.control(), fixed.port.load(Relaxed), fixed.dest_port.load(Relaxed));
        let known = fixed.dest_incarnation.load(Relaxed);
        let Some(view) = self.process.view(number::slot(qpn), known) else {
            return if known == 0 { Peer::Silent } else { Peer::Gone };
        };
        if known == 0 {
            fixed.dest_incarnation.store(view.owner.incarnation, Relaxed);
        }
        if self.is_gone(at, view) {
            return Peer::Gone;
        }
        let Some(qp) = view.qp(number::index(qpn)).filter(|qp| qp.fixed.qpn.load(Relaxed) == qpn) else {
            return Peer::Silent;
        };
        let peer = At::new(view, qp);
        let is_mutual = qp.fixed.dest_qpn.load(Relaxed) == at.qpn()
            && qp.fixed.kind.load(Relaxed) == fixed.kind.load(Relaxed)
            && qp.fixed.port.load(Relaxed) == fixed.dest_port.load(Relaxed);
        match (peer.state(), wire) {
            (QpState::RTR | QpState::RTS | QpState::SQD | QpState::SQE, Some(wire)) if is_mutual => {
                Peer::Ready(peer, wire)
            }
            _ => {
                // It looks at this word when it becomes ready.
                qp.signals.note_waiting(None);
                Peer::Silent
            }
        }
    }

    /// Is the peer dead? Asked now and then, and always once a request has waited for a while.
    fn is_gone(&self, at: At<'_>, view: &View) -> bool {
        let since = at.qp.send.waits_since.load(Relaxed);
        if since != 0 && now().saturating_sub(since) > A_WHILE { view.is_dead() } else { view.seems_dead() }
    }

    /// The queue pair that a datagram is addressed to.
    pub(super) fn addressed<'a>(&'a self, at: At<'a>, slot: &SendSlot) -> Peer<'a> {
        let from = at.qp.fixed.port.load(Relaxed);
        let found = || {
            let wire = self.world.wire(self.control(), from, slot.dest_port)?;
            let view = self.process.view(number::slot(slot.dest_qpn), 0).filter(|view| !view.seems_dead())?;
            let qp = view.qp(number::index(slot.dest_qpn))?;
            let fixed = &qp.fixed;
            let is_it = fixed.qpn.load(Relaxed) == slot.dest_qpn
                && fixed.kind.load(Relaxed) == QpType::UD.0
                && fixed.port.load(Relaxed) == slot.dest_port
                && fixed.qkey.load(Relaxed) == slot.dest_qkey;
            let peer = At::new(view, qp);
            let is_ready = matches!(peer.state(), QpState::RTR | QpState::RTS | QpState::SQD | QpState::SQE);
            (is_it && is_ready).then_some(Peer::Ready(peer, wire))
        };
        found().unwrap_or(Peer::Silent)
    }
}
