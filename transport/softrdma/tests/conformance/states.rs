//! States of queue pairs: the permitted transitions, the attributes they require, and the work each state
//! accepts.

use crate::{
    rig::{Options, Rig, full_attr, init_attr, mask},
    verbs::{Queues, Work},
};
use std::sync::Arc;
use verbs_sys::{QpAttrMask as Mask, QpState, QpType, WcStatus};

/// Omits every required attribute in turn, and adds one that is not permitted.
pub(crate) fn every_required_member_is_asked_for(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = rig.unconnected(kind, Options::default());
        let info = b.info();
        for to in [QpState::INIT, QpState::RTR, QpState::RTS] {
            let before = a.qp.state();
            let mut attr = full_attr(to, Some(&info), Options::default());
            attr.max_rd_atomic = rig.profile.max_rd_atomic;
            attr.max_dest_rd_atomic = rig.profile.max_rd_atomic;
            let full = mask(kind, to);
            for bit in Mask::ALL.iter().filter(|bit| full.contains(**bit) && **bit != Mask::STATE) {
                let refused = a.qp.modify(&attr, full.without(*bit));
                assert_eq!(
                    (refused, a.qp.state()),
                    (libc::EINVAL, before),
                    "{kind:?} {to:?} without {bit:?}"
                );
            }
            let strange = if to == QpState::INIT { Mask::SQ_PSN } else { Mask::PORT };
            assert_eq!(a.qp.modify(&attr, full | strange), libc::EINVAL, "{kind:?} {to:?}");
            assert_eq!(a.qp.modify(&attr, full), 0, "{kind:?} {to:?}");
            assert_eq!(a.qp.state(), to);
        }
    }
}

pub(crate) fn states_are_not_skipped(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = rig.unconnected(kind, Options::default());
        let info = b.info();
        let go = |to| a.qp.modify(&full_attr(to, Some(&info), Options::default()), mask(kind, to));
        assert_eq!(go(QpState::RTR), libc::EINVAL);
        assert_eq!(go(QpState::RTS), libc::EINVAL);
        assert_eq!(a.to_init(Options::default()), 0);
        assert_eq!(go(QpState::RTS), libc::EINVAL);
        assert_eq!(a.to_rtr(&info), 0);
        assert_eq!(a.to_init(Options::default()), libc::EINVAL);
        assert_eq!(a.qp.become_state(QpState::ERR), 0);
        assert_eq!(go(QpState::RTS), libc::EINVAL);
        assert_eq!(a.qp.become_state(QpState::RESET), 0);
        a.connect(&info, Options::default());
        assert_eq!(a.qp.state(), QpState::RTS);
    }
}

pub(crate) fn a_state_that_is_claimed_must_be_the_state(rig: &Rig) {
    for kind in rig.connections() {
        let (a, _b) = rig.unconnected(kind, Options::default());
        let mut attr = full_attr(QpState::INIT, None, Options::default());
        attr.cur_qp_state = QpState::RTR;
        let full = mask(kind, QpState::INIT) | Mask::CUR_STATE;
        assert_eq!(a.qp.modify(&attr, full), libc::EINVAL);
        attr.cur_qp_state = QpState::RESET;
        assert_eq!(a.qp.modify(&attr, full), 0);
    }
}

/// Receives are accepted from INIT on, sends from RTS on.
pub(crate) fn work_is_refused_before_its_state(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = rig.unconnected(kind, Options::default());
        let (info, options) = (b.info(), Options::default());
        let sge = [a.sge(0, 64)];
        let send = || a.qp.post(&Work::send(&sge));
        let receive = || a.qp.receive(1, &sge);
        assert_eq!((receive(), send()), (libc::EINVAL, libc::EINVAL), "RESET");
        assert_eq!(a.to_init(options), 0);
        assert_eq!((receive(), send()), (0, libc::EINVAL), "INIT");
        assert_eq!(a.to_rtr(&info), 0);
        assert_eq!((receive(), send()), (0, libc::EINVAL), "RTR");
        assert_eq!(a.to_rts(options), 0);
        assert_eq!(receive(), 0, "RTS");
        b.connect(&a.info(), options);
        b.receive(9, 0, 64);
        assert_eq!(send(), 0, "RTS");
        assert_eq!((a.sent(), b.received()), ((0, WcStatus::SUCCESS), (9, WcStatus::SUCCESS)));
    }
}

/// Requests posted before and after the error are flushed, in order.
pub(crate) fn the_error_state_flushes_both_queues(rig: &Rig) {
    for kind in rig.connections() {
        let (a, _b) = rig.pair(kind);
        (1..=3).for_each(|id| a.receive(id, 0, 64));
        if kind == QpType::RC {
            // The send waits, since no receive is posted for it.
            a.send(7, 0, 64);
        }
        assert_eq!(a.qp.become_state(QpState::ERR), 0);
        a.receive(4, 0, 64);
        a.send(8, 0, 64);
        for id in 1..=4 {
            assert_eq!(a.received(), (id, WcStatus::WR_FLUSH_ERR));
        }
        if kind == QpType::RC {
            assert_eq!(a.sent(), (7, WcStatus::WR_FLUSH_ERR));
        }
        assert_eq!(a.sent(), (8, WcStatus::WR_FLUSH_ERR));
        a.send.stays_empty();
        a.recv.stays_empty();
    }
}

