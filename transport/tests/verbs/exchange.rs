//! Transfers between queue pairs.
//!
//! # Safety
//! See `ends`.

use crate::{
    ends::{End, pair, spec},
    fabric::{APPLE, IB, USB4, on},
};
use transport::verbs::{
    Access, Completion, Library, LocalRun, Operation, POLL_BATCH, PostError, QpType, QueuePairSpec,
    SendRequest, WcOpcode,
};

fn noise(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

fn request(id: u64, run: LocalRun, operation: Operation) -> SendRequest {
    SendRequest { id, run, operation, signaled: true, inline: false }
}

/// Writes with immediate data in both directions at once, each after a write without.
fn writes(library: &Library, device: &str, service: QpType) {
    let [mut a, mut b] = pair(library, [device, device], service, Access::Remote);
    let bytes = noise(100_000);
    a.fill(0, &bytes);
    b.fill(0, &bytes[..50]);
    for end in [&a, &b] {
        end.receive(1, LocalRun::EMPTY).expect("posted");
    }
    let plain = request(2, a.run(0, 70_000), Operation::Write(b.target(200_000)));
    a.post(&SendRequest { signaled: false, ..plain }).expect("posted");
    let rest = Operation::WriteImm(b.target(270_000), 0xfeed_beef);
    a.post(&request(3, a.run(70_000, 30_000), rest)).expect("posted");
    b.post(&request(3, b.run(0, 50), Operation::WriteImm(a.target(500_000), 8))).expect("posted");
    let there = b.success(1);
    assert_eq!((there.opcode, there.imm), (WcOpcode::RECV_RDMA_WITH_IMM, Some(0xfeed_beef)));
    assert_eq!((there.bytes, there.qp), (30_000, b.queue_pair.number()));
    assert!(b.bytes(200_000, bytes.len()) == bytes);
    assert_eq!(a.success(1).imm, Some(8));
    assert_eq!(a.bytes(500_000, 50), bytes[..50]);
    assert_eq!((a.success(3).imm, b.success(3).imm), (None, None));
}

#[test]
fn reliable_writes_carry_a_number() {
    on("exchange::reliable_writes_carry_a_number", IB, |library| writes(library, "ib0", QpType::RC));
}

#[test]
fn unreliable_writes_carry_a_number() {
    on("exchange::unreliable_writes_carry_a_number", IB, |library| writes(library, "ib0", QpType::UC));
}

#[test]
fn usb4_writes_carry_a_number() {
    on("exchange::usb4_writes_carry_a_number", USB4, |library| writes(library, "usb4_rdma0", QpType::RC));
}

#[test]
fn sends_meet_receives_in_the_final_buffer() {
    on("exchange::sends_meet_receives_in_the_final_buffer", APPLE, |library| {
        let devices = ["rdma_en2", "rdma_en3"];
        let [mut a, mut b] = pair(library, devices, QpType::UC, Access::Local);
        assert_eq!((a.region.rkey(), b.region.rkey()), (0, 0));
        let bytes = noise(3 * 4096);
        a.fill(0, &bytes);
        for frame in 0..3 {
            b.receive(frame, b.run(frame as usize * 65_536, 4096)).expect("posted");
        }
        for frame in 0..3 {
            a.post(&request(frame, a.run(frame as usize * 4096, 4096), Operation::Send)).expect("posted");
        }
        for frame in 0..3 {
            a.success(frame);
            let there = b.success(frame);
            assert_eq!((there.opcode, there.bytes, there.imm), (WcOpcode::RECV, 4096, None));
            let at = frame as usize;
            assert!(b.bytes(at * 65_536, 4096) == bytes[at * 4096..][..4096]);
        }
        // A rejected request is not sent.
        let write = request(9, a.run(0, 8), Operation::Write(b.target(0)));
        assert!(matches!(a.post(&write), Err(PostError::Failed(_))));
    });
}

#[test]
fn inline_bytes_are_taken_at_once() {
    on("exchange::inline_bytes_are_taken_at_once", IB, |library| {
        let spec = QueuePairSpec { inline_bytes: 64, ..spec(QpType::RC) };
        let [mut a, mut b] = [(); 2].map(|()| End::new(library, "ib0", spec, Access::Remote));
        a.connect(&b.address());
        b.connect(&a.address());
        assert!(a.queue_pair.granted().max_inline_data >= 64);
        // Memory that is not registered, and overwritten before the bytes are checked.
        let mut passing = *b"passing through";
        let run = LocalRun { start: passing.as_mut_ptr(), len: passing.len() as u32, lkey: 0 };
        let sent = SendRequest { inline: true, ..request(1, run, Operation::Send) };
        a.post(&sent).expect("posted");
        passing.fill(0);
        b.receive(2, b.run(0, 100)).expect("posted");
        assert_eq!(b.success(2).bytes, 15);
        assert_eq!(b.bytes(0, 16), b"passing through\0");
        a.success(1);
    });
}

#[test]
fn polls_are_as_large_as_they_may_be() {
    on("exchange::polls_are_as_large_as_they_may_be", IB, |library| {
        let [a, b] = pair(library, ["ib0", "ib0"], QpType::RC, Access::Remote);
        for id in 0..20 {
            a.post(&request(id, a.run(0, 8), Operation::Write(b.target(0)))).expect("posted");
        }
        let mut out = [Completion::default(); POLL_BATCH];
        let ids = |found: &[Completion]| found.iter().map(|one| one.id).collect::<Vec<_>>();
        assert_eq!(ids(a.completions.poll_up_to(3, &mut out).expect("in order")), [0, 1, 2]);
        assert_eq!(ids(a.completions.poll(&mut out).expect("in order")), (3..19).collect::<Vec<_>>());
        assert_eq!(ids(a.completions.poll(&mut out).expect("in order")), [19]);
        assert_eq!(ids(a.completions.poll(&mut out).expect("in order")), [0u64; 0]);
    });
}

#[test]
fn full_queues_say_so() {
    on("exchange::full_queues_say_so", IB, |library| {
        let spec = QueuePairSpec { send_depth: 4, recv_depth: 4, ..spec(QpType::RC) };
        let [mut a, b] = [(); 2].map(|()| End::new(library, "ib0", spec, Access::Remote));
        a.connect(&b.address());
        b.connect(&a.address());
        let write = |id| request(id, a.run(0, 8), Operation::Write(b.target(0)));
        let granted = a.queue_pair.granted();
        let writes: Vec<SendRequest> = (0..=u64::from(granted.max_send_wr)).map(write).collect();
        for write in &writes[1..] {
            a.post(write).expect("room");
        }
        assert_eq!(a.post(&writes[0]), Err(PostError::Full));
        for id in 0..u64::from(granted.max_recv_wr) {
            a.receive(id, LocalRun::EMPTY).expect("room");
        }
        assert_eq!(a.receive(99, LocalRun::EMPTY), Err(PostError::Full));
        // A consumed completion frees an entry of the queue.
        a.success(1);
        a.post(&writes[0]).expect("room");
    });
}
