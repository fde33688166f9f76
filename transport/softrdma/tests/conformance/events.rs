//! Completion channels: descriptors that become readable once for each arming.

use crate::{
    rig::{End, Options, Rig, init_attr},
    verbs::{Channel, CompletionQueue, Node, Queues, TIMEOUT, Work, is_readable, wait_for},
};
use softrdma::control::Command;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};
use verbs_sys::{EventType, QpState, QpType, SendFlags, WcStatus};

/// Returns connected ends, of which the second receives into a queue with a channel.
fn pair_with_channel(rig: &Rig) -> (End, End, Arc<Channel>, Arc<CompletionQueue>) {
    let options = Options::default();
    let (a, mut b) = rig.unconnected(QpType::RC, options);
    let channel = b.node.channel().expect("a channel");
    let queue = b.node.cq(64, Some(&channel)).expect("a queue");
    let queues = Queues { send: Arc::clone(&b.send), recv: Arc::clone(&queue), srq: None };
    b.qp = b.domain.qp(init_attr(QpType::RC, options), queues).expect("a queue pair");
    b.recv = Arc::clone(&queue);
    a.connect(&b.info(), options);
    b.connect(&a.info(), options);
    (a, b, channel, queue)
}

fn message(a: &End, b: &End, flags: SendFlags) {
    b.receive(0, 0, 8);
    a.post(&Work::send(&[a.sge(0, 8)]).flags(flags | SendFlags::SIGNALED));
    assert_eq!(a.sent().1, WcStatus::SUCCESS);
}

pub(crate) fn a_channel_is_readable_once_for_each_arming(rig: &Rig) {
    let (a, b, channel, queue) = pair_with_channel(rig);
    message(&a, &b, SendFlags::NONE);
    assert!(!is_readable(channel.fd(), Duration::ZERO), "it was not armed");
    let _ = b.received();
    for _ in 0..3 {
        assert_eq!(queue.arm(false), 0);
        assert!(!is_readable(channel.fd(), Duration::ZERO), "nothing has come yet");
        message(&a, &b, SendFlags::NONE);
        message(&a, &b, SendFlags::NONE);
        channel.take_event(&queue);
        assert!(!is_readable(channel.fd(), Duration::ZERO), "one announcement for one arming");
        queue.acknowledge(1);
        (0..2).for_each(|_| _ = b.received());
    }
}

pub(crate) fn a_non_blocking_channel_says_that_it_has_no_event(rig: &Rig) {
    let (a, b, channel, queue) = pair_with_channel(rig);
    channel.set_nonblocking();
    assert!(!channel.take_event_if_any(&queue));
    assert_eq!(queue.arm(false), 0);
    message(&a, &b, SendFlags::NONE);
    assert!(is_readable(channel.fd(), TIMEOUT) && channel.take_event_if_any(&queue));
    assert!(!channel.take_event_if_any(&queue));
    queue.acknowledge(1);
}

pub(crate) fn solicited_arming_waits_for_what_is_solicited_or_failed(rig: &Rig) {
    let (a, b, channel, queue) = pair_with_channel(rig);
    assert_eq!(queue.arm(true), 0);
    message(&a, &b, SendFlags::NONE);
    assert!(!is_readable(channel.fd(), Duration::ZERO));
    message(&a, &b, SendFlags::SOLICITED);
    channel.take_event(&queue);
    assert_eq!(queue.arm(true), 0);
    b.receive(7, 0, 8);
    assert_eq!(b.qp.become_state(QpState::ERR), 0);
    channel.take_event(&queue);
    queue.acknowledge(2);
}

/// Events that were taken but not acknowledged delay the end of their queue, and a queue keeps its channel.
pub(crate) fn announcements_are_acknowledged_before_the_end(rig: &Rig) {
    let (a, b, channel, queue) = pair_with_channel(rig);
    assert_eq!(channel.destroy(), libc::EBUSY);
    assert_eq!(queue.destroy(), libc::EBUSY, "a queue pair completes here");
    for _ in 0..2 {
        assert_eq!(queue.arm(false), 0);
        message(&a, &b, SendFlags::NONE);
        channel.take_event(&queue);
    }
    assert_eq!(b.qp.destroy(), 0);
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(queue.destroy(), 0);
            has_ended.store(true, SeqCst);
        });
        thread::sleep(Duration::from_millis(20));
        assert!(!has_ended.load(SeqCst), "it ends with events that are not acknowledged");
        queue.acknowledge(2);
    });
    assert_eq!(channel.destroy(), 0);
}

