//! The effect of each operation without errors, at its limits: no bytes, several elements, immediate data,
//! order.

use crate::{
    rig::{End, Options, QKEY, Rig, outcome},
    verbs::{AddressHandle, Work, wait_for},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
};
use verbs_sys::{AhAttr, QpType, SendFlags, WcFlags, WcOpcode, WcStatus, WrOpcode};

/// Lengths around words, cache lines, pages and packets.
const LENGTHS: [usize; 14] = [1, 7, 8, 9, 63, 64, 65, 511, 1024, 1025, 4095, 4096, 4097, 12_000];

pub(crate) fn sends_arrive_whole_at_every_length(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = rig.pair(kind);
        for (at, len) in LENGTHS.into_iter().enumerate() {
            let seed = at as u8 + 1;
            a.memory.pattern(3, len, seed);
            b.memory.fill(0, len + 16, 0xee);
            b.receive(9, 5, len);
            a.send(8, 3, len);
            let (sent, received) = (a.send.poll(), b.recv.poll());
            assert_eq!((outcome(&sent), sent.opcode), ((8, WcStatus::SUCCESS), WcOpcode::SEND));
            assert_eq!((outcome(&received), received.opcode), ((9, WcStatus::SUCCESS), WcOpcode::RECV));
            assert_eq!((received.byte_len as usize, received.qp_num), (len, b.qp.number()));
            assert_eq!(received.wc_flags, 0);
            assert!(b.memory.has_pattern(5, len, seed), "{kind:?} {len}");
            assert!(b.memory.has_only(0, 5, 0xee) && b.memory.has_only(5 + len, 11, 0xee), "{kind:?} {len}");
        }
    }
}

pub(crate) fn messages_without_bytes_arrive(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = rig.pair(kind);
        let info = b.info();
        for sges in [vec![], vec![a.sge(0, 0)]] {
            assert_eq!(b.qp.receive(1, &[]), 0);
            a.post(&Work::send(&sges));
            assert_eq!(a.sent(), (0, WcStatus::SUCCESS));
            let received = b.recv.poll();
            assert_eq!((outcome(&received), received.byte_len), ((1, WcStatus::SUCCESS), 0));
            for opcode in [WrOpcode::RDMA_WRITE, WrOpcode::RDMA_READ] {
                if rig.profile.supports_opcode(kind, opcode) {
                    // No byte is accessed, so the key does not matter.
                    a.post(&Work::new(opcode, &sges).at(info.address, 0));
                    assert_eq!(a.sent(), (0, WcStatus::SUCCESS), "{kind:?} {opcode:?}");
                }
            }
        }
    }
}

pub(crate) fn numbers_come_along(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = rig.pair(kind);
        let info = b.info();
        let imm = 0x1234_5678_u32.to_be();
        for (opcode, expected) in [
            (WrOpcode::SEND_WITH_IMM, WcOpcode::RECV),
            (WrOpcode::RDMA_WRITE_WITH_IMM, WcOpcode::RECV_RDMA_WITH_IMM),
        ] {
            if !rig.profile.supports_opcode(kind, opcode) {
                continue;
            }
            for len in [0, 40] {
                a.memory.pattern(0, len, 4);
                b.receive(1, 100, 64);
                a.post(&Work::new(opcode, &[a.sge(0, len)]).imm(imm).at(info.address + 100, info.rkey));
                assert_eq!(a.sent(), (0, WcStatus::SUCCESS));
                let wc = b.recv.poll();
                assert_eq!((outcome(&wc), wc.opcode), ((1, WcStatus::SUCCESS), expected));
                assert_eq!((wc.byte_len as usize, wc.imm_data, wc.wc_flags), (len, imm, WcFlags::WITH_IMM.0));
                assert!(b.memory.has_pattern(100, len, 4));
            }
        }
    }
}

