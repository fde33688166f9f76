//! What the verbs specification says about errors, asked through the C ABI.
//!
//! # Safety
//! See `ends`.

mod ends;

use ends::{BYTES, End, Plan, folder, ibv_create_qp, ibv_dereg_mr, ibv_reg_mr, pair};
use std::{ffi::c_int, ptr};
use verbs_sys::{AccessFlags, QpInitAttr, QpState, QpType, RdmaTarget, WcOpcode, WcStatus, WrOpcode};

const IB: &str = "ib-pair.toml";
const APPLE: &str = "apple-tb5-mesh2.toml";

#[test]
fn a_send_meets_a_receive() {
    let folder = folder();
    let [mut a, b] = pair(IB, folder.path(), Plan::of(QpType::RC));
    a.buffer[..5].copy_from_slice(b"hello");
    assert_eq!(b.receive(7, b.piece(100, 50)), 0);
    assert_eq!(a.send(8, 5), 0);
    assert_eq!(a.expect(8, WcStatus::SUCCESS).opcode, WcOpcode::SEND);
    let wc = b.expect(7, WcStatus::SUCCESS);
    assert_eq!((wc.opcode, wc.byte_len, wc.qp_num), (WcOpcode::RECV, 5, b.qpn()));
    assert_eq!(&b.buffer[100..106], b"hello\0");
}

#[test]
fn writes_reads_and_numbers_go_where_they_should() {
    let folder = folder();
    let [mut a, b] = pair(IB, folder.path(), Plan::of(QpType::RC));
    a.buffer[..300].fill(9);
    assert_eq!(a.post(1, WrOpcode::RDMA_WRITE, a.piece(0, 300), Some(b.target(1000))), 0);
    a.expect(1, WcStatus::SUCCESS);
    assert!(b.buffer[1000..1300].iter().all(|&byte| byte == 9) && b.buffer[1300] == 0);
    assert_eq!(a.post(2, WrOpcode::RDMA_READ, a.piece(5000, 300), Some(b.target(1000))), 0);
    a.expect(2, WcStatus::SUCCESS);
    assert!(a.buffer[5000..5300].iter().all(|&byte| byte == 9));
    assert_eq!(b.receive(3, b.piece(0, 0)), 0);
    assert_eq!(a.post(4, WrOpcode::RDMA_WRITE_WITH_IMM, a.piece(0, 8), Some(b.target(0))), 0);
    a.expect(4, WcStatus::SUCCESS);
    let wc = b.expect(3, WcStatus::SUCCESS);
    assert_eq!((wc.opcode, wc.imm_data, wc.byte_len), (WcOpcode::RECV_RDMA_WITH_IMM, 0x0102_0304, 8));
}

#[test]
fn a_send_waits_for_its_receive() {
    let folder = folder();
    let [a, b] = pair(IB, folder.path(), Plan::of(QpType::RC));
    assert_eq!(a.send(1, 10), 0);
    assert!(a.poll().is_none() && b.poll().is_none());
    assert_eq!(b.receive(2, b.piece(0, 10)), 0);
    // Completed by the receiver's own call.
    b.expect(2, WcStatus::SUCCESS);
    a.expect(1, WcStatus::SUCCESS);
}

#[test]
fn a_send_gives_up_when_told_to() {
    let folder = folder();
    let plan = Plan { rnr_retry: 1, ..Plan::of(QpType::RC) };
    let [a, b] = pair(IB, folder.path(), plan);
    assert_eq!(a.send(1, 10), 0);
    assert_eq!(a.send(2, 10), 0);
    a.expect(1, WcStatus::RNR_RETRY_EXC_ERR);
    a.expect(2, WcStatus::WR_FLUSH_ERR);
    assert!(b.poll().is_none());
}

#[test]
fn an_unreliable_send_without_receive_is_lost() {
    let folder = folder();
    let [a, b] = pair(IB, folder.path(), Plan::of(QpType::UC));
    assert_eq!(a.send(1, 10), 0);
    a.expect(1, WcStatus::SUCCESS);
    assert_eq!(b.receive(2, b.piece(0, 10)), 0);
    assert!(b.poll().is_none());
}

