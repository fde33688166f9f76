//! The order in which objects may be destroyed, and the effect on others: of a destroyed object, a fork, a
//! death.

use crate::{
    children::{self, Child},
    rig::{ALL, DataPath, End, Options, Rig},
    verbs::{Queues, Work},
};
use softrdma::profile::{Profile, UnmatchedSend};
use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};
use verbs_sys::{QpState, QpType, WcStatus, WrOpcode};

pub(crate) fn what_is_in_use_cannot_end(rig: &Rig) {
    for kind in rig.connections() {
        let (a, _b) = rig.pair(kind);
        assert_eq!(a.domain.destroy(), libc::EBUSY, "a queue pair and a registration");
        assert_eq!((a.send.destroy(), a.recv.destroy()), (libc::EBUSY, libc::EBUSY), "a queue pair");
        assert_eq!(a.qp.destroy(), 0);
        assert_eq!((a.send.destroy(), a.recv.destroy()), (0, 0));
        assert_eq!(a.domain.destroy(), libc::EBUSY, "a registration");
        assert_eq!(a.region.destroy(), 0);
        assert_eq!(a.domain.destroy(), 0);
    }
}

/// Completions of a destroyed queue pair are removed; those of others stay.
pub(crate) fn a_destroyed_queue_pair_leaves_no_completions(rig: &Rig) {
    for kind in rig.connections() {
        let options = Options::default();
        let (a, b) = rig.pair(kind);
        let queues = Queues { send: Arc::clone(&a.send), recv: Arc::clone(&a.recv), srq: None };
        let other = a.domain.qp(crate::rig::init_attr(kind, options), queues).expect("a queue pair");
        (0..3).for_each(|id| b.receive(id, 0, 8));
        (0..3).for_each(|id| a.send(id, 0, 8));
        assert_eq!(other.destroy(), 0);
        (0..3).for_each(|id| assert_eq!(a.sent(), (id, WcStatus::SUCCESS)));
        (3..6).for_each(|id| b.receive(id, 0, 8));
        (3..6).for_each(|id| a.send(id, 0, 8));
        assert_eq!(a.qp.destroy(), 0);
        a.send.stays_empty();
        (0..6).for_each(|id| assert_eq!(b.received(), (id, WcStatus::SUCCESS)));
    }
}

/// Hundreds of rounds with all objects leave room for one more, and no files.
pub(crate) fn objects_leave_nothing_behind(rig: &Rig) {
    let before = children::open_descriptors();
    for kind in rig.connections() {
        let (a, b) = (rig.open("a"), rig.open("b"));
        for _ in 0..150 {
            let (x, y) = rig.pair(kind);
            y.receive(1, 0, 64);
            x.send(1, 0, 64);
            assert_eq!(y.received().1, WcStatus::SUCCESS);
        }
        drop((a, b));
    }
    assert_eq!(rig.files(), Vec::<String>::new());
    // Other tests in this process open and close descriptors meanwhile; a leak of this test would be of
    // hundreds.
    assert!(children::open_descriptors() < before + 100);
}

/// Two fabrics with equal names in them do not see each other.
pub(crate) fn fabrics_side_by_side_are_apart(rig: &Rig) {
    let other = rig.another("", "");
    for kind in rig.connections() {
        let ((a, b), (c, d)) = (rig.pair(kind), other.pair(kind));
        assert_eq!(
            (a.qp.number(), b.qp.number()),
            (c.qp.number(), d.qp.number()),
            "expected apart only by folder"
        );
        for end in [&b, &d] {
            end.receive(1, 0, 64);
        }
        a.memory.pattern(0, 64, 1);
        c.memory.pattern(0, 64, 2);
        a.send(1, 0, 64);
        assert_eq!((a.sent().1, b.received().1), (WcStatus::SUCCESS, WcStatus::SUCCESS));
        d.recv.stays_empty();
        c.send(1, 0, 64);
        assert_eq!((c.sent().1, d.received().1), (WcStatus::SUCCESS, WcStatus::SUCCESS));
        assert!(b.memory.has_pattern(0, 64, 1) && d.memory.has_pattern(0, 64, 2));
    }
}

