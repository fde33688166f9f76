//! Finds the peer of a request.

use super::{member::Member, qp::QpRef, qp_number};
use crate::{
    clock::now,
    fabric_view::Wire,
    shm::{SendSlot, Unreached, View},
};
use std::sync::atomic::Ordering::Relaxed;
use verbs_sys::{QpState, QpType};

/// Nanoseconds that a request waits before the kernel is asked at each look whether its peer lives.
const LIVENESS_CHECK_AFTER: u64 = 1_000_000;

/// The peer of a request.
#[derive(Debug)]
pub(super) enum Peer<'a> {
    /// A queue pair that takes the request.
    Ready(QpRef<'a>, Wire<'a>),
    /// No queue pair answers at present.
    Silent,
    /// The peer's process is dead.
    Dead,
}

/// Whether a queue pair in this state takes messages.
fn can_receive(state: QpState) -> bool {
    matches!(state, QpState::RTR | QpState::RTS | QpState::SQD | QpState::SQE)
}

/// Returns the queue pair that `qp` is connected to.
pub(super) fn connected<'a>(member: &'a Member, qp: QpRef<'a>) -> Peer<'a> {
    let fixed = &qp.record.fixed;
    let dest_qpn = fixed.dest_qpn.load(Relaxed);
    let (port, dest_port) = (fixed.port.load(Relaxed), fixed.dest_port.load(Relaxed));
    let wire = member.fabric().wire(member.control(), port, dest_port);
    let known = fixed.dest_incarnation.load(Relaxed);
    let view = match member.process().find(qp_number::slot(dest_qpn), known) {
        Ok(view) => view,
        Err(Unreached::Gone) if known != 0 => return Peer::Dead,
        Err(_) => return Peer::Silent,
    };
    if known == 0 {
        fixed.dest_incarnation.store(view.owner.incarnation, Relaxed);
    }
    if is_dead(qp, view) {
        return Peer::Dead;
    }
    let record = view.qp(qp_number::index(dest_qpn));
    let Some(record) = record.filter(|record| record.fixed.qpn.load(Relaxed) == dest_qpn) else {
        return Peer::Silent;
    };
    let peer = QpRef::new(view, record);
    let is_mutual = record.fixed.dest_qpn.load(Relaxed) == qp.qpn()
        && record.fixed.kind.load(Relaxed) == fixed.kind.load(Relaxed)
        && record.fixed.port.load(Relaxed) == fixed.dest_port.load(Relaxed);
    match wire {
        Some(wire) if can_receive(peer.state()) && is_mutual => Peer::Ready(peer, wire),
        _ => {
            // The peer reads this word when it becomes ready.
            record.signals.note_waiting(None);
            Peer::Silent
        }
    }
}

/// Whether the peer's process is dead. Asks the kernel now and then, and always once a request has waited for
/// a while.
fn is_dead(qp: QpRef<'_>, view: &View) -> bool {
    let since = qp.record.send.waits_since.load(Relaxed);
    let has_waited = since != 0 && now().saturating_sub(since) > LIVENESS_CHECK_AFTER;
    if has_waited { view.is_dead() } else { view.seems_dead() }
}

/// Returns the queue pair that a datagram is addressed to.
pub(super) fn addressed<'a>(member: &'a Member, qp: QpRef<'a>, request: &SendSlot) -> Peer<'a> {
    let port = qp.record.fixed.port.load(Relaxed);
    let found = || {
        let wire = member.fabric().wire(member.control(), port, request.dest_port)?;
        let slot = qp_number::slot(request.dest_qpn);
        let view = member.process().view(slot, 0).filter(|view| !view.seems_dead())?;
        let record = view.qp(qp_number::index(request.dest_qpn))?;
        let fixed = &record.fixed;
        let is_match = fixed.qpn.load(Relaxed) == request.dest_qpn
            && fixed.kind.load(Relaxed) == QpType::UD.0
            && fixed.port.load(Relaxed) == request.dest_port
            && fixed.qkey.load(Relaxed) == request.dest_qkey;
        let peer = QpRef::new(view, record);
        (is_match && can_receive(peer.state())).then_some(Peer::Ready(peer, wire))
    };
    found().unwrap_or(Peer::Silent)
}