#[test]
fn keys_bounds_and_rights_are_checked_at_the_far_end() {
    let (local, remote) = (AccessFlags::LOCAL_WRITE, AccessFlags::REMOTE_READ);
    let wrong_key = |b: &End| RdmaTarget { rkey: b.target(0).rkey ^ 1, ..b.target(0) };
    let beyond = |b: &End| b.target(BYTES - 4);
    let below = |b: &End| RdmaTarget { remote_addr: b.target(0).remote_addr - 1, ..b.target(0) };
    let plan = Plan::of(QpType::RC);
    type Target = fn(&End) -> RdmaTarget;
    let cases: [(Target, Plan); 4] = [
        (wrong_key, plan),
        (beyond, plan),
        (below, plan),
        (|b| b.target(0), Plan { access: local | remote, ..plan }),
    ];
    for (target, plan) in cases {
        let folder = folder();
        let [a, b] = pair(IB, folder.path(), plan);
        assert_eq!(b.receive(5, b.piece(0, 8)), 0);
        assert_eq!(a.post(1, WrOpcode::RDMA_WRITE, a.piece(0, 8), Some(target(&b))), 0);
        a.expect(1, WcStatus::REM_ACCESS_ERR);
        // Both ends have failed.
        b.expect(5, WcStatus::WR_FLUSH_ERR);
        assert_eq!(a.send(2, 1), 0);
        a.expect(2, WcStatus::WR_FLUSH_ERR);
        assert!(b.buffer.iter().all(|&byte| byte == 0));
    }
}

#[test]
fn local_keys_are_checked_when_carried_out() {
    let folder = folder();
    let [a, _b] = pair(IB, folder.path(), Plan::of(QpType::RC));
    let mut piece = a.piece(0, 8);
    piece.lkey ^= 1;
    assert_eq!(a.post(1, WrOpcode::SEND, piece, None), 0);
    a.expect(1, WcStatus::LOC_PROT_ERR);
}

#[test]
fn a_message_too_long_fails_both_ends() {
    let folder = folder();
    let [a, b] = pair(IB, folder.path(), Plan::of(QpType::RC));
    assert_eq!(b.receive(1, b.piece(0, 10)), 0);
    assert_eq!(a.send(2, 11), 0);
    b.expect(1, WcStatus::LOC_LEN_ERR);
    a.expect(2, WcStatus::REM_INV_REQ_ERR);
}

#[test]
fn room_in_the_send_queue_comes_back_by_polling() {
    let folder = folder();
    let [a, b] = pair(IB, folder.path(), Plan { depth: 4, ..Plan::of(QpType::RC) });
    for wr_id in 0..4 {
        assert_eq!(b.receive(wr_id, b.piece(0, 8)), 0);
        assert_eq!(a.send(wr_id, 8), 0);
    }
    assert_eq!(b.receive(4, b.piece(0, 8)), libc::ENOMEM);
    assert_eq!(a.send(4, 8), libc::ENOMEM);
    a.expect(0, WcStatus::SUCCESS);
    b.expect(0, WcStatus::SUCCESS);
    assert_eq!(b.receive(4, b.piece(0, 8)), 0);
    assert_eq!(a.send(4, 8), 0);
    assert_eq!(a.send(5, 8), libc::ENOMEM);
}

#[test]
fn a_full_completion_queue_fails_its_queue_pair() {
    let folder = folder();
    let [a, b] = pair(IB, folder.path(), Plan { cqe: 2, ..Plan::of(QpType::RC) });
    for wr_id in 0..3 {
        assert_eq!(a.post(wr_id, WrOpcode::RDMA_WRITE, a.piece(0, 8), Some(b.target(0))), 0);
    }
    a.expect(0, WcStatus::SUCCESS);
    a.expect(1, WcStatus::SUCCESS);
    assert!(a.poll().is_none());
}

#[test]
fn states_say_what_may_be_posted() {
    let folder = folder();
    let plan = Plan::of(QpType::RC);
    let [a, b] = [0, 1].map(|node| End::new(IB, node, folder.path(), plan));
    assert_eq!(a.send(1, 1), libc::EINVAL);
    assert_eq!(a.receive(1, a.piece(0, 1)), libc::EINVAL);
    assert_eq!(a.to(QpState::RTR), libc::EINVAL);
    a.connect(&b, plan);
    assert_eq!(a.receive(1, a.piece(0, 1)), 0);
    assert_eq!(a.to(QpState::ERR), 0);
    a.expect(1, WcStatus::WR_FLUSH_ERR);
    assert_eq!(a.receive(2, a.piece(0, 1)), 0);
    a.expect(2, WcStatus::WR_FLUSH_ERR);
    assert_eq!(a.to(QpState::RESET), 0);
    assert_eq!(a.send(3, 1), libc::EINVAL);
    a.connect(&b, plan);
    b.connect(&a, plan);
    assert_eq!(b.receive(4, b.piece(0, 1)), 0);
    assert_eq!(a.send(5, 1), 0);
    b.expect(4, WcStatus::SUCCESS);
}

