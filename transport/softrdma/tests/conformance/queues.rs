//! Queue depths, exact to the request; invalid requests; and completion queue overruns.

use crate::{
    rig::{End, Options, Rig},
    verbs::{TIMEOUT, Work},
};
use verbs_sys::{EventType, QpState, QpType, SendFlags, WcStatus, WrOpcode};

/// Whether sends wait when no receive is posted.
fn sends_wait(rig: &Rig, kind: QpType) -> bool {
    kind == QpType::RC || rig.profile.uc_unmatched_send == softrdma::profile::UnmatchedSend::Hold
}

fn unsignaled(end: &End) -> Work {
    Work::send(&[end.sge(0, 8)]).flags(SendFlags::NONE)
}

/// The depth includes requests that completed but were not polled, and unsignaled requests before them.
pub(crate) fn send_room_comes_back_when_completions_are_polled(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = rig.pair(kind);
        let depth = u64::from(a.qp.cap.max_send_wr);
        (1..depth).for_each(|_| a.post(&unsignaled(&a)));
        a.send(7, 0, 8);
        assert_eq!(a.qp.post(&unsignaled(&a)), libc::ENOMEM);
        if sends_wait(rig, kind) {
            for id in 0..depth {
                b.receive(id, 0, 8);
                assert_eq!(b.received(), (id, WcStatus::SUCCESS));
            }
        }
        assert_eq!(a.qp.post(&unsignaled(&a)), libc::ENOMEM, "{kind:?}: completed, but not polled");
        assert_eq!(a.sent(), (7, WcStatus::SUCCESS));
        (1..depth).for_each(|_| a.post(&unsignaled(&a)));
        a.send(8, 0, 8);
        assert_eq!(a.qp.post(&unsignaled(&a)), libc::ENOMEM);
    }
}

pub(crate) fn a_list_is_posted_up_to_what_does_not_fit(rig: &Rig) {
    for kind in rig.connections() {
        let (a, _b) = rig.pair(kind);
        let depth = a.qp.cap.max_send_wr as usize;
        let list: Vec<Work> = (0..depth + 3).map(|_| unsignaled(&a)).collect();
        assert_eq!(a.qp.post_list(&list), (libc::ENOMEM, depth));
        let (a, _b) = rig.pair(kind);
        let mut list = list[..3].to_vec();
        list[2] = Work::new(WrOpcode(99), &[]);
        assert_eq!(a.qp.post_list(&list), (libc::EINVAL, 2));
    }
}

pub(crate) fn receive_room_comes_back_when_completions_are_polled(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = rig.pair(kind);
        let sge = [b.sge(0, 8)];
        let depth = rig.profile.usable_depth(b.qp.cap.max_recv_wr);
        (0..depth).for_each(|id| assert_eq!(b.qp.receive(id.into(), &sge), 0, "{id} of {depth}"));
        assert_eq!(b.qp.receive(0, &sge), libc::ENOMEM);
        a.send(0, 0, 8);
        let _ = a.sent();
        assert_eq!(b.qp.receive(0, &sge), libc::ENOMEM, "completed, but not polled");
        let _ = b.received();
        assert_eq!(b.qp.receive(0, &sge), 0);
        assert_eq!(b.qp.receive(0, &sge), libc::ENOMEM);
    }
}

pub(crate) fn requests_that_cannot_be_are_refused(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = rig.pair(kind);
        let sges = vec![a.sge(0, 8); a.qp.cap.max_send_sge as usize + 1];
        assert_eq!(a.qp.post(&Work::send(&sges)), libc::EINVAL, "too many sges");
        assert_eq!(b.qp.receive(0, &[b.sge(0, 8); 2]), libc::EINVAL, "too many sges");
        let inline = SendFlags::SIGNALED | SendFlags::INLINE;
        assert_eq!(
            a.qp.post(&Work::send(&[a.sge(0, 8)]).flags(inline)),
            libc::EINVAL,
            "no inline bytes granted"
        );
        assert_eq!(a.qp.post(&Work::new(WrOpcode(99), &[a.sge(0, 8)])), libc::EINVAL, "an unknown opcode");
        for opcode in WrOpcode::ALL {
            if !rig.profile.supports_opcode(kind, *opcode) {
                let refused = a.qp.post(&Work::new(*opcode, &[a.sge(0, 8)]));
                assert_eq!(refused, libc::EOPNOTSUPP, "{kind:?} {opcode:?}");
            }
        }
        // The refused requests left nothing in the queue.
        b.receive(1, 0, 8);
        a.send(2, 0, 8);
        assert_eq!((a.sent(), b.received()), ((2, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)));
        a.send.stays_empty();
    }
}

/// The bytes of an inline request are copied when it is posted, without a key, up to the granted size.
pub(crate) fn inline_bytes_are_taken_at_once(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = rig.pair_with(kind, Options { inline: 100, ..Options::default() });
        let flags = SendFlags::SIGNALED | SendFlags::INLINE;
        let most = a.qp.cap.max_inline_data as usize;
        assert!(most >= 100);
        let inline = |len| Work::send(&[a.memory.sge(0, len, 0)]).flags(flags);
        assert_eq!(a.qp.post(&inline(most + 1)), libc::EINVAL);
        let read = Work::new(WrOpcode::RDMA_READ, &[a.sge(0, 8)]).flags(flags);
        assert_ne!(a.qp.post(&read), 0, "reads bring bytes");
        a.memory.pattern(0, most, 1);
        if sends_wait(rig, kind) {
            a.post(&inline(most));
            a.memory.fill(0, most, 0);
            b.receive(3, 0, most);
        } else {
            b.receive(3, 0, most);
            a.post(&inline(most));
        }
        assert_eq!((a.sent(), b.received()), ((0, WcStatus::SUCCESS), (3, WcStatus::SUCCESS)));
        assert!(b.memory.has_pattern(0, most, 1));
    }
}

/// One completion too many: an event, an error of polling, and failed queue pairs.
pub(crate) fn a_completion_queue_that_overflows_says_so(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = rig.pair_with(kind, Options { cqe: 4, ..Options::default() });
        (0..5).for_each(|id| b.receive(id, 0, 8));
        for id in 0..5 {
            a.send(id, 0, 8);
            let (sent, status) = a.sent();
            let is_last = id == 4 && kind == QpType::RC;
            assert_eq!(sent, id);
            assert_eq!(status == WcStatus::SUCCESS, !is_last, "{kind:?} {id}: {status:?}");
        }
        (0..4).for_each(|id| assert_eq!(b.received(), (id, WcStatus::SUCCESS)));
        assert!(b.recv.try_poll().is_err(), "an overflow is an error of polling");
        assert_eq!(b.qp.state(), QpState::ERR);
        let events = [b.node.event(TIMEOUT), b.node.event(TIMEOUT)];
        assert!(events.contains(&Some(EventType::CQ_ERR)), "{events:?}");
        assert!(events.contains(&Some(EventType::QP_FATAL)), "{events:?}");
    }
}

/// A queue that is exactly full is no error.
pub(crate) fn a_completion_queue_holds_what_it_says(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = rig.pair_with(kind, Options { cqe: 5, ..Options::default() });
        for round in 0..10 {
            (0..5).for_each(|id| b.receive(id, 0, 8));
            (0..5).for_each(|id| a.send(round + id, 0, 8));
            for id in 0..5 {
                assert_eq!(
                    (a.sent(), b.received()),
                    ((round + id, WcStatus::SUCCESS), (id, WcStatus::SUCCESS))
                );
            }
        }
        assert_eq!(b.node.event(std::time::Duration::ZERO), None);
    }
}