/// Reset drops posted requests and completions.
pub(crate) fn reset_forgets_everything(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = rig.pair(kind);
        (0..4).for_each(|id| b.receive(id, 0, 64));
        a.send(1, 0, 64);
        assert_eq!(b.qp.become_state(QpState::RESET), 0);
        b.recv.stays_empty();
        let _ = a.sent();
        assert_eq!(a.qp.become_state(QpState::RESET), 0);
        a.connect(&b.info(), Options::default());
        b.connect(&a.info(), Options::default());
        (0..u64::from(b.qp.cap.max_recv_wr.min(16))).for_each(|id| b.receive(10 + id, 0, 64));
        a.send(2, 0, 64);
        assert_eq!((a.sent(), b.received()), ((2, WcStatus::SUCCESS), (10, WcStatus::SUCCESS)));
    }
}

/// Queries return the granted and the set values.
pub(crate) fn queries_say_what_was_set(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = rig.pair(kind);
        let (attr, init) = a.qp.query();
        assert_eq!((attr.qp_state, attr.dest_qp_num), (QpState::RTS, b.qp.number()));
        assert_eq!((attr.path_mtu, attr.port_num), (verbs_sys::Mtu::B1024, 1));
        assert_eq!(init.qp_type, kind);
        assert_eq!(init.cap.max_send_wr, a.qp.cap.max_send_wr);
        assert!(init.cap.max_send_wr >= Options::default().depth);
    }
}

pub(crate) fn attributes_out_of_range_are_refused(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = rig.unconnected(kind, Options::default());
        let info = b.info();
        let mut attr = full_attr(QpState::INIT, None, Options::default());
        attr.port_num = 2;
        assert_eq!(a.qp.modify(&attr, mask(kind, QpState::INIT)), libc::EINVAL);
        attr.port_num = 1;
        attr.pkey_index = 1;
        assert_eq!(a.qp.modify(&attr, mask(kind, QpState::INIT)), libc::EINVAL);
        assert_eq!(a.to_init(Options::default()), 0);
        let mut attr = full_attr(QpState::RTR, Some(&info), Options::default());
        attr.path_mtu = verbs_sys::Mtu(6);
        assert_eq!(a.qp.modify(&attr, mask(kind, QpState::RTR)), libc::EINVAL);
        let mut attr = full_attr(QpState::RTR, Some(&info), Options::default());
        // An empty entry of the table, and an index beyond its end.
        for index in [3, 200] {
            attr.ah_attr.grh.sgid_index = index;
            assert_eq!(a.qp.modify(&attr, mask(kind, QpState::RTR)), rig.profile.errnos.no_address);
        }
        assert_eq!(a.qp.state(), QpState::INIT);
    }
}

/// Depths, elements and bytes beyond the limits of the device.
pub(crate) fn queue_pairs_beyond_the_limits_are_refused(rig: &Rig) {
    let node = rig.open("a");
    let domain = node.pd().expect("a domain");
    let queue = node.cq(16, None).expect("a queue");
    let queues = Queues { send: Arc::clone(&queue), recv: queue, srq: None };
    let attr = node.attr();
    for kind in rig.connections() {
        let refused = |change: &dyn Fn(&mut verbs_sys::QpCap)| {
            let mut init = init_attr(kind, Options::default());
            change(&mut init.cap);
            domain.qp(init, queues.clone()).err()
        };
        assert_eq!(refused(&|cap| cap.max_send_wr = attr.max_qp_wr as u32 + 1), Some(libc::EINVAL));
        assert_eq!(refused(&|cap| cap.max_recv_wr = attr.max_qp_wr as u32 + 1), Some(libc::EINVAL));
        assert_eq!(refused(&|cap| cap.max_send_sge = attr.max_sge as u32 + 1), Some(libc::EINVAL));
        assert_eq!(refused(&|cap| cap.max_recv_sge = attr.max_sge as u32 + 1), Some(libc::EINVAL));
        assert_eq!(refused(&|cap| cap.max_inline_data = rig.profile.max_inline + 1), Some(libc::EINVAL));
        assert_eq!(refused(&|cap| cap.max_send_wr = attr.max_qp_wr as u32), None);
    }
    let most = attr.max_cqe;
    assert_eq!(node.cq(most + 1, None).err(), Some(libc::EINVAL));
    assert_eq!(node.cq(0, None).err(), Some(libc::EINVAL));
    assert_eq!(node.cq(-1, None).err(), Some(libc::EINVAL));
    assert!(node.cq(most, None).is_ok());
}