#[test]
fn opcodes_belong_to_services() {
    let folder = folder();
    let [a, b] = pair(IB, folder.path(), Plan::of(QpType::UC));
    assert_eq!(a.post(1, WrOpcode::RDMA_READ, a.piece(0, 8), Some(b.target(0))), libc::EOPNOTSUPP);
    assert_eq!(a.post(1, WrOpcode(99), a.piece(0, 8), None), libc::EINVAL);
    assert_eq!(a.post(1, WrOpcode::RDMA_WRITE, a.piece(0, 8), Some(b.target(8))), 0);
    a.expect(1, WcStatus::SUCCESS);
}

#[test]
fn memory_that_is_not_there_is_not_registered() {
    let folder = folder();
    let a = End::new(IB, 0, folder.path(), Plan::of(QpType::RC));
    let access = AccessFlags::LOCAL_WRITE.0 as c_int;
    // SAFETY: the library checks the address and touches nothing.
    unsafe {
        assert!(ibv_reg_mr(a.pd, ptr::without_provenance_mut(4096), 4096, access).is_null());
        assert!(ibv_reg_mr(a.pd, ptr::without_provenance_mut(usize::MAX - 10), 100, access).is_null());
    }
}

#[test]
fn thunderbolt_holds_sends_and_counts_frames() {
    let folder = folder();
    let [a, b] = pair(APPLE, folder.path(), Plan::of(QpType::UC));
    assert_eq!(a.send(1, 4096), 0);
    assert!(a.poll().is_none());
    assert_eq!(b.receive(2, b.piece(0, 4096)), 0);
    b.expect(2, WcStatus::SUCCESS);
    a.expect(1, WcStatus::SUCCESS);
    assert_eq!(a.post(3, WrOpcode::RDMA_WRITE, a.piece(0, 8), Some(b.target(0))), libc::EOPNOTSUPP);
    assert_eq!(b.target(0).rkey, 0);
    // One frame into room for two.
    assert_eq!(b.receive(4, b.piece(0, 8192)), 0);
    assert_eq!(a.send(5, 4096), 0);
    b.expect(4, WcStatus::LOC_LEN_ERR);
}

#[test]
fn thunderbolt_has_ten_queue_pairs_and_a_hundred_regions() {
    let folder = folder();
    let mut a = End::new(APPLE, 0, folder.path(), Plan::of(QpType::UC));
    let mut attr = QpInitAttr::zeroed();
    (attr.send_cq, attr.recv_cq, attr.qp_type) = (a.cq, a.cq, QpType::UC);
    attr.cap.max_send_wr = 1;
    let mut made = Vec::new();
    // SAFETY: objects of the library; those made here are destroyed before their domain.
    unsafe {
        loop {
            let qp = ibv_create_qp(a.pd, &raw mut attr);
            if qp.is_null() {
                break;
            }
            made.push(qp);
        }
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EBUSY));
        assert_eq!(made.len(), 9);
        for qp in made {
            ends::ibv_destroy_qp(qp);
        }
        let start = a.buffer.as_mut_ptr().cast();
        let regions: Vec<_> = (0..100).map(|_| ibv_reg_mr(a.pd, start, BYTES, 1)).collect();
        assert!(regions[..99].iter().all(|mr| !mr.is_null()) && regions[99].is_null());
        for mr in &regions[..99] {
            ibv_dereg_mr(*mr);
        }
    }
}

#[test]
fn thunderbolt_knows_only_regions_from_before_the_connection() {
    let folder = folder();
    let [a, b] = pair(APPLE, folder.path(), Plan::of(QpType::UC));
    let mut late = vec![0u8; 4096];
    // SAFETY: the buffer outlives its registration.
    unsafe {
        let mr = ibv_reg_mr(a.pd, late.as_mut_ptr().cast(), 4096, 1);
        let mut piece = a.piece(0, 4096);
        (piece.addr, piece.lkey) = (late.as_ptr() as u64, (*mr).lkey);
        assert_eq!(b.receive(1, b.piece(0, 4096)), 0);
        assert_eq!(a.post(2, WrOpcode::SEND, piece, None), 0);
        a.expect(2, WcStatus::LOC_PROT_ERR);
        ibv_dereg_mr(mr);
    }
}