/// A process that uses two devices of its node: each has its own cable, and no access to the other's objects.
pub(crate) fn two_devices_in_one_process_are_apart(rig: &Rig) {
    let rig = rig.with_two_devices();
    let open = |node, device| rig.location().open_device(node, device).expect("a device");
    let nodes = ["d0", "d1"].map(|device| (open("a", device), open("b", device)));
    for kind in rig.connections() {
        let pairs = nodes
            .each_ref()
            .map(|(a, b)| (End::new(a, kind, Options::default()), End::new(b, kind, Options::default())));
        let [(a, b), (c, d)] = &pairs;
        assert_eq!(a.to_init(Options::default()), 0);
        assert_eq!(a.to_rtr(&d.info()), libc::ETIMEDOUT, "no cable leads there");
        assert_eq!(a.qp.become_state(QpState::RESET), 0);
        for (left, right) in [(a, b), (c, d)] {
            left.connect(&right.info(), Options::default());
            right.connect(&left.info(), Options::default());
        }
        let observer = rig.observer();
        let counted =
            || [0, 1].map(|cable: usize| observer.control().cables[cable].lanes[0].messages.load(Relaxed));
        let before = counted();
        a.memory.pattern(0, 64, 1);
        c.memory.pattern(0, 64, 2);
        (0..2).for_each(|id| d.receive(id, id as usize * 64, 64));
        b.receive(7, 0, 64);
        c.send(1, 0, 64);
        a.send(2, 0, 64);
        c.send(3, 0, 64);
        assert_eq!((a.sent(), b.received()), ((2, WcStatus::SUCCESS), (7, WcStatus::SUCCESS)));
        assert_eq!((c.sent().0, c.sent().0, d.received().0, d.received().0), (1, 3, 0, 1));
        assert!(
            b.memory.has_pattern(0, 64, 1)
                && d.memory.has_pattern(0, 64, 2)
                && d.memory.has_pattern(64, 64, 2)
        );
        assert_eq!(counted(), [before[0] + 1, before[1] + 2]);
        // A key of one device is not valid on the other.
        let foreign = c.memory.sge(0, 64, c.region.lkey);
        a.post(&Work::send(&[foreign]));
        assert_eq!(a.sent().1, WcStatus::LOC_PROT_ERR, "{kind:?}");
    }
}

/// A queue pair connected to itself.
pub(crate) fn a_queue_pair_can_be_its_own_peer(rig: &Rig) {
    for kind in rig.connections() {
        let (a, _b) = rig.unconnected(kind, Options::default());
        a.connect(&a.info(), Options::default());
        a.memory.pattern(0, 500, 8);
        a.receive(1, 1000, 500);
        a.send(2, 0, 500);
        assert_eq!((a.sent(), a.received()), ((2, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)));
        assert!(a.memory.has_pattern(1000, 500, 8));
    }
}

/// A registration that ends while a peer writes to it: every write is refused or complete.
pub(crate) fn memory_is_not_written_after_its_registration(rig: &Rig) {
    for _ in 0..20 {
        let (a, b) = rig.pair_with(QpType::UC, Options { cqe: 4096, depth: 512, ..Options::default() });
        let region = b.domain.register(&b.memory, ALL).expect("a registration");
        let (address, rkey) = (b.memory.address(), region.rkey);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..400 {
                    a.memory.set_word(0, 1);
                    a.post(&Work::new(WrOpcode::RDMA_WRITE, &[a.sge(0, 4096)]).at(address, rkey));
                }
            });
            std::thread::sleep(Duration::from_micros(300));
            assert_eq!(region.destroy(), 0);
            b.memory.fill(0, 4096, 9);
        });
        assert!(b.memory.has_only(0, 4096, 9));
    }
}

