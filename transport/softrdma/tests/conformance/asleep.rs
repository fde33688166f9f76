//! Events while no thread polls: messages arrive, timers expire and peers die all the same.
//!
//! The tests assert lower bounds of times; upper bounds are only the time limits of the waits.

use crate::{
    children::Child,
    rig::{End, Options, Rig},
    verbs::{Channel, CompletionQueue, TIMEOUT, Work, is_readable, wait_for},
};
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use verbs_sys::{QpType, SendFlags, WcStatus, WrOpcode};

const LATENCY: Duration = Duration::from_millis(20);

fn slow(rig: &Rig) -> Rig {
    rig.another("", "latency_us = 20000.0")
}

/// Returns connected ends, of which the first has a completion channel.
fn pair_with_channel(rig: &Rig, options: Options) -> (End, End, Arc<Channel>, Arc<CompletionQueue>) {
    let (a, b) = rig.unconnected(QpType::RC, options);
    let (a, channel, queue) = a.with_channel(options);
    a.connect(&b.info(), options);
    b.connect(&a.info(), options);
    (a, b, channel, queue)
}

/// Sleeps until the channel has an event of the queue, and acknowledges it.
fn sleep_until_event(channel: &Channel, queue: &CompletionQueue) {
    assert!(is_readable(channel.fd(), TIMEOUT), "slept through it");
    channel.take_event(queue);
    queue.acknowledge(1);
}

/// No thread calls the device between the post and the arrival.
pub(crate) fn a_write_is_seen_when_it_arrives_and_not_before(rig: &Rig) {
    let rig = slow(rig);
    for kind in rig.connections() {
        let (a, b) = rig.pair(kind);
        a.memory.set_word(0, 7);
        let write = Work::new(WrOpcode::RDMA_WRITE, &[a.sge(0, 8)]).at(b.memory.address(), b.region.rkey);
        let began = Instant::now();
        a.post(&write.flags(SendFlags::NONE));
        wait_for("a write", || (b.memory.aligned_word(0) == 7).then_some(()));
        assert!(began.elapsed() >= LATENCY, "{:?}", began.elapsed());
    }
}

/// Writes that are posted together arrive together, and in order.
pub(crate) fn writes_behind_each_other_lose_no_time(rig: &Rig) {
    let rig = slow(rig);
    let (a, b) = rig.pair(QpType::RC);
    let began = Instant::now();
    for number in 0..8 {
        a.memory.set_word(number * 8, number as u64 + 1);
        let target = b.memory.address() + number as u64 * 8;
        let write = Work::new(WrOpcode::RDMA_WRITE, &[a.sge(number * 8, 8)]).at(target, b.region.rkey);
        a.post(&write.id(number as u64));
    }
    for number in 0..8 {
        assert_eq!(a.sent(), (number, WcStatus::SUCCESS));
        assert_eq!(b.memory.word(number as usize * 8), number + 1);
    }
    let took = began.elapsed();
    // One after the other, each would take two latencies.
    assert!(took >= 2 * LATENCY && took < 10 * LATENCY, "{took:?}");
}

pub(crate) fn a_read_sees_what_is_there_when_it_arrives(rig: &Rig) {
    let rig = slow(rig);
    let (a, b) = rig.pair(QpType::RC);
    b.memory.set_word(0, 1);
    a.post(&Work::new(WrOpcode::RDMA_READ, &[a.sge(64, 8)]).at(b.memory.address(), b.region.rkey));
    b.memory.set_word(0, 2);
    assert_eq!(a.sent().1, WcStatus::SUCCESS);
    assert_eq!(a.memory.word(64), 2);
}

pub(crate) fn an_atomic_operation_happens_when_it_arrives(rig: &Rig) {
    let rig = slow(rig);
    let (a, b) = rig.pair(QpType::RC);
    b.memory.set_word(0, 1);
    let add = Work::new(WrOpcode::ATOMIC_FETCH_AND_ADD, &[a.sge(64, 8)]).operands(10, 0);
    let began = Instant::now();
    a.post(&add.at(b.memory.address(), b.region.rkey));
    wait_for("an addition", || (b.memory.aligned_word(0) == 11).then_some(()));
    assert!(began.elapsed() >= LATENCY, "{:?}", began.elapsed());
    assert_eq!((a.sent().1, a.memory.word(64)), (WcStatus::SUCCESS, 1));
}

