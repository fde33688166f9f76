//! Faults that are injected from outside while connections are up, on every kind of device.

use crate::{
    children::Child,
    memory::{Memory, PAGE},
    rig::{ALL, End, Options, Rig, init_attr},
    verbs::{Node, Queues, TIMEOUT, wait_for},
};
use softrdma::{
    Observer,
    control::Command,
    fabric::{GidChange, Override},
    profile::UnmatchedSend,
};
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use verbs_sys::{EventType, PortState, QpState, QpType, WcStatus};

/// Injects a fault, and wakes the processes that wait for events.
fn inject(observer: &Observer, fault: impl FnOnce(&Observer)) {
    fault(observer);
    observer.wake_all();
}

/// Asserts that a port reports one event, and then its new state.
fn expect_port_state(node: &Arc<Node>, event: EventType, state: PortState) {
    assert_eq!(node.event(TIMEOUT), Some(event));
    assert_eq!(node.port().state, state);
    assert_eq!(node.event(Duration::ZERO), None, "once");
}

fn holds(rig: &Rig, kind: QpType) -> bool {
    kind == QpType::UC && rig.profile.uc_unmatched_send == UnmatchedSend::Hold
}

/// Checks a message while there is no link, and the next one when the link is back.
fn check_cut_and_repair(rig: &Rig, kind: QpType, cut: fn(&Observer), repair: fn(&Observer)) {
    let (a, b) = rig.pair_with(kind, Options { timeout: 8, ..Options::default() });
    let observer = rig.observer();
    inject(&observer, cut);
    expect_port_state(&a.node, EventType::PORT_ERR, PortState::DOWN);
    expect_port_state(&b.node, EventType::PORT_ERR, PortState::DOWN);
    b.receive(1, 0, 8);
    a.send(2, 0, 8);
    match kind {
        QpType::RC => assert_eq!(a.sent(), (2, WcStatus::RETRY_EXC_ERR)),
        _ if holds(rig, kind) => a.send.stays_empty(),
        _ => assert_eq!(a.sent(), (2, WcStatus::SUCCESS)),
    }
    b.recv.stays_empty();
    inject(&observer, repair);
    expect_port_state(&a.node, EventType::PORT_ACTIVE, PortState::ACTIVE);
    expect_port_state(&b.node, EventType::PORT_ACTIVE, PortState::ACTIVE);
    if kind == QpType::RC {
        return assert_eq!(a.qp.state(), QpState::ERR);
    }
    if holds(rig, kind) {
        assert_eq!((a.sent(), b.received()), ((2, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)));
        b.receive(1, 0, 8);
    }
    a.send(3, 0, 8);
    assert_eq!((a.sent(), b.received()), ((3, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)));
}

pub(crate) fn a_pulled_cable_takes_both_ports_down_until_it_is_back(rig: &Rig) {
    for kind in rig.connections() {
        let (cut, repair) = (
            |observer: &Observer| observer.control().set_unplugged(0, true),
            |observer: &Observer| observer.control().set_unplugged(0, false),
        );
        check_cut_and_repair(rig, kind, cut, repair);
    }
}

/// A port that is taken down at one end leaves the other without a link.
pub(crate) fn a_port_that_goes_down_takes_the_other_end_along(rig: &Rig) {
    for kind in rig.connections() {
        let (cut, repair) = (
            |observer: &Observer| observer.control().force_port(0, Override::Off),
            |observer: &Observer| observer.control().force_port(0, Override::AsInFile),
        );
        check_cut_and_repair(rig, kind, cut, repair);
    }
}

/// A break shorter than the sender's timeout.
pub(crate) fn a_reliable_message_outlives_a_short_break(rig: &Rig) {
    let (a, b) = rig.pair_with(QpType::RC, Options { timeout: 20, ..Options::default() });
    let observer = rig.observer();
    b.receive(1, 0, 8);
    observer.control().force_port(0, Override::Off);
    a.send(2, 0, 8);
    a.send.stays_empty();
    observer.control().force_port(0, Override::On);
    assert_eq!((a.sent(), b.received()), ((2, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)));
}

