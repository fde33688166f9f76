//! The fate of messages without a posted receive, and shared receive queues.

use crate::{
    rig::{End, Options, Rig, init_attr},
    verbs::{Queues, TIMEOUT, Work},
};
use softrdma::profile::UnmatchedSend;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use verbs_sys::{EventType, QpState, QpType, WcStatus};

fn holds(rig: &Rig, kind: QpType) -> bool {
    kind == QpType::RC || rig.profile.uc_unmatched_send == UnmatchedSend::Hold
}

/// Posting the receive executes held sends, in order; lost sends stay lost.
pub(crate) fn sends_without_a_receive_wait_or_are_lost(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = rig.pair(kind);
        for id in 0..5 {
            a.memory.set_word(id as usize * 8, 1000 + id);
            a.post(&Work::send(&[a.sge(id as usize * 8, 8)]).id(id));
        }
        if holds(rig, kind) {
            a.send.stays_empty();
            b.recv.stays_empty();
            for id in 0..5 {
                b.receive(10 + id, 0, 8);
                assert_eq!(b.received(), (10 + id, WcStatus::SUCCESS));
                assert_eq!(b.memory.word(0), 1000 + id);
                assert_eq!(a.sent(), (id, WcStatus::SUCCESS));
            }
        } else {
            (0..5).for_each(|id| assert_eq!(a.sent(), (id, WcStatus::SUCCESS)));
            b.receive(1, 0, 8);
            b.recv.stays_empty();
            a.send(9, 0, 8);
            assert_eq!(b.received(), (1, WcStatus::SUCCESS));
        }
    }
}

/// Held sends are executed although neither the sender nor the receiver polls.
pub(crate) fn held_sends_are_carried_out_while_the_sender_sleeps(rig: &Rig) {
    for kind in rig.connections().filter(|kind| holds(rig, *kind)) {
        let (a, b) = rig.pair(kind);
        a.memory.pattern(0, 4000, 3);
        a.send(0, 0, 4000);
        b.receive(1, 0, 4000);
        assert_eq!(b.received(), (1, WcStatus::SUCCESS));
        assert!(b.memory.has_pattern(0, 4000, 3));
        assert_eq!(a.sent(), (0, WcStatus::SUCCESS));
    }
}

pub(crate) fn a_reliable_sender_gives_up_after_its_retries(rig: &Rig) {
    for rnr_retry in [0, 3] {
        let (a, b) = rig.pair_with(QpType::RC, Options { rnr_retry, ..Options::default() });
        let began = Instant::now();
        (1..=3).for_each(|id| a.send(id, 0, 8));
        assert_eq!(a.sent(), (1, WcStatus::RNR_RETRY_EXC_ERR));
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        (2..=3).for_each(|id| assert_eq!(a.sent(), (id, WcStatus::WR_FLUSH_ERR)));
        assert_eq!((a.qp.state(), b.qp.state()), (QpState::ERR, QpState::RTS));
    }
}

/// A reliable sender waits until a peer that is connecting reaches RTR.
pub(crate) fn a_peer_that_is_not_ready_is_waited_for(rig: &Rig) {
    for kind in rig.connections().filter(|kind| holds(rig, *kind)) {
        // The timeout is long enough that the sender does not give up.
        let options = Options { timeout: 20, ..Options::default() };
        let (a, b) = rig.unconnected(kind, options);
        a.connect(&b.info(), options);
        assert_eq!(b.to_init(options), 0);
        b.receive(1, 0, 8);
        a.send(2, 0, 8);
        b.recv.stays_empty();
        a.send.stays_empty();
        assert_eq!(b.to_rtr(&a.info()), 0);
        assert_eq!((b.received(), a.sent()), ((1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)));
    }
}

