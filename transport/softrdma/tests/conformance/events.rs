//! Completion channels: descriptors that become readable, once for each arming.

use crate::{
    rig::{End, Options, Rig, init_attr},
    verbs::{Channel, PATIENCE, Parts, Queue, Work, is_readable},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};
use verbs_sys::{QpState, QpType, SendFlags, WcStatus};

/// Connected ends, of which the second receives into a queue with a channel.
fn announced(rig: &Rig) -> (End, End, Arc<Channel>, Arc<Queue>) {
    let options = Options::default();
    let (a, mut b) = rig.unconnected(QpType::RC, options);
    let channel = b.node.channel().expect("a channel");
    let queue = b.node.cq(64, Some(&channel)).expect("a queue");
    let parts = Parts { send: Arc::clone(&b.send), recv: Arc::clone(&queue), srq: None };
    b.qp = b.domain.qp(init_attr(QpType::RC, options), parts).expect("a queue pair");
    b.recv = Arc::clone(&queue);
    a.connect(&b.card(), options);
    b.connect(&a.card(), options);
    (a, b, channel, queue)
}

fn message(a: &End, b: &End, flags: SendFlags) {
    b.receive(0, 0, 8);
    a.post(&Work::send(&[a.piece(0, 8)]).flags(flags | SendFlags::SIGNALED));
    assert_eq!(a.sent().1, WcStatus::SUCCESS);
}

pub(crate) fn a_channel_is_readable_once_for_each_arming(rig: &Rig) {
    let (a, b, channel, queue) = announced(rig);
    message(&a, &b, SendFlags::NONE);
    assert!(!is_readable(channel.fd(), Duration::ZERO), "it was not armed");
    let _ = b.received();
    for _ in 0..3 {
        assert_eq!(queue.arm(false), 0);
        assert!(!is_readable(channel.fd(), Duration::ZERO), "nothing has come yet");
        message(&a, &b, SendFlags::NONE);
        message(&a, &b, SendFlags::NONE);
        channel.fetch(&queue);
        assert!(!is_readable(channel.fd(), Duration::ZERO), "one announcement for one arming");
        queue.acknowledge(1);
        (0..2).for_each(|_| _ = b.received());
    }
}

pub(crate) fn solicited_arming_waits_for_what_is_solicited_or_failed(rig: &Rig) {
    let (a, b, channel, queue) = announced(rig);
    assert_eq!(queue.arm(true), 0);
    message(&a, &b, SendFlags::NONE);
    assert!(!is_readable(channel.fd(), Duration::ZERO));
    message(&a, &b, SendFlags::SOLICITED);
    channel.fetch(&queue);
    assert_eq!(queue.arm(true), 0);
    b.receive(7, 0, 8);
    assert_eq!(b.qp.become_state(QpState::ERR), 0);
    channel.fetch(&queue);
    queue.acknowledge(2);
}

/// Announcements that are fetched and not acknowledged keep a queue from ending, and a queue keeps its channel.
pub(crate) fn announcements_are_acknowledged_before_the_end(rig: &Rig) {
    let (a, b, channel, queue) = announced(rig);
    assert_eq!(channel.end(), libc::EBUSY);
    assert_eq!(queue.end(), libc::EBUSY, "a queue pair completes here");
    for _ in 0..2 {
        assert_eq!(queue.arm(false), 0);
        message(&a, &b, SendFlags::NONE);
        channel.fetch(&queue);
    }
    assert_eq!(b.qp.end(), 0);
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(queue.end(), 0);
            has_ended.store(true, SeqCst);
        });
        thread::sleep(Duration::from_millis(20));
        assert!(!has_ended.load(SeqCst), "it ends with announcements that are not acknowledged");
        queue.acknowledge(2);
    });
    assert_eq!(channel.end(), 0);
}

/// The usual loop (arm, poll once more, sleep) misses nothing, however the sender races with it.
pub(crate) fn no_completion_is_slept_through(rig: &Rig) {
    let (a, b, channel, queue) = announced(rig);
    let many = 2000;
    thread::scope(|scope| {
        scope.spawn(|| {
            for id in 0..many {
                // The receiver posts one at a time, so every send waits for it.
                a.send(id, 0, 8);
                assert_eq!(a.sent(), (id, WcStatus::SUCCESS));
            }
        });
        let mut announcements = 0;
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
                assert!(is_readable(channel.fd(), PATIENCE), "slept through message {id}");
                channel.fetch(&queue);
                announcements += 1;
            }
        }
        queue.acknowledge(announcements);
    });
    while is_readable(channel.fd(), Duration::ZERO) {
        channel.fetch(&queue);
        queue.acknowledge(1);
    }
}
