//! Cables that delay, lose and damage messages: which ends notice, and which do not.

use crate::{
    rig::{Options, Rig},
    verbs::Work,
};
use softrdma::profile::UnmatchedSend;
use std::{
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};
use verbs_sys::{QpType, WcStatus, WrOpcode};

const MANY: u64 = 200;

/// Reliable connections retransmit lost messages; unreliable ones deliver the rest, intact and in order.
pub(crate) fn losses_are_repaired_or_kept_quiet(rig: &Rig) {
    for kind in rig.connections() {
        let rig = rig.another("", "loss = 0.3\nseed = 5");
        let options = Options { retry: 7, timeout: 5, depth: 256, ..Options::default() };
        let (a, b) = rig.pair_with(kind, options);
        for id in 0..MANY {
            b.receive(id, id as usize * 8, 8);
        }
        for id in 0..MANY {
            a.memory.set_word(0, id + 1);
            a.send(id, 0, 8);
            assert_eq!(a.sent(), (id, WcStatus::SUCCESS), "{kind:?}");
        }
        let mut came = Vec::new();
        while let Some(wc) = b.recv.try_poll().expect("in order") {
            assert_eq!((wc.wr_id, wc.status), (came.len() as u64, WcStatus::SUCCESS));
            came.push(b.memory.word(wc.wr_id as usize * 8));
        }
        assert!(came.is_sorted());
        if kind == QpType::RC {
            assert!(came.iter().copied().eq(1..=MANY), "{came:?}");
        } else {
            // About 140 of 200, within eight standard deviations.
            assert!((88..192).contains(&came.len()), "{}", came.len());
        }
    }
}

pub(crate) fn a_cable_that_loses_everything_ends_a_reliable_connection(rig: &Rig) {
    let rig = rig.another("", "loss = 1.0");
    let (a, b) = rig.pair_with(QpType::RC, Options { timeout: 8, ..Options::default() });
    b.receive(1, 0, 8);
    a.send(2, 0, 8);
    assert_eq!(a.sent(), (2, WcStatus::RETRY_EXC_ERR));
    b.recv.stays_empty();
}

/// No checksum of an unreliable connection covers the program's bytes; one bit of each message is flipped.
pub(crate) fn damage_reaches_unreliable_receivers(rig: &Rig) {
    let rig = rig.another("", "corruption = 1.0");
    let (a, b) = rig.pair(QpType::UC);
    for len in [1, 8, 100, 4096] {
        b.memory.fill(0, 8192, 0);
        b.receive(1, 64, len);
        a.send(2, 0, len);
        assert_eq!((a.sent(), b.received()), ((2, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)));
        let wrong: u32 = (0..8192).map(|at| b.memory.get(at).count_ones()).sum();
        let inside: u32 = (64..64 + len).map(|at| b.memory.get(at).count_ones()).sum();
        assert_eq!((wrong, inside), (1, 1), "{len}");
    }
}

/// The receive must exist when its message arrives, not when it leaves.
pub(crate) fn a_receive_in_time_is_one(rig: &Rig) {
    let rig = rig.another("", "latency_us = 20000.0");
    let (a, b) = rig.pair(QpType::UC);
    let holds = rig.profile.uc_unmatched_send == UnmatchedSend::Hold;
    a.memory.pattern(0, 8, 3);
    let began = Instant::now();
    a.send(1, 0, 8);
    b.receive(2, 0, 8);
    // The sender does not call the device meanwhile.
    assert_eq!(b.received(), (2, WcStatus::SUCCESS));
    assert!(began.elapsed() >= Duration::from_millis(20), "{:?}", began.elapsed());
    assert!(b.memory.has_pattern(0, 8, 3));
    assert_eq!(a.sent(), (1, WcStatus::SUCCESS));
    a.send(3, 0, 8);
    if !holds {
        assert_eq!(a.sent(), (3, WcStatus::SUCCESS));
        b.receive(4, 0, 8);
        b.recv.stays_empty();
    }
}

/// The bytes of a read come back over the cable: they take time, and count, in that direction.
pub(crate) fn what_is_read_travels_back(rig: &Rig) {
    for cable in ["", "bandwidth_gbps = 0.01"] {
        let rig = rig.another("", cable);
        let (a, b) = rig.pair(QpType::RC);
        let bytes = 50_000;
        let observer = rig.observer();
        let count = |side: usize| observer.control().cables[0].lanes[side].bytes.load(Relaxed);
        let began = Instant::now();
        a.post(&Work::new(WrOpcode::RDMA_READ, &[a.sge(0, bytes)]).at(b.memory.address(), b.region.rkey));
        // Messages in the other direction are not delayed.
        a.receive(2, 0, 8);
        b.receive(3, 0, 8);
        a.send(4, 0, 8);
        assert_eq!(b.received().1, WcStatus::SUCCESS);
        if !cable.is_empty() {
            assert!(began.elapsed() < Duration::from_millis(40), "{:?}", began.elapsed());
        }
        assert_eq!((a.sent().1, a.sent().1), (WcStatus::SUCCESS, WcStatus::SUCCESS));
        if !cable.is_empty() {
            // 50,000 bytes at 10 Mb/s take 40 ms.
            assert!(began.elapsed() >= Duration::from_millis(40), "{:?}", began.elapsed());
        }
        assert_eq!((count(0), count(1)), (8, bytes as u64), "{cable}");
    }
}

/// A receive does not complete before its message can have arrived.
pub(crate) fn messages_take_their_time(rig: &Rig) {
    let rig = rig.another("", "latency_us = 20000.0");
    for kind in rig.connections() {
        let (a, b) = rig.pair(kind);
        b.receive(1, 0, 8);
        let began = Instant::now();
        a.send(2, 0, 8);
        assert_eq!(b.received(), (1, WcStatus::SUCCESS));
        assert!(began.elapsed() >= Duration::from_millis(20), "{:?}", began.elapsed());
        assert_eq!(a.sent(), (2, WcStatus::SUCCESS));
        let is_answered = began.elapsed() >= Duration::from_millis(40);
        assert!(kind != QpType::RC || is_answered, "{:?}", began.elapsed());
    }
}
