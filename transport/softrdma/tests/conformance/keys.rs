//! Invalid keys: those that do not cover the memory, are stale, belong to another domain or do not permit the
//! access.

use crate::{
    memory::Memory,
    rig::{ALL, End, Options, Rig, outcome},
    verbs::{Region, TIMEOUT, Work},
};
use verbs_sys::{AccessFlags, EventType, QpState, QpType, Sge, WcStatus, WrOpcode};

/// Offset and length of a region that covers a part of the memory, not aligned to any boundary.
const START: usize = 5000;
const LEN: usize = 3000;

/// Registers the part of the memory from [`START`] with length [`LEN`].
fn register_part(end: &End, access: AccessFlags) -> Region {
    let start = end.memory.address() + START as u64;
    end.domain.register_part(&end.memory, start, LEN, start, access).expect("a registration")
}

/// Connects two queue pairs after their memory is registered, as some devices require.
fn connect(a: &End, b: &End) {
    a.connect(&b.info(), Options::default());
    b.connect(&a.info(), Options::default());
}

/// Returns scatter/gather elements that a key does not cover, with the reason.
fn invalid_sges(end: &End, region: &Region) -> Vec<(&'static str, Sge)> {
    let covered = end.sge(START, LEN);
    let with = |addr: i64, more: u32| Sge {
        addr: covered.addr.wrapping_add_signed(addr),
        length: covered.length + more,
        lkey: region.lkey,
    };
    vec![
        ("an unknown key", Sge { lkey: 0x00ff_ff01, ..covered }),
        ("the key 0", Sge { lkey: 0, ..covered }),
        ("another generation", Sge { lkey: region.lkey ^ 1, ..covered }),
        ("one byte before", with(-1, 0)),
        ("one byte too long", with(0, 1)),
        ("one byte beyond", with(1, 0)),
        ("around the end of addresses", Sge { addr: u64::MAX - 10, ..with(0, 0) }),
    ]
}

/// Returns an element with the key of a region that is deregistered.
fn stale_sge(end: &End, access: AccessFlags) -> Sge {
    let region = register_part(end, access);
    let sge = Sge { lkey: region.lkey, ..end.sge(START, LEN) };
    assert_eq!(region.destroy(), 0);
    sge
}

pub(crate) fn a_region_covers_its_first_and_its_last_byte(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = rig.unconnected(kind, Options::default());
        let (ours, theirs) = (register_part(&a, ALL), register_part(&b, ALL));
        connect(&a, &b);
        a.memory.pattern(START, LEN, 3);
        assert_eq!(b.qp.receive(1, &[b.memory.sge(START, LEN, theirs.lkey)]), 0);
        a.post(&Work::send(&[a.memory.sge(START, LEN, ours.lkey)]));
        assert_eq!((a.sent(), b.received()), ((0, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)));
        assert!(b.memory.has_pattern(START, LEN, 3));
        assert_eq!((b.memory.get(START - 1), b.memory.get(START + LEN)), (0, 0));
    }
}

pub(crate) fn a_send_from_memory_that_its_key_does_not_cover_fails(rig: &Rig) {
    for kind in rig.connections() {
        let count = {
            let (a, _b) = rig.pair(kind);
            invalid_sges(&a, &register_part(&a, ALL)).len()
        };
        for index in 0..=count {
            let (a, b) = rig.unconnected(kind, Options::default());
            let region = register_part(&a, ALL);
            connect(&a, &b);
            let wrong = invalid_sges(&a, &region);
            let (what, sge) =
                wrong.get(index).copied().unwrap_or_else(|| ("a stale key", stale_sge(&a, ALL)));
            b.receive(5, 0, LEN);
            a.post(&Work::send(&[sge]).id(1));
            assert_eq!(a.sent(), (1, WcStatus::LOC_PROT_ERR), "{kind:?}: {what}");
            a.post(&Work::send(&[a.sge(0, 8)]).id(2));
            assert_eq!(a.sent(), (2, WcStatus::WR_FLUSH_ERR), "{kind:?}: {what}");
            b.recv.stays_empty();
            assert_eq!(b.qp.state(), QpState::RTS);
        }
    }
}