pub(crate) fn reads_and_writes_touch_what_they_name(rig: &Rig) {
    let (a, b) = rig.pair(QpType::RC);
    let info = b.info();
    for (at, len) in LENGTHS.into_iter().enumerate() {
        let seed = at as u8 + 1;
        a.memory.pattern(1, len, seed);
        b.memory.fill(0, len + 32, 0xee);
        a.post(&Work::new(WrOpcode::RDMA_WRITE, &[a.sge(1, len)]).at(info.address + 11, info.rkey));
        let wc = a.send.poll();
        assert_eq!((wc.status, wc.opcode), (WcStatus::SUCCESS, WcOpcode::RDMA_WRITE));
        assert!(b.memory.has_pattern(11, len, seed) && b.memory.has_only(0, 11, 0xee), "{len}");
        assert!(b.memory.has_only(11 + len, 8, 0xee), "{len}");
        a.memory.fill(0, len + 64, 0xdd);
        a.post(&Work::new(WrOpcode::RDMA_READ, &[a.sge(21, len)]).at(info.address + 11, info.rkey));
        let wc = a.send.poll();
        assert_eq!(
            (wc.status, wc.opcode, wc.byte_len as usize),
            (WcStatus::SUCCESS, WcOpcode::RDMA_READ, len)
        );
        assert!(a.memory.has_pattern(21, len, seed) && a.memory.has_only(0, 21, 0xdd), "{len}");
        assert!(a.memory.has_only(21 + len, 8, 0xdd), "{len}");
    }
}

/// Bytes gathered from several elements are scattered over others.
pub(crate) fn pieces_are_gathered_and_scattered(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = rig.pair_with(kind, Options { sges: 4, ..Options::default() });
        a.memory.pattern(0, 300, 1);
        let from = [a.sge(0, 10), a.sge(10, 0), a.sge(10, 200), a.sge(210, 90)];
        let to = [b.sge(1000, 33), b.sge(2000, 200), b.sge(3000, 7), b.sge(4000, 100)];
        assert_eq!(b.qp.receive(0, &to), 0);
        a.post(&Work::send(&from));
        assert_eq!(b.recv.poll().byte_len, 300);
        let all: Vec<u8> = [(1000, 33), (2000, 200), (3000, 7), (4000, 60)]
            .into_iter()
            .flat_map(|(start, len)| (start..start + len).map(|at| b.memory.get(at)))
            .collect();
        assert!(all.iter().enumerate().all(|(at, byte)| *byte == a.memory.get(at)));
        assert_eq!(b.memory.get(4060), 0);
    }
}

/// A receive that is too small fails; only a reliable sender gets an error.
pub(crate) fn a_message_that_does_not_fit_fails_the_receive(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = rig.pair(kind);
        b.memory.fill(0, 256, 0xee);
        b.receive(1, 0, 100);
        a.send(2, 0, 101);
        assert_eq!(b.received(), (1, WcStatus::LOC_LEN_ERR));
        let expected = if kind == QpType::RC { WcStatus::REM_INV_REQ_ERR } else { WcStatus::SUCCESS };
        assert_eq!(a.sent(), (2, expected));
        assert!(b.memory.has_only(0, 256, 0xee));
    }
}

pub(crate) fn atomic_operations_return_what_was_there(rig: &Rig) {
    let (a, b) = rig.pair(QpType::RC);
    let info = b.info();
    let atomic = |opcode, first, second| {
        a.memory.set_word(64, 0);
        a.post(&Work::new(opcode, &[a.sge(64, 8)]).at(info.address + 8, info.rkey).operands(first, second));
        let wc = a.send.poll();
        assert_eq!((wc.status, wc.byte_len), (WcStatus::SUCCESS, 8));
        (wc.opcode, a.memory.word(64), b.memory.word(8))
    };
    b.memory.set_word(8, 100);
    let (swap, add) = (WrOpcode::ATOMIC_CMP_AND_SWP, WrOpcode::ATOMIC_FETCH_AND_ADD);
    assert_eq!(atomic(add, 5, 0), (WcOpcode::FETCH_ADD, 100, 105));
    assert_eq!(atomic(swap, 105, 7), (WcOpcode::COMP_SWAP, 105, 7));
    assert_eq!(atomic(swap, 105, 9), (WcOpcode::COMP_SWAP, 7, 7));
    assert_eq!(atomic(add, u64::MAX, 0), (WcOpcode::FETCH_ADD, 7, 6));
    assert_eq!((b.memory.word(0), b.memory.word(16)), (0, 0));
}