/// The receiver polls the descriptor of the channel itself.
pub(crate) fn a_sleeping_receiver_is_woken_when_its_message_arrives(rig: &Rig) {
    let rig = slow(rig);
    let (b, a, channel, queue) = pair_with_channel(&rig, Options::default());
    b.receive(1, 0, 8);
    assert_eq!(queue.arm(false), 0);
    let began = Instant::now();
    a.send(2, 0, 8);
    sleep_until_event(&channel, &queue);
    assert!(began.elapsed() >= LATENCY, "{:?}", began.elapsed());
    assert_eq!(queue.poll().wr_id, 1);
}

/// A message that is in flight when its queue is armed was once missed.
pub(crate) fn who_arms_while_a_message_is_on_its_way_is_woken(rig: &Rig) {
    let rig = slow(rig);
    let (b, a, channel, queue) = pair_with_channel(&rig, Options::default());
    for only_solicited in [false, true] {
        b.receive(1, 0, 8);
        a.post(&Work::send(&[a.sge(0, 8)]).flags(SendFlags::SOLICITED));
        assert_eq!(queue.arm(only_solicited), 0);
        assert!(queue.try_poll().expect("in order").is_none());
        sleep_until_event(&channel, &queue);
        assert_eq!(queue.poll().wr_id, 1);
    }
}

pub(crate) fn a_sleeping_sender_is_woken_when_it_is_answered(rig: &Rig) {
    let rig = slow(rig);
    let (a, b, channel, queue) = pair_with_channel(&rig, Options::default());
    b.receive(1, 0, 8);
    for work in [
        Work::send(&[a.sge(0, 8)]),
        Work::new(WrOpcode::RDMA_WRITE, &[a.sge(0, 8)]).at(b.memory.address(), b.region.rkey),
    ] {
        assert_eq!(queue.arm(false), 0);
        let began = Instant::now();
        a.post(&work.id(2));
        sleep_until_event(&channel, &queue);
        assert!(began.elapsed() >= 2 * LATENCY, "{:?}", began.elapsed());
        assert_eq!(queue.poll().status, WcStatus::SUCCESS);
    }
}

/// An unsolicited message neither wakes a process that waits for a solicited one, nor hides that one.
pub(crate) fn solicited_messages_are_announced_when_they_arrive(rig: &Rig) {
    let rig = slow(rig);
    let (b, a, channel, queue) = pair_with_channel(&rig, Options::default());
    (0..2).for_each(|id| b.receive(id, 0, 8));
    assert_eq!(queue.arm(true), 0);
    a.send(0, 0, 8);
    thread::sleep(LATENCY / 2);
    let began = Instant::now();
    a.post(&Work::send(&[a.sge(0, 8)]).flags(SendFlags::SOLICITED));
    sleep_until_event(&channel, &queue);
    assert!(began.elapsed() >= LATENCY, "{:?}", began.elapsed());
}

pub(crate) fn a_sleeping_sender_learns_that_its_retries_ran_out(rig: &Rig) {
    let options = Options { rnr_retry: 1, ..Options::default() };
    let (a, _b, channel, queue) = pair_with_channel(rig, options);
    assert_eq!(queue.arm(false), 0);
    a.send(2, 0, 8);
    sleep_until_event(&channel, &queue);
    assert_eq!(queue.poll().status, WcStatus::RNR_RETRY_EXC_ERR);
}

pub(crate) fn a_sleeping_sender_learns_that_nobody_answers(rig: &Rig) {
    let options = Options { retry: 1, timeout: 10, ..Options::default() };
    let (a, b) = rig.unconnected(QpType::RC, options);
    let (a, channel, queue) = a.with_channel(options);
    a.connect(&b.info(), options);
    assert_eq!(queue.arm(false), 0);
    a.send(2, 0, 8);
    sleep_until_event(&channel, &queue);
    assert_eq!(queue.poll().status, WcStatus::RETRY_EXC_ERR);
}

/// The sender waits for a receive without limit, but not for a receive of a dead peer.
pub(crate) fn a_sleeping_sender_learns_of_its_peers_death(rig: &Rig) {
    let options = Options::default();
    let child = Child::start(rig, QpType::RC, "idle");
    let end = End::new(&rig.open("a"), QpType::RC, options);
    let (a, channel, queue) = end.with_channel(options);
    a.connect(&child.exchange(&a.info()), options);
    child.begin();
    for id in 0..4 {
        a.send(id, 0, 8);
        assert_eq!(queue.poll().status, WcStatus::SUCCESS);
    }
    assert_eq!(queue.arm(false), 0);
    a.send(4, 0, 8);
    child.kill();
    sleep_until_event(&channel, &queue);
    assert_eq!(queue.poll().status, WcStatus::RETRY_EXC_ERR);
}