/// The name of a failure, and the function that causes it.
type FailureMode = (&'static str, fn(&End));

/// Peers that do not answer: a destroyed one, a failed one, one that is connected to another queue pair.
pub(crate) fn a_peer_that_does_not_answer_fails_a_reliable_connection(rig: &Rig) {
    let fail: [FailureMode; 3] = [
        ("destroyed", |b| assert_eq!(b.qp.destroy(), 0)),
        ("failed", |b| assert_eq!(b.qp.become_state(QpState::ERR), 0)),
        ("reset", |b| assert_eq!(b.qp.become_state(QpState::RESET), 0)),
    ];
    for (what, fail) in fail {
        let (a, b) = rig.pair_with(QpType::RC, Options { timeout: 8, ..Options::default() });
        b.receive(1, 0, 8);
        fail(&b);
        let began = Instant::now();
        a.send(2, 0, 8);
        a.send(3, 0, 8);
        assert_eq!(a.sent(), (2, WcStatus::RETRY_EXC_ERR), "{what}");
        assert_eq!(a.sent(), (3, WcStatus::WR_FLUSH_ERR), "{what}");
        assert!(began.elapsed() < Duration::from_secs(5), "{what}: {:?}", began.elapsed());
        assert_eq!(a.qp.state(), QpState::ERR);
    }
    let (a, b) = rig.unconnected(QpType::RC, Options::default());
    let (c, _d) = rig.unconnected(QpType::RC, Options::default());
    let options = Options { timeout: 8, ..Options::default() };
    a.connect(&b.info(), options);
    b.connect(&c.info(), options);
    b.receive(1, 0, 8);
    a.send(2, 0, 8);
    assert_eq!(a.sent(), (2, WcStatus::RETRY_EXC_ERR), "connected to somebody else");
    b.recv.stays_empty();
}

/// Unreliable senders get no error, unless the device holds their sends.
pub(crate) fn a_peer_that_does_not_answer_is_not_noticed_by_an_unreliable_sender(rig: &Rig) {
    let (a, b) = rig.pair(QpType::UC);
    b.receive(1, 0, 8);
    assert_eq!(b.qp.become_state(QpState::ERR), 0);
    assert_eq!(b.received(), (1, WcStatus::WR_FLUSH_ERR));
    a.send(2, 0, 8);
    if holds(rig, QpType::UC) {
        a.send.stays_empty();
    } else {
        assert_eq!(a.sent(), (2, WcStatus::SUCCESS));
    }
    assert_eq!(a.qp.state(), QpState::RTS);
    assert_eq!(a.node.event(Duration::ZERO), None);
}

/// Two receiving queue pairs share one receive queue.
pub(crate) fn shared_receives_serve_all_queue_pairs(rig: &Rig) {
    let options = Options::default();
    let (a, b) = rig.unconnected(QpType::RC, options);
    let (c, d) = (End::new(&a.node, QpType::RC, options), &b);
    let srq = b.domain.srq(4, 1).expect("a shared queue");
    let queue = b.node.cq(64, None).expect("a queue");
    let queues = Queues { send: Arc::clone(&queue), recv: Arc::clone(&queue), srq: Some(Arc::clone(&srq)) };
    let shared = |peer: &End| {
        let mut end = End::new(&b.node, QpType::RC, options);
        end.qp = b.domain.qp(init_attr(QpType::RC, options), queues.clone()).expect("a queue pair");
        end.connect(&peer.info(), options);
        peer.connect(&end.info(), options);
        end
    };
    let (to_a, to_c) = (shared(&a), shared(&c));
    assert_eq!(to_a.qp.receive(0, &[d.sge(0, 8)]), libc::EINVAL, "it has no queue of its own");
    // Both send before a receive is posted.
    a.send(1, 0, 8);
    c.send(2, 0, 8);
    (0..2).for_each(|id| assert_eq!(srq.post(id, &[d.sge(0, 8)]), 0));
    let mut from = [queue.poll().qp_num, queue.poll().qp_num];
    let mut expected = [to_a.qp.number(), to_c.qp.number()];
    from.sort_unstable();
    expected.sort_unstable();
    assert_eq!(from, expected);
    assert_eq!((a.sent(), c.sent()), ((1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)));
    // The depth, and the event when few receives are left.
    (0..4).for_each(|id| assert_eq!(srq.post(id, &[d.sge(0, 8)]), 0));
    assert_eq!(srq.post(9, &[d.sge(0, 8)]), libc::ENOMEM);
    assert_eq!(srq.limit(3), 0);
    assert_eq!(b.node.event(Duration::ZERO), None);
    a.send(3, 0, 8);
    c.send(4, 0, 8);
    assert_eq!(b.node.event(TIMEOUT), Some(EventType::SRQ_LIMIT_REACHED));
    a.send(5, 0, 8);
    assert_eq!(b.node.event(Duration::ZERO), None, "once");
    // A failed queue pair leaves the shared receives to the others.
    assert_eq!(to_a.qp.become_state(QpState::ERR), 0);
    c.send(6, 0, 8);
    for _ in 0..4 {
        assert_eq!(queue.poll().status, WcStatus::SUCCESS);
    }
    assert_eq!(srq.destroy(), libc::EBUSY);
    assert_eq!((to_a.qp.destroy(), to_c.qp.destroy(), srq.destroy()), (0, 0, 0));
}