pub(crate) fn atomic_operations_want_an_aligned_word(rig: &Rig) {
    let (a, b) = rig.pair(QpType::RC);
    let info = b.info();
    let add = Work::new(WrOpcode::ATOMIC_FETCH_AND_ADD, &[a.sge(0, 8)]).operands(1, 0);
    a.post(&add.at(info.address + 4, info.rkey));
    assert_eq!(a.sent(), (0, WcStatus::REM_INV_REQ_ERR));
    assert!(b.memory.has_only(0, 64, 0));
}

/// Two processes add at the same time.
pub(crate) fn atomic_operations_from_both_sides_add_up(rig: &Rig) {
    let (a, b) = rig.pair(QpType::RC);
    let (at, key) = (b.info().address, b.info().rkey);
    let many = 2000;
    thread::scope(|scope| {
        for (end, opposite) in [(&a, false), (&b, true)] {
            // Both add to the same word: one to its peer's memory, the other to its own through its peer.
            let (a, at, key) = if opposite { (end, a.info().address, a.info().rkey) } else { (end, at, key) };
            scope.spawn(move || {
                for _ in 0..many {
                    let add = Work::new(WrOpcode::ATOMIC_FETCH_AND_ADD, &[a.sge(64, 8)]);
                    a.post(&add.at(at, key).operands(1, 0));
                    assert_eq!(a.sent().1, WcStatus::SUCCESS);
                }
            });
        }
    });
    assert_eq!((a.memory.word(0), b.memory.word(0)), (many, many));
}

/// Completions arrive in the order of the requests, and so do messages.
pub(crate) fn messages_keep_their_order(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = rig.pair(kind);
        for round in 0..50u64 {
            (0..16).for_each(|id| b.receive(id, id as usize * 64, 64));
            let list: Vec<Work> = (0..16)
                .map(|id| {
                    a.memory.set_word(id as usize * 8, round * 100 + id);
                    Work::send(&[a.sge(id as usize * 8, 8)]).id(id)
                })
                .collect();
            assert_eq!(a.qp.post_list(&list), (0, 16));
            for id in 0..16 {
                assert_eq!((a.sent(), b.received()), ((id, WcStatus::SUCCESS), (id, WcStatus::SUCCESS)));
                assert_eq!(b.memory.word(id as usize * 64), round * 100 + id);
            }
        }
    }
}

/// Two threads post to one queue pair, two poll its queues: no completion is lost or duplicated.
pub(crate) fn threads_share_a_queue_pair(rig: &Rig) {
    for kind in rig.connections() {
        let each = 500;
        let (a, b) = rig.pair_with(kind, Options { depth: 1000, cqe: 1000, ..Options::default() });
        for id in 0..8 {
            b.receive(id, 0, 8);
        }
        // At most as many sends as there are receives, so none is lost where sends are not held.
        let under_way = AtomicU64::new(0);
        thread::scope(|scope| {
            for first in [0, each] {
                let (a, under_way) = (&a, &under_way);
                scope.spawn(move || {
                    for id in first..first + each {
                        wait_for("room", || (under_way.load(SeqCst) < 6).then_some(()));
                        under_way.fetch_add(1, SeqCst);
                        a.send(id, 0, 8);
                    }
                });
            }
            let received = scope.spawn(|| {
                for _ in 0..2 * each {
                    assert_eq!(b.received().1, WcStatus::SUCCESS);
                    b.receive(0, 0, 8);
                    under_way.fetch_sub(1, SeqCst);
                }
            });
            let mut sent: Vec<u64> = (0..2 * each).map(|_| a.sent().0).collect();
            let of = |half: std::ops::Range<u64>| sent.iter().filter(move |id| half.contains(id)).is_sorted();
            assert!(of(0..each) && of(each..2 * each), "each thread's in its order");
            sent.sort_unstable();
            assert!(sent.into_iter().eq(0..2 * each));
            received.join().expect("all have come");
        });
        b.recv.stays_empty();
    }
}