pub(crate) fn a_receive_into_memory_that_its_key_does_not_cover_fails(rig: &Rig) {
    for kind in rig.connections() {
        let sges = |b: &End| {
            let region = register_part(b, ALL);
            let read_only = register_part(b, AccessFlags::REMOTE_READ);
            let mut wrong = invalid_sges(b, &region);
            wrong.push(("memory that is not to be written", b.memory.sge(START, LEN, read_only.lkey)));
            (wrong, region, read_only)
        };
        let count = sges(&rig.unconnected(kind, Options::default()).1).0.len();
        for index in 0..=count {
            let (a, b) = rig.unconnected(kind, Options::default());
            let (wrong, _region, _read_only) = sges(&b);
            connect(&a, &b);
            let (what, sge) =
                wrong.get(index).copied().unwrap_or_else(|| ("a stale key", stale_sge(&b, ALL)));
            b.memory.fill(0, b.memory.len(), 9);
            assert_eq!(b.qp.receive(5, &[sge]), 0);
            // Where frames are counted, both ends need the same number; otherwise that would be the error.
            a.send(1, 0, sge.length as usize);
            assert_eq!(b.received(), (5, WcStatus::LOC_PROT_ERR), "{kind:?}: {what}");
            b.wait_for_state(QpState::ERR);
            let expected = if kind == QpType::RC { WcStatus::REM_OP_ERR } else { WcStatus::SUCCESS };
            assert_eq!(a.sent(), (1, expected), "{kind:?}: {what}");
            assert!(b.memory.has_only(0, b.memory.len(), 9), "{kind:?}: {what}");
        }
    }
}

pub(crate) fn a_key_of_another_domain_is_no_key(rig: &Rig) {
    for kind in rig.connections() {
        for is_sender in [true, false] {
            let (a, b) = rig.unconnected(kind, Options::default());
            let end = if is_sender { &a } else { &b };
            let other = end.node.pd().expect("a second domain");
            let foreign = other.register(&end.memory, ALL).expect("a registration");
            connect(&a, &b);
            let of = |end: &End, is_foreign: bool| {
                if is_foreign { end.memory.sge(0, 64, foreign.lkey) } else { end.sge(0, 64) }
            };
            assert_eq!(b.qp.receive(1, &[of(&b, !is_sender)]), 0);
            a.post(&Work::send(&[of(&a, is_sender)]));
            if is_sender {
                assert_eq!(a.sent().1, WcStatus::LOC_PROT_ERR);
            } else {
                assert_eq!(b.received().1, WcStatus::LOC_PROT_ERR);
            }
        }
    }
}

/// Returns the remote opcodes that a service supports, with the access right that each needs.
fn remote_opcodes(rig: &Rig, kind: QpType) -> Vec<(WrOpcode, AccessFlags)> {
    [
        (WrOpcode::RDMA_WRITE, AccessFlags::REMOTE_WRITE),
        (WrOpcode::RDMA_WRITE_WITH_IMM, AccessFlags::REMOTE_WRITE),
        (WrOpcode::RDMA_READ, AccessFlags::REMOTE_READ),
        (WrOpcode::ATOMIC_CMP_AND_SWP, AccessFlags::REMOTE_ATOMIC),
        (WrOpcode::ATOMIC_FETCH_AND_ADD, AccessFlags::REMOTE_ATOMIC),
    ]
    .into_iter()
    .filter(|(opcode, _)| rig.profile.supports_opcode(kind, *opcode))
    .collect()
}

/// Asserts that an operation on the peer's memory is refused.
fn check_denied(kind: QpType, a: &End, b: &End, opcode: WrOpcode, at: (u64, u32), what: &str) {
    b.memory.fill(0, b.memory.len(), 9);
    b.receive(5, 0, 64);
    let len = if opcode >= WrOpcode::ATOMIC_CMP_AND_SWP { 8 } else { 64 };
    a.post(&Work::new(opcode, &[a.sge(0, len)]).id(1).at(at.0, at.1));
    let (id, status) = a.sent();
    let is_right = match kind {
        QpType::RC => matches!(status, WcStatus::REM_ACCESS_ERR | WcStatus::REM_INV_REQ_ERR),
        _ => status == WcStatus::SUCCESS,
    };
    assert!(id == 1 && is_right, "{kind:?} {opcode:?}, {what}: {status:?}");
    assert!(b.memory.has_only(0, b.memory.len(), 9), "{kind:?} {opcode:?}, {what}");
    if kind == QpType::RC {
        assert_eq!(status, WcStatus::REM_ACCESS_ERR, "{opcode:?}, {what}");
        a.wait_for_state(QpState::ERR);
        assert_eq!(outcome(&b.recv.poll()), (5, WcStatus::WR_FLUSH_ERR), "{opcode:?}, {what}");
        assert_eq!(b.qp.state(), QpState::ERR);
        assert_eq!(b.node.event(TIMEOUT), Some(EventType::QP_ACCESS_ERR));
    } else {
        assert_eq!((a.qp.state(), b.qp.state()), (QpState::RTS, QpState::RTS));
        b.recv.stays_empty();
    }
}