pub(crate) fn queue_pairs_fail_on_command(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = rig.pair(kind);
        let (c, _d) = rig.pair(kind);
        (1..=2).for_each(|id| a.receive(id, 0, 8));
        let observer = rig.observer();
        inject(&observer, |o| o.control().issue(Command::FailQp { port: 0, qp: a.qp.number() }));
        assert_eq!(a.node.event(TIMEOUT), Some(EventType::QP_FATAL));
        (1..=2).for_each(|id| assert_eq!(a.received(), (id, WcStatus::WR_FLUSH_ERR)));
        assert_eq!(
            (a.qp.state(), b.qp.state(), c.qp.state()),
            (QpState::ERR, QpState::RTS, QpState::RTS),
            "only the one that was named"
        );
        inject(&observer, |o| o.control().issue(Command::FailQp { port: 0, qp: 0 }));
        c.wait_for_state(QpState::ERR);
    }
}

pub(crate) fn completion_queues_overflow_on_command(rig: &Rig) {
    for kind in rig.connections() {
        let (a, _b) = rig.pair(kind);
        a.receive(1, 0, 8);
        inject(&rig.observer(), |o| o.control().issue(Command::OverflowCq { port: 0, qp: 0 }));
        let mut events: Vec<_> = (0..3).map(|_| a.node.event(TIMEOUT).expect("an event").0).collect();
        events.sort_unstable();
        let expected = [EventType::CQ_ERR, EventType::QP_FATAL].map(|event| event.0);
        assert_eq!(events, [expected[0], expected[0], expected[1]], "two queues, one queue pair");
        assert!(a.send.try_poll().is_err() && a.recv.try_poll().is_err());
        assert_eq!(a.qp.state(), QpState::ERR);
    }
}

pub(crate) fn a_stalled_node_goes_on_where_it_stopped(rig: &Rig) {
    for kind in rig.connections() {
        // The timeout is long enough that a reliable sender does not give up.
        let (a, b) = rig.pair_with(kind, Options { timeout: 20, ..Options::default() });
        let observer = rig.observer();
        b.receive(1, 0, 8);
        observer.control().set_stalled(0, true);
        a.send(2, 0, 8);
        a.send.stays_empty();
        b.recv.stays_empty();
        observer.control().set_stalled(0, false);
        assert_eq!((a.sent(), b.received()), ((2, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)));
    }
}

pub(crate) fn addresses_that_change_are_told(rig: &Rig) {
    let (node, observer) = (rig.open("a"), rig.observer());
    assert_eq!(node.ipv4_index(), Some(1));
    let moved = GidChange { index: Some(3), ipv4: None };
    inject(&observer, |o| o.control().change_gid(0, Override::On, moved));
    assert_eq!((node.event(TIMEOUT), node.ipv4_index()), (Some(EventType::GID_CHANGE), Some(3)));
    inject(&observer, |o| o.control().change_gid(0, Override::Off, GidChange::default()));
    assert_eq!((node.event(TIMEOUT), node.ipv4_index()), (Some(EventType::GID_CHANGE), None));
    inject(&observer, |o| o.control().change_gid(0, Override::AsInFile, GidChange::default()));
    assert_eq!((node.event(TIMEOUT), node.ipv4_index()), (Some(EventType::GID_CHANGE), Some(1)));
}

/// Protection domains that crashed processes leak in the kernel, until the next boot.
pub(crate) fn leaked_domains_are_missing(rig: &Rig) {
    let (node, observer) = (rig.open("a"), rig.observer());
    let refused = rig.profile.errnos.no_domain;
    observer.control().leak_pds(0, rig.profile.max_pd - 1);
    let last = node.pd().expect("the last one");
    assert_eq!(node.pd().err(), Some(refused));
    drop(last);
    observer.control().leak_pds(0, u32::MAX);
    assert_eq!(node.pd().err(), Some(refused));
    assert!(rig.open("b").pd().is_ok(), "another device");
    observer.control().leak_pds(0, 0);
    assert!(node.pd().is_ok());
}

/// Asserts that a connection has stopped without an error, and that a new one works.
fn check_stopped(a: &End, b: &End) {
    b.receive(1, 0, 8);
    a.send(2, 0, 8);
    for queue in [&a.send, &a.recv, &b.send, &b.recv] {
        queue.stays_empty();
    }
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::RTS, QpState::RTS));
    assert_eq!((a.node.event(Duration::ZERO), b.node.event(Duration::ZERO)), (None, None));
    for (end, other) in [(a, b), (b, a)] {
        assert_eq!(end.qp.become_state(QpState::RESET), 0);
        end.connect(&other.info(), Options::default());
    }
    b.receive(3, 0, 8);
    a.send(4, 0, 8);
    assert_eq!((a.sent(), b.received()), ((4, WcStatus::SUCCESS), (3, WcStatus::SUCCESS)));
}

