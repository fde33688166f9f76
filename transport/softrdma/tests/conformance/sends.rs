//! Send queues that stop: after an error of an unreliable service, and on request.

use crate::{
    rig::{End, Options, QKEY, Rig, init_attr},
    verbs::{Queues, TIMEOUT, Work},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use verbs_sys::{AhAttr, EventType, QpAttr, QpAttrMask, QpState, QpType, Sge, WcStatus, WrOpcode};

/// A failed send of an unreliable connection stops later sends; receives continue, and sends resume on
/// request.
pub(crate) fn an_unreliable_error_stops_only_sends(rig: &Rig) {
    let (a, b) = rig.pair(QpType::UC);
    let wrong = Sge { lkey: a.region.lkey ^ 1, ..a.sge(0, 8) };
    let list = [Work::send(&[wrong]).id(1), Work::send(&[a.sge(0, 8)]).id(2)];
    assert_eq!(a.qp.post_list(&list), (0, 2));
    assert_eq!((a.sent(), a.sent()), ((1, WcStatus::LOC_PROT_ERR), (2, WcStatus::WR_FLUSH_ERR)));
    a.receive(3, 0, 8);
    if !rig.profile.unreliable_errors_enter_sqe {
        assert_eq!((a.qp.state(), a.received()), (QpState::ERR, (3, WcStatus::WR_FLUSH_ERR)));
        return;
    }
    assert_eq!(a.qp.state(), QpState::SQE);
    a.send(4, 0, 8);
    assert_eq!(a.sent(), (4, WcStatus::WR_FLUSH_ERR));
    b.send(5, 0, 8);
    assert_eq!((b.sent(), a.received()), ((5, WcStatus::SUCCESS), (3, WcStatus::SUCCESS)));
    assert_eq!(a.node.event(Duration::ZERO), None);
    assert_eq!(a.qp.become_state(QpState::RTS), 0);
    b.receive(6, 0, 8);
    a.send(7, 0, 8);
    assert_eq!((a.sent(), b.received()), ((7, WcStatus::SUCCESS), (6, WcStatus::SUCCESS)));
}

/// Requests posted to a stopped queue wait; an event reports that nothing is in flight.
pub(crate) fn a_send_queue_that_is_drained_says_so(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = rig.pair(kind);
        let mut attr = QpAttr::zeroed();
        (attr.qp_state, attr.en_sqd_async_notify) = (QpState::SQD, 1);
        assert_eq!(a.qp.modify(&attr, QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY), 0);
        assert_eq!(a.node.event(TIMEOUT), Some(EventType::SQ_DRAINED));
        b.receive(1, 0, 8);
        a.send(2, 0, 8);
        a.send.stays_empty();
        assert_eq!(a.qp.become_state(QpState::RTS), 0);
        assert_eq!((a.sent(), b.received()), ((2, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)));
        assert_eq!(a.qp.become_state(QpState::SQD), 0);
        assert_eq!(a.node.event(Duration::ZERO), None, "nobody asked");
    }
}

/// Messages in flight when the queue stops arrive before the queue is drained; later ones stay.
pub(crate) fn a_send_queue_is_drained_when_all_has_arrived(rig: &Rig) {
    let rig = rig.another("", "latency_us = 20000.0");
    let latency = Duration::from_millis(20);
    for kind in rig.connections() {
        let (a, b) = rig.pair(kind);
        a.memory.set_word(0, 7);
        let write = Work::new(WrOpcode::RDMA_WRITE, &[a.sge(0, 8)]);
        let began = Instant::now();
        for id in 0..2 {
            a.post(&write.clone().at(b.memory.address() + id * 8, b.region.rkey).id(id));
        }
        let mut attr = QpAttr::zeroed();
        (attr.qp_state, attr.en_sqd_async_notify) = (QpState::SQD, 1);
        assert_eq!(a.qp.modify(&attr, QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY), 0);
        assert_eq!(a.node.event(TIMEOUT), Some(EventType::SQ_DRAINED));
        let answered = if kind == QpType::RC { 2 * latency } else { latency };
        assert!(began.elapsed() >= answered, "{kind:?}: {:?}", began.elapsed());
        assert_eq!((b.memory.aligned_word(0), b.memory.aligned_word(8)), (7, 0), "{kind:?}");
        assert_eq!(a.sent(), (0, WcStatus::SUCCESS));
        a.send.stays_empty();
        assert_eq!(a.qp.become_state(QpState::RTS), 0);
        assert_eq!(a.sent(), (1, WcStatus::SUCCESS));
    }
}

/// A failed request does not complete before earlier requests.
pub(crate) fn failures_do_not_overtake(rig: &Rig) {
    let rig = rig.another("", "latency_us = 20000.0");
    for kind in rig.connections() {
        let (a, b) = rig.pair(kind);
        (0..2).for_each(|id| b.receive(id, 0, 8));
        let wrong = Sge { lkey: a.region.lkey ^ 1, ..a.sge(0, 8) };
        a.send(1, 0, 8);
        a.post(&Work::send(&[wrong]).id(2));
        assert_eq!(b.qp.become_state(QpState::ERR), 0);
        assert_eq!((a.sent(), a.sent().1), ((1, WcStatus::SUCCESS), WcStatus::LOC_PROT_ERR));
        assert_eq!((b.received(), b.received()), ((0, WcStatus::SUCCESS), (1, WcStatus::WR_FLUSH_ERR)));
    }
}

/// An event reports that a failed queue pair takes no more shared receives.
pub(crate) fn the_last_shared_receive_is_told(rig: &Rig) {
    let node = rig.open("a");
    let end = End::new(&node, QpType::RC, Options::default());
    let srq = end.domain.srq(4, 1).expect("a shared queue");
    let queues = Queues { send: Arc::clone(&end.send), recv: Arc::clone(&end.recv), srq: Some(srq) };
    let qp = end.domain.qp(init_attr(QpType::RC, Options::default()), queues).expect("a queue pair");
    (0..2).for_each(|_| assert_eq!(qp.become_state(QpState::ERR), 0));
    assert_eq!(node.event(TIMEOUT), Some(EventType::QP_LAST_WQE_REACHED));
    assert_eq!(end.qp.become_state(QpState::ERR), 0);
    assert_eq!(node.event(Duration::ZERO), None, "once, and not of those with receives of their own");
}

/// A datagram longer than its receive is dropped without an error, and the receive serves the next: as the
/// drivers of Linux do (rdmavt, rxe), and as the specification defines the fault behavior of datagrams.
pub(crate) fn datagrams_that_do_not_fit_are_dropped(rig: &Rig) {
    let (a, b) = rig.pair(QpType::UD);
    let mut attr = AhAttr::zeroed();
    (attr.is_global, attr.port_num, attr.grh.sgid_index) = (1, 1, 1);
    attr.grh.dgid = b.info().gid;
    let address = a.domain.address(attr).expect("an address");
    b.receive(1, 0, 100);
    let datagram = |len| Work::send(&[a.sge(0, len)]).to(&address, b.qp.number(), QKEY);
    a.post(&datagram(61));
    assert_eq!(a.sent(), (0, WcStatus::SUCCESS));
    b.recv.stays_empty();
    a.post(&datagram(60));
    assert_eq!((a.sent(), b.received()), ((0, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)));
    assert_eq!(b.qp.state(), QpState::RTS);
}