pub(crate) fn a_peers_key_must_cover_the_memory(rig: &Rig) {
    for kind in rig.connections() {
        for (opcode, _) in remote_opcodes(rig, kind) {
            let bytes = if opcode >= WrOpcode::ATOMIC_CMP_AND_SWP { 8 } else { 64 };
            for case in 0..7 {
                let (a, b) = rig.pair(kind);
                let info = b.info();
                let end = info.address + b.memory.len() as u64;
                let gone = b.domain.register(&b.memory, ALL).expect("a registration");
                let foreign =
                    b.node.pd().expect("a domain").register(&b.memory, ALL).expect("a registration");
                assert_eq!(gone.destroy(), 0);
                let (what, at) = match case {
                    0 => ("the key 0", (info.address, 0)),
                    1 => ("an unknown key", (info.address, 0x00ff_ff01)),
                    2 => ("another generation", (info.address, info.rkey ^ 1)),
                    3 => ("before the start", (info.address - 8, info.rkey)),
                    4 => ("beyond the end", (end - bytes + 8, info.rkey)),
                    5 => ("a stale key", (info.address, gone.rkey)),
                    _ => ("a key of another domain", (info.address, foreign.rkey)),
                };
                check_denied(kind, &a, &b, opcode, at, what);
            }
        }
    }
}

pub(crate) fn a_peers_key_and_queue_pair_must_allow_the_access(rig: &Rig) {
    for kind in rig.connections() {
        for (opcode, needed) in remote_opcodes(rig, kind) {
            let region = Options { access: ALL.without(needed), ..Options::default() };
            let (a, b) = rig.pair_with(kind, region);
            let info = b.info();
            check_denied(kind, &a, &b, opcode, (info.address, info.rkey), "not allowed by the key");
            let queue_pair = Options { qp_access: ALL.without(needed), ..Options::default() };
            let (a, b) = rig.pair_with(kind, queue_pair);
            let info = b.info();
            check_denied(kind, &a, &b, opcode, (info.address, info.rkey), "not allowed by the queue pair");
        }
    }
}

/// The result of a read or an atomic operation is written to local memory.
pub(crate) fn results_need_memory_that_may_be_written(rig: &Rig) {
    for (opcode, _) in remote_opcodes(rig, QpType::RC) {
        if opcode < WrOpcode::RDMA_READ {
            continue;
        }
        let (a, b) = rig.pair(QpType::RC);
        let read_only = a.domain.register(&a.memory, AccessFlags::NONE).expect("a registration");
        let info = b.info();
        let work = Work::new(opcode, &[a.memory.sge(0, 8, read_only.lkey)]).at(info.address, info.rkey);
        a.post(&work);
        assert_eq!(a.sent(), (0, WcStatus::LOC_PROT_ERR), "{opcode:?}");
        assert_eq!((a.qp.state(), b.qp.state()), (QpState::ERR, QpState::RTS));
    }
}

/// A region whose remote addresses differ from its local ones.
pub(crate) fn regions_can_have_addresses_of_their_own(rig: &Rig) {
    let (a, b) = rig.pair(QpType::RC);
    for iova in [0, 0x7777_0000_1234] {
        let start = b.memory.address();
        let region = b.domain.register_part(&b.memory, start, 4096, iova, ALL).expect("a registration");
        a.memory.pattern(0, 100, 5);
        a.post(&Work::new(WrOpcode::RDMA_WRITE, &[a.sge(0, 100)]).at(iova + 30, region.rkey));
        assert_eq!(a.sent(), (0, WcStatus::SUCCESS));
        assert!(b.memory.has_pattern(30, 100, 5));
        b.memory.fill(0, 4096, 0);
    }
}

pub(crate) fn registrations_that_make_no_sense_are_refused(rig: &Rig) {
    let domain = rig.open("a").pd().expect("a domain");
    let memory = Memory::new(8192);
    let refused = |start, len, access| domain.register_part(&memory, start, len, start, access).err();
    let start = memory.address();
    assert_eq!(refused(start, 0, ALL), Some(libc::EINVAL));
    assert_eq!(refused(start, usize::MAX, ALL), Some(libc::EINVAL));
    assert_eq!(refused(start, 8192, AccessFlags::REMOTE_WRITE), Some(libc::EINVAL));
    assert_eq!(refused(start, 8192, AccessFlags::REMOTE_ATOMIC), Some(libc::EINVAL));
    assert_eq!(refused(4096, 8192, ALL), Some(libc::EFAULT));
    assert_eq!(refused(start, 8192, AccessFlags::ON_DEMAND), Some(libc::EOPNOTSUPP));
    assert_eq!(refused(start, 8192, AccessFlags(1 << 12)), Some(libc::EOPNOTSUPP));
    assert_eq!(refused(start, 8192, AccessFlags::LOCAL_WRITE), None);
}

/// Keys are not reused at once.
pub(crate) fn a_new_registration_has_a_new_key(rig: &Rig) {
    let domain = rig.open("a").pd().expect("a domain");
    let memory = Memory::new(4096);
    let mut last = 0;
    for _ in 0..200 {
        let region = domain.register(&memory, ALL).expect("a registration");
        assert!(region.lkey != last && region.lkey != 0);
        assert_eq!(region.rkey, if rig.profile.remote_keys { region.lkey } else { 0 });
        last = region.lkey;
    }
}