/// Only signaled requests complete; errors always do.
pub(crate) fn silence_is_kept_until_something_fails(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = rig.pair(kind);
        (0..4).for_each(|id| b.receive(id, 0, 64));
        let unsignaled = |key| Work::send(&[a.memory.sge(0, 8, key)]).flags(SendFlags::NONE);
        (0..3).for_each(|id| a.post(&unsignaled(a.region.lkey).id(id)));
        a.send.stays_empty();
        (0..3).for_each(|id| assert_eq!(b.received(), (id, WcStatus::SUCCESS)));
        a.post(&unsignaled(0x00ff_ff01).id(77));
        assert_eq!(a.sent(), (77, WcStatus::LOC_PROT_ERR));
    }
}

/// Returns the address handle of a peer's port.
fn address_of(end: &End, peer: &End) -> Arc<AddressHandle> {
    let mut attr = AhAttr::zeroed();
    attr.is_global = 1;
    attr.port_num = 1;
    attr.grh.dgid = peer.info().gid;
    attr.grh.sgid_index = 1;
    end.domain.address(attr).expect("an address")
}

pub(crate) fn datagrams_come_behind_a_header_of_40_bytes(rig: &Rig) {
    let (a, b) = rig.pair(QpType::UD);
    let to_b = address_of(&a, &b);
    a.memory.pattern(0, 100, 6);
    b.memory.fill(0, 256, 0xee);
    b.receive(1, 0, 140);
    a.post(&Work::send(&[a.sge(0, 100)]).to(&to_b, b.qp.number(), QKEY));
    assert_eq!(a.sent(), (0, WcStatus::SUCCESS));
    let wc = b.recv.poll();
    assert_eq!((outcome(&wc), wc.byte_len, wc.src_qp), ((1, WcStatus::SUCCESS), 140, a.qp.number()));
    assert!(WcFlags(wc.wc_flags).contains(WcFlags::GRH));
    assert!(b.memory.has_pattern(40, 100, 6) && b.memory.has_only(140, 100, 0xee));
    let gid = |start: usize| verbs_sys::Gid(std::array::from_fn(|at| b.memory.get(start + at)));
    assert_eq!(gid(8), a.info().gid, "the sender's address, of the index that it gave");
    assert_eq!(gid(24), b.info().gid, "the address that it was sent to");
}

/// Datagrams without a matching queue pair are lost without an error.
pub(crate) fn datagrams_that_nobody_takes_are_lost(rig: &Rig) {
    let (a, b) = rig.pair(QpType::UD);
    let to_b = address_of(&a, &b);
    let sge = [a.sge(0, 64)];
    b.receive(1, 0, 104);
    for (qpn, qkey) in [(b.qp.number() ^ 1, QKEY), (b.qp.number(), QKEY + 1), (0xff_fff0, QKEY)] {
        a.post(&Work::send(&sge).to(&to_b, qpn, qkey));
        assert_eq!(a.sent(), (0, WcStatus::SUCCESS));
    }
    b.recv.stays_empty();
    a.post(&Work::send(&sge).to(&to_b, b.qp.number(), QKEY));
    assert_eq!(b.received(), (1, WcStatus::SUCCESS));
    // No receive is posted.
    a.post(&Work::send(&sge).to(&to_b, b.qp.number(), QKEY));
    b.receive(2, 0, 104);
    b.recv.stays_empty();
}