/// A peer that is killed while it has receives posted and sends waiting.
pub(crate) fn a_killed_peer_is_noticed(rig: &Rig) {
    for kind in rig.connections() {
        let child = Child::start(rig, kind, "wait");
        let a = End::new(&rig.open("a"), kind, Options::default());
        let info = child.exchange(&a.info());
        a.connect(&info, Options::default());
        child.begin();
        (0..4).for_each(|id| a.receive(id, 0, 64));
        // The peer has 4 receives posted; further sends wait.
        let first = if kind == QpType::RC { 6 } else { 4 };
        (0..first).for_each(|id| a.send(id, 0, 64));
        (0..4).for_each(|id| assert_eq!(a.sent(), (id, WcStatus::SUCCESS)));
        child.kill();
        let began = Instant::now();
        if kind == QpType::RC {
            assert_eq!(a.sent(), (4, WcStatus::RETRY_EXC_ERR));
            assert_eq!(a.sent(), (5, WcStatus::WR_FLUSH_ERR));
            assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
            (0..4).for_each(|id| assert_eq!(a.received(), (id, WcStatus::WR_FLUSH_ERR)));
            assert_eq!(a.qp.state(), QpState::ERR);
        } else {
            // An unreliable sender gets no error; where sends are held, they are held for ever.
            a.send(7, 0, 64);
            if rig.profile.uc_unmatched_send == UnmatchedSend::Drop {
                assert_eq!(a.sent(), (7, WcStatus::SUCCESS));
            } else {
                a.send.stays_empty();
            }
            a.recv.stays_empty();
            assert_eq!(a.node.event(Duration::ZERO), None);
        }
        // The next process gets the slot of the dead one, whose files are gone.
        let (c, d) = rig.pair(kind);
        d.receive(1, 0, 64);
        c.send(1, 0, 64);
        assert_eq!((c.sent().1, d.received().1), (WcStatus::SUCCESS, WcStatus::SUCCESS));
        drop((a, c, d));
        assert_eq!(rig.files(), Vec::<String>::new(), "{kind:?}");
    }
}

/// Peers that die while they send, at any point: survivors continue.
pub(crate) fn peers_killed_at_work_wedge_nobody(rig: &Rig) {
    for round in 0..12u64 {
        let kind = rig.connections().nth(round as usize % 2).unwrap_or(QpType::UC);
        let child = Child::start(rig, kind, "send");
        let a = End::new(&rig.open("a"), kind, Options { cqe: 64, ..Options::default() });
        let info = child.exchange(&a.info());
        a.connect(&info, Options::default());
        child.begin();
        let deadline = Instant::now() + Duration::from_micros(2000 + round * 700);
        let mut posted = 0;
        while Instant::now() < deadline {
            if posted < 8 && a.qp.receive(1, &[a.sge(0, 4096)]) == 0 {
                posted += 1;
            }
            if a.recv.try_poll().expect("in order").is_some() {
                posted -= 1;
            }
        }
        child.kill();
        // The survivor can take everything that the dead peer held.
        while a.recv.try_poll().expect("in order").is_some() {
            posted -= 1;
        }
        let _ = a.qp.receive(2, &[a.sge(0, 4096)]);
        assert_eq!(a.qp.become_state(QpState::ERR), 0);
        let began = Instant::now();
        let mut flushed = 0;
        while flushed <= posted && began.elapsed() < Duration::from_secs(1) {
            flushed += u64::from(a.recv.try_poll().expect("in order").is_some());
        }
        assert_eq!(flushed, posted + 1, "{kind:?}");
    }
    let _ = rig.open("a");
    assert_eq!(rig.files(), Vec::<String>::new());
}

/// Objects that a forked child inherits return errors, and the parent continues.
#[test]
fn a_fork_leaves_the_child_errors_and_the_parent_its_objects() {
    for path in [DataPath::Copied, DataPath::Shared] {
        let rig = Rig::new(&Profile::IB, path);
        let child = Child::start(&rig, QpType::RC, "fork");
        assert!(child.exits_successfully());
        assert_eq!(rig.files(), Vec::<String>::new());
    }
}