/// mesh's and hellas's notes: work is refused before the reported depth is reached.
pub(crate) fn queues_take_less_than_they_say(rig: &Rig) {
    let shallow = rig.another("usable_depth = 4", "");
    let (a, b) = shallow.pair(QpType::UC);
    assert!(a.qp.cap.max_recv_wr > 4);
    let count = (0..).take_while(|_| a.qp.receive(0, &[a.sge(0, 8)]) == 0).count();
    assert_eq!(count, 4);
    b.send(1, 0, 8);
    assert_eq!(a.received(), (0, WcStatus::SUCCESS));
    assert_eq!(a.qp.receive(0, &[a.sge(0, 8)]), 0, "there is room for one more");
    assert_eq!(a.qp.receive(0, &[a.sge(0, 8)]), libc::ENOMEM);
}

/// gojaccl's notes and exo issue 1973: traffic keeps a connection alive, idleness stops it.
pub(crate) fn idle_connections_stop(rig: &Rig) {
    let quick = rig.another("idle_ms = 200", "");
    let (a, b) = quick.pair(QpType::UC);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(500) {
        b.receive(1, 0, 8);
        a.send(2, 0, 8);
        assert_eq!((a.sent(), b.received()), ((2, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)));
        thread::sleep(Duration::from_millis(5));
    }
    thread::sleep(Duration::from_millis(300));
    check_stopped(&a, &b);
    // The command stops a connection without a wait of 30 minutes.
    let (a, b) = rig.pair(QpType::UC);
    rig.observer().control().issue(Command::Sleep { port: 0, qp: a.qp.number() });
    check_stopped(&a, &b);
}

/// mlx issue 4192: posting of sends or receives while the cable is unplugged.
pub(crate) fn posting_without_a_cable_crashes_when_asked_to(rig: &Rig) {
    for (role, crashes) in [("post-sends", true), ("post-receives", true), ("post-receives", false)] {
        let observer = rig.observer();
        let mut child = Child::start(rig, QpType::UC, role);
        let a = End::new(&rig.open("a"), QpType::UC, Options::default());
        a.connect(&child.exchange(&a.info()), Options::default());
        child.begin();
        if crashes {
            observer.control().unplug_and_crash(0);
            assert_eq!(child.wait_for_signal(), libc::SIGSEGV, "{role}");
        } else {
            observer.control().set_unplugged(0, true);
            thread::sleep(Duration::from_millis(100));
            assert!(child.is_running(), "the child crashed though no crash was asked for");
        }
        observer.control().set_unplugged(0, false);
    }
}

/// A process is killed while it holds all queue pairs and registrations of a device: others can use them at
/// once.
pub(crate) fn a_killed_process_leaks_nothing(rig: &Rig) {
    let node = rig.open("b");
    let domain = node.pd().expect("a domain");
    let child = Child::start(rig, QpType::UC, "exhaust");
    let a = End::new(&rig.open("a"), QpType::UC, Options::default());
    child.exchange(&a.info());
    let memory = Memory::new(PAGE);
    let [send, recv] = [0, 1].map(|_| node.cq(4, None).expect("a queue"));
    let make = || {
        let queues = Queues { send: Arc::clone(&send), recv: Arc::clone(&recv), srq: None };
        domain.qp(init_attr(QpType::UC, Options::default()), queues)
    };
    assert_eq!(make().err(), Some(libc::EBUSY));
    assert_eq!(domain.register(&memory, ALL).err(), Some(libc::ENOMEM));
    assert_eq!(node.pd().err(), Some(libc::ENODATA));
    child.kill();
    drop(wait_for("a domain", || node.pd().ok()));
    let qps: Vec<_> = (0..10).map(|_| wait_for("a queue pair", || make().ok())).collect();
    let regions: Vec<_> = (0..100).map(|_| domain.register(&memory, ALL).expect("a registration")).collect();
    assert_eq!((qps.len(), regions.len()), (10, 100));
}