/// Asserts that the destruction of an object waits until an event about it is acknowledged.
fn ends_once_acknowledged(node: &Node, kind: EventType, end: impl Fn() -> i32 + Sync) {
    let event = wait_for("an event", || {
        let event = node.next_event(TIMEOUT).expect("an event");
        if event.kind() == kind {
            return Some(event);
        }
        event.acknowledge();
        None
    });
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(end(), 0);
            has_ended.store(true, SeqCst);
        });
        thread::sleep(Duration::from_millis(20));
        assert!(!has_ended.load(SeqCst), "{kind:?}: it ends before its event is acknowledged");
        event.acknowledge();
    });
    assert!(has_ended.load(SeqCst));
}

pub(crate) fn events_are_acknowledged_before_the_end(rig: &Rig) {
    let (a, _b) = rig.pair(QpType::UC);
    let observer = rig.observer();
    observer.control().issue(Command::OverflowCq { port: 0, qp: 0 });
    observer.wake_all();
    ends_once_acknowledged(&a.node, EventType::QP_FATAL, || a.qp.destroy());
    let (a, _b) = rig.pair(QpType::UC);
    observer.control().issue(Command::OverflowCq { port: 0, qp: a.qp.number() });
    observer.wake_all();
    // The event of the queue for sends comes first, being the older one.
    let event = a.node.next_event(TIMEOUT).expect("an event");
    assert_eq!(event.kind(), EventType::CQ_ERR);
    assert_eq!(a.qp.destroy(), 0);
    thread::scope(|scope| {
        let ending = scope.spawn(|| a.send.destroy());
        thread::sleep(Duration::from_millis(20));
        assert!(!ending.is_finished(), "it ends before its event is acknowledged");
        event.acknowledge();
        assert_eq!(ending.join().expect("a thread"), 0);
    });
}

pub(crate) fn events_of_shared_receives_are_acknowledged_before_the_end(rig: &Rig) {
    let node = rig.open("a");
    let end = End::new(&node, QpType::RC, Options::default());
    let srq = end.domain.srq(4, 1).expect("a shared queue");
    let queues =
        Queues { send: Arc::clone(&end.send), recv: Arc::clone(&end.recv), srq: Some(Arc::clone(&srq)) };
    let other = End::new(&rig.open("b"), QpType::RC, Options::default());
    let mut shared = end;
    shared.qp = shared.domain.qp(init_attr(QpType::RC, Options::default()), queues).expect("a queue pair");
    shared.connect(&other.info(), Options::default());
    other.connect(&shared.info(), Options::default());
    (0..2).for_each(|id| assert_eq!(srq.post(id, &[shared.sge(0, 8)]), 0));
    assert_eq!(srq.limit(2), 0);
    other.send(1, 0, 8);
    assert_eq!((other.sent().1, shared.received().1), (WcStatus::SUCCESS, WcStatus::SUCCESS));
    assert_eq!(shared.qp.destroy(), 0);
    ends_once_acknowledged(&node, EventType::SRQ_LIMIT_REACHED, || srq.destroy());
}

/// The usual loop (arm, poll once more, sleep) misses no completion in a race with the sender.
pub(crate) fn no_completion_is_slept_through(rig: &Rig) {
    let (a, b, channel, queue) = pair_with_channel(rig);
    let many = 2000;
    thread::scope(|scope| {
        scope.spawn(|| {
            for id in 0..many {
                // The receiver posts one receive at a time, so every send waits for it.
                a.send(id, 0, 8);
                assert_eq!(a.sent(), (id, WcStatus::SUCCESS));
            }
        });
        let mut events = 0;
        for id in 0..many {
            b.receive(id, 0, 8);
            loop {
                if let Some(wc) = queue.try_poll().expect("in order") {
                    assert_eq!(wc.wr_id, id);
                    break;
                }
                assert_eq!(queue.arm(false), 0);
                if let Some(wc) = queue.try_poll().expect("in order") {
                    assert_eq!(wc.wr_id, id);
                    break;
                }
                assert!(is_readable(channel.fd(), TIMEOUT), "slept through message {id}");
                channel.take_event(&queue);
                events += 1;
            }
        }
        queue.acknowledge(events);
    });
    while is_readable(channel.fd(), Duration::ZERO) {
        channel.take_event(&queue);
        queue.acknowledge(1);
    }
}
