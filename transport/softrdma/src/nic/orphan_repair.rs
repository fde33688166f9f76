//! Repair of work that a process left half done when it died.
//!
//! A process may be killed at any point. The next process that takes over one of its locks finishes or
//! repeats what the lock protects:
//!
//! - a send queue: [`recover_send_queue`];
//! - a receive queue: [`recover_receive_queue`];
//! - a completion queue: the next push, or [`repair_notifications`] when nobody pushes any more.
//!
//! A completion is reported in steps: it is written, the queue is disarmed, the notification is counted, a
//! datagram is sent. The lock of the queue is held through all of them. If the pusher is killed between two
//! steps, the next pusher finds a dead holder and does the rest. Without a next pusher, the program that
//! sleeps on the channel would sleep for ever. So while a process has event channels, its [timer
//! thread](super::timer_thread) looks periodically for completion queues whose lock is held by a dead
//! process.
//!
//! Invariant: while nobody holds a queue's lock, each notification has a datagram, and no datagram is without
//! a notification: programs wait for the descriptor to become readable, and then for the notification.

use super::{completions::Completions, event_channels::EventChannels, member::Member, qp::QpRef};
use crate::{
    clock::now,
    shm::{CQS, QueueKind, RqRecord},
};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Recovers a send queue whose lock was held by a dead process.
///
/// If that process has written the completion of the request at the head, the request is done. Otherwise the
/// request is executed again.
///
/// No message is seen twice. Only the processes of the two ends take this lock for more than to flush. If the
/// owner has died, its remaining requests are dropped: the peer may have received the first already, and
/// would receive it again. If the peer has died, nobody can see the message.
#[cold]
pub(super) fn recover_send_queue(qp: QpRef<'_>) {
    let send = &qp.record.send;
    let (intent, head) = (send.intent.load(Acquire), send.head.load(Relaxed));
    let cq = qp.view.cq(qp.record.fixed.send_cq.load(Relaxed));
    if qp.view.is_dead() {
        send.head.store(qp.record.producer.tail.load(Acquire), Release);
    } else if cq.is_some_and(|cq| cq.was_pushed(qp.view, intent, Some(qp.qpn()), QueueKind::Send, head)) {
        send.head.store(head + 1, Release);
    }
    send.intent.store(0, Relaxed);
}

/// Recovers a receive queue whose lock was held by a dead process.
///
/// If that process has written the completion of the receive at the head, the receive is used up. Otherwise
/// it serves the next message.
#[cold]
pub(super) fn recover_receive_queue(qp: QpRef<'_>, rq: &RqRecord) {
    let consumer = &rq.consumer;
    let (intent, head) = (consumer.intent.load(Acquire), consumer.head.load(Relaxed));
    let qpn = (rq.kind() == QueueKind::Receive).then(|| qp.qpn());
    let cq = qp.view.cq(consumer.intent_cq.load(Relaxed) as u32);
    if cq.is_some_and(|cq| cq.was_pushed(qp.view, intent, qpn, rq.kind(), head)) {
        consumer.head.store(head + 1, Release);
    }
    consumer.intent.store(0, Relaxed);
}

/// Delivers notifications to this process whose sender died midway.
pub(super) fn repair_notifications(member: &Member, channels: &EventChannels) {
    let process = member.process();
    let own = process.own();
    let now = now();
    for (index, record) in (1..CQS).filter_map(|index| Some((index, own.cq(index)?))) {
        let channel = record.fixed.channel.load(Relaxed);
        if channel == 0 || record.fixed.capacity.load(Relaxed) == 0 {
            continue;
        }
        if record.recover(own, process.me, |owner| process.is_dead(owner), now) {
            channels.wake_if_silent(process, channel);
        }
        Completions::new(member).schedule_next(index, record);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{super::member::tests::member, *};
    use crate::shm::Completion;

    /// The dead process had noted its intent, and had or had not written the completion.
    #[test]
    fn a_request_is_done_once_its_completion_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let member = member(&folder);
        let own = member.process().own();
        let cq = own.cq(1).expect("a record");
        let ring = member.process().allocate(4 * 64).expect("room");
        cq.init(ring.0, 4, 4, 0, 0);
        let record = own.qp(2).expect("a record");
        record.fixed.qpn.store(2, Relaxed);
        record.fixed.send_cq.store(1, Relaxed);
        let qp = QpRef::new(own, record);
        let send = &record.send;
        send.intent.store(1, Relaxed);
        recover_send_queue(qp);
        assert_eq!((send.head.load(Relaxed), send.intent.load(Relaxed)), (0, 0), "to be executed again");
        let completion = Completion { qpn: 2, ..Completion::default() };
        assert!(Completions::new(&member).push(own, 1, Some(&send.intent), &completion));
        recover_send_queue(qp);
        assert_eq!((send.head.load(Relaxed), send.intent.load(Relaxed)), (1, 0), "done");
    }
}
