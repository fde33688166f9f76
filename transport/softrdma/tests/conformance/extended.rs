//! The extended verbs: posting and polling by function calls.
//!
//! # Safety
//! See `verbs`. Calls to post come between `wr_start` and `wr_complete` or `wr_abort`, those that read a
//! completion between `start_poll` and `end_poll`, all from one thread.

use crate::{
    rig::{ALL, End, Options, QKEY, Rig, init_attr},
    verbs::{CompletionQueue, Errno, QueuePair, Queues, Work, wait_for},
};
use std::{
    mem::offset_of,
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use verbs_sys::{
    AccessFlags, AhAttr, CqEx, CqInitAttrEx, CreateCqWcFlags, DataBuf, PollCqAttr, QpEx, QpInitAttrEx,
    QpInitAttrMask, QpType, SendFlags, SendOpsFlags, Sge, ValuesEx, VerbsContext, WcFlags, WcOpcode,
    WcStatus, WrOpcode,
};

/// Returns the larger structure whose last member is the context.
fn verbs_context(end: &End) -> &VerbsContext {
    // SAFETY: the context is marked as extended, and a test compares the layout with the C header.
    unsafe { &*end.node.raw().byte_sub(offset_of!(VerbsContext, context)).cast::<VerbsContext>() }
}

const TIMES: CreateCqWcFlags =
    CreateCqWcFlags::COMPLETION_TIMESTAMP.with(CreateCqWcFlags::COMPLETION_TIMESTAMP_WALLCLOCK);

/// Creates a completion queue that is read by calls.
fn create_cq_ex(end: &End, cqe: u32, flags: CreateCqWcFlags) -> Result<Arc<CompletionQueue>, Errno> {
    let mut attr = CqInitAttrEx::zeroed();
    (attr.cqe, attr.wc_flags) = (cqe, u64::from(flags.0));
    let create = verbs_context(end).create_cq_ex.expect("an extended device");
    // SAFETY: the device is open, and the attributes live during the call.
    CompletionQueue::adopt(unsafe { create(end.node.raw(), &raw mut attr) }.cast(), &end.node)
}

/// Replaces an end's queue pair by one with all posting calls that its service supports.
fn use_extended_qp(
    end: &mut End,
    options: Options,
    send: &Arc<CompletionQueue>,
    recv: &Arc<CompletionQueue>,
) {
    let mut ops = SendOpsFlags::NONE;
    for (flag, opcode) in [
        (SendOpsFlags::SEND, WrOpcode::SEND),
        (SendOpsFlags::SEND_WITH_IMM, WrOpcode::SEND_WITH_IMM),
        (SendOpsFlags::RDMA_WRITE, WrOpcode::RDMA_WRITE),
        (SendOpsFlags::RDMA_WRITE_WITH_IMM, WrOpcode::RDMA_WRITE_WITH_IMM),
        (SendOpsFlags::RDMA_READ, WrOpcode::RDMA_READ),
        (SendOpsFlags::ATOMIC_CMP_AND_SWP, WrOpcode::ATOMIC_CMP_AND_SWP),
        (SendOpsFlags::ATOMIC_FETCH_AND_ADD, WrOpcode::ATOMIC_FETCH_AND_ADD),
    ] {
        if softrdma::profile::Profile::IB.supports_opcode(end.kind, opcode) {
            ops |= flag;
        }
    }
    let queues = Queues { send: Arc::clone(send), recv: Arc::clone(recv), srq: None };
    end.qp = create_qp_ex(end, ops, options, queues).expect("a queue pair");
    (end.send, end.recv) = (Arc::clone(send), Arc::clone(recv));
}

fn create_qp_ex(end: &End, ops: SendOpsFlags, options: Options, queues: Queues) -> Result<QueuePair, Errno> {
    let plain = init_attr(end.kind, options);
    let mut attr = QpInitAttrEx::zeroed();
    (attr.send_cq, attr.recv_cq) = (queues.send.raw(), queues.recv.raw());
    (attr.cap, attr.qp_type, attr.pd) = (plain.cap, plain.qp_type, end.domain.raw());
    attr.comp_mask = (QpInitAttrMask::PD | QpInitAttrMask::SEND_OPS_FLAGS).0;
    attr.send_ops_flags = u64::from(ops.0);
    let create = verbs_context(end).create_qp_ex.expect("an extended device");
    // SAFETY: the device is open, and the attributes live during the call.
    let qp = unsafe { create(end.node.raw(), &raw mut attr) };
    QueuePair::adopt(qp, attr.cap, queues, &end.domain)
}

/// Returns two ends, of which the first posts by calls.
fn pair(rig: &Rig, kind: QpType, options: Options) -> (End, End) {
    let (mut a, b) = rig.unconnected(kind, options);
    let (send, recv) = (Arc::clone(&a.send), Arc::clone(&a.recv));
    use_extended_qp(&mut a, options, &send, &recv);
    a.connect(&b.info(), options);
    b.connect(&a.info(), options);
    (a, b)
}

/// Posts by calls; returns the result of `wr_complete`.
fn batch(end: &End, post: impl FnOnce(&PostingCalls)) -> Errno {
    let calls = PostingCalls(end.qp.raw().cast());
    // SAFETY: see the module.
    unsafe {
        (calls.table().wr_start.expect("a call"))(calls.0);
        post(&calls);
        (calls.table().wr_complete.expect("a call"))(calls.0)
    }
}

/// The posting calls of a queue pair, between start and end.
struct PostingCalls(*mut QpEx);

/// Makes one of the calls, by name.
macro_rules! call {
    ($calls:expr, $name:ident $(, $argument:expr)*) => {
        // SAFETY: see the module; the arguments live during the call.
        unsafe { ($calls.table().$name.expect("a call"))($calls.0 $(, $argument)*) }
    };
}

impl PostingCalls {
    fn table(&self) -> &QpEx {
        // SAFETY: the queue pair exists, and was created with posting calls.
        unsafe { &*self.0 }
    }

    fn begin(&self, id: u64, flags: SendFlags) -> &PostingCalls {
        // SAFETY: both members may be set.
        unsafe { ((*self.0).wr_id, (*self.0).wr_flags) = (id, flags.0) };
        self
    }

    fn sge(&self, sge: Sge) {
        call!(self, wr_set_sge, sge.lkey, sge.addr, sge.length);
    }
}

const SIGNALED: SendFlags = SendFlags::SIGNALED;

pub(crate) fn every_operation_can_be_posted_by_calls(rig: &Rig) {
    for kind in rig.connections() {
        let (a, b) = pair(rig, kind, Options { sges: 4, inline: 64, ..Options::default() });
        let (address, rkey) = (b.memory.address(), b.region.rkey);
        let imm = 0x0102_0304_u32.to_be();
        a.memory.pattern(0, 4000, 1);
        (0..3).for_each(|id| b.receive(id, 20_000 + id as usize * 1000, 1000));
        let posted = batch(&a, |calls| {
            call!(calls.begin(1, SIGNALED), wr_send);
            calls.sge(a.sge(0, 100));
            call!(calls.begin(2, SIGNALED), wr_send_imm, imm);
            let sges = [a.sge(100, 50), a.sge(150, 0), a.sge(150, 70)];
            call!(calls, wr_set_sge_list, 3, sges.as_ptr());
            call!(calls.begin(3, SIGNALED), wr_rdma_write, rkey, address + 4096);
            let mut bytes = *b"taken at once";
            call!(calls, wr_set_inline_data, bytes.as_mut_ptr().cast(), bytes.len());
            bytes.fill(0);
            call!(calls.begin(4, SIGNALED), wr_rdma_write_imm, rkey, address + 8192, imm);
            let halves = [*b"one", *b"two"];
            let list =
                halves.each_ref().map(|half| DataBuf { addr: half.as_ptr().cast_mut().cast(), length: 3 });
            call!(calls, wr_set_inline_data_list, 2, list.as_ptr());
        });
        assert_eq!(posted, 0);
        (1..=4).for_each(|id| assert_eq!(a.sent(), (id, WcStatus::SUCCESS)));
        let expected =
            [(WcOpcode::RECV, 100, 0), (WcOpcode::RECV, 120, imm), (WcOpcode::RECV_RDMA_WITH_IMM, 6, imm)];
        for (opcode, len, imm) in expected {
            let wc = b.recv.poll();
            assert_eq!((wc.opcode, wc.byte_len, wc.imm_data), (opcode, len, imm), "{kind:?}");
        }
        assert!(b.memory.has_pattern(20_000, 100, 1));
        assert!((0..120).all(|at| b.memory.get(21_000 + at) == a.memory.get(100 + at)));
        let text = |at: usize, len: usize| (at..at + len).map(|at| b.memory.get(at)).collect::<Vec<u8>>();
        assert_eq!((text(4096, 13), text(8192, 6)), (b"taken at once".to_vec(), b"onetwo".to_vec()));
    }
}

pub(crate) fn reads_and_atomics_can_be_posted_by_calls(rig: &Rig) {
    let (a, b) = pair(rig, QpType::RC, Options::default());
    let (address, rkey) = (b.memory.address(), b.region.rkey);
    b.memory.set_word(0, 5);
    let posted = batch(&a, |calls| {
        call!(calls.begin(1, SendFlags::NONE), wr_atomic_fetch_add, rkey, address, 10);
        calls.sge(a.sge(0, 8));
        call!(calls.begin(2, SendFlags::NONE), wr_atomic_cmp_swp, rkey, address, 15, 99);
        calls.sge(a.sge(8, 8));
        call!(calls.begin(3, SIGNALED), wr_rdma_read, rkey, address);
        calls.sge(a.sge(16, 8));
    });
    assert_eq!((posted, a.sent()), (0, (3, WcStatus::SUCCESS)));
    assert_eq!([0, 8, 16].map(|at| a.memory.word(at)), [5, 15, 99]);
}

/// A batch is posted as a whole or not at all, and an error does not affect the next batch.
pub(crate) fn a_batch_is_posted_whole_or_not_at_all(rig: &Rig) {
    for kind in rig.connections() {
        let options = Options { inline: 16, depth: 4, sges: 2, ..Options::default() };
        let (a, b) = pair(rig, kind, options);
        let send = |calls: &PostingCalls, id| {
            call!(calls.begin(id, SIGNALED), wr_send);
            calls.sge(a.sge(0, 8));
        };
        let most = a.qp.cap.max_inline_data as usize;
        let mut long = vec![0u8; most + 1];
        let sges = vec![a.sge(0, 1); a.qp.cap.max_send_sge as usize + 1];
        let too_many = batch(&a, |calls| (0..5).for_each(|id| send(calls, id)));
        assert_eq!(too_many, libc::ENOMEM);
        let too_long = batch(&a, |calls| {
            send(calls, 1);
            call!(calls.begin(2, SIGNALED), wr_send);
            call!(calls, wr_set_inline_data, long.as_mut_ptr().cast(), long.len());
        });
        assert_eq!(too_long, libc::ENOMEM);
        let too_scattered = batch(&a, |calls| {
            send(calls, 1);
            call!(calls.begin(2, SIGNALED), wr_send);
            call!(calls, wr_set_sge_list, sges.len(), sges.as_ptr());
        });
        assert_eq!(too_scattered, libc::EINVAL);
        b.receive(99, 0, 8);
        a.post(&Work::send(&[a.sge(0, 8)]).id(98));
        assert_eq!((a.sent(), b.received()), ((98, WcStatus::SUCCESS), (99, WcStatus::SUCCESS)));
        a.send.stays_empty();
        let calls = PostingCalls(a.qp.raw().cast());
        call!(calls, wr_start);
        (0..3).for_each(|id| send(&calls, id));
        call!(calls, wr_abort);
        a.send.stays_empty();
        // The whole depth is still free, and lists can be posted as before.
        (0..4).for_each(|id| b.receive(id, 0, 8));
        assert_eq!(batch(&a, |calls| (10..13).for_each(|id| send(calls, id))), 0);
        a.post(&Work::send(&[a.sge(0, 8)]).id(13));
        for id in 10..14 {
            assert_eq!((a.sent(), b.received()), ((id, WcStatus::SUCCESS), (id - 10, WcStatus::SUCCESS)));
        }
        b.recv.stays_empty();
    }
}

pub(crate) fn datagrams_can_be_posted_by_calls(rig: &Rig) {
    let (a, b) = pair(rig, QpType::UD, Options::default());
    let mut attr = AhAttr::zeroed();
    (attr.is_global, attr.port_num, attr.grh.sgid_index) = (1, 1, 1);
    attr.grh.dgid = b.info().gid;
    let address = a.domain.address(attr).expect("an address");
    b.receive(1, 0, 100);
    a.memory.pattern(0, 20, 6);
    let posted = batch(&a, |calls| {
        call!(calls.begin(2, SIGNALED), wr_send);
        call!(calls, wr_set_ud_addr, address.raw(), b.qp.number(), QKEY);
        calls.sge(a.sge(0, 20));
    });
    assert_eq!((posted, a.sent(), b.received()), (0, (2, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)));
    assert!(b.memory.has_pattern(40, 20, 6));
}

pub(crate) fn calls_that_a_kind_does_not_have_are_refused(rig: &Rig) {
    for (kind, ops) in [(QpType::UC, SendOpsFlags::RDMA_READ), (QpType::UD, SendOpsFlags::RDMA_WRITE)] {
        let (a, _b) = rig.unconnected(kind, Options::default());
        let queues = Queues { send: Arc::clone(&a.send), recv: Arc::clone(&a.recv), srq: None };
        assert_eq!(
            create_qp_ex(&a, ops, Options::default(), queues).err(),
            Some(libc::EOPNOTSUPP),
            "{kind:?}"
        );
    }
    let a = rig.unconnected(QpType::RC, Options::default()).0;
    assert_eq!(create_cq_ex(&a, 4, CreateCqWcFlags(1 << 30)).err(), Some(libc::EOPNOTSUPP));
    assert_eq!(create_cq_ex(&a, 0, CreateCqWcFlags::BYTE_LEN).err(), Some(libc::EINVAL));
}

/// Starts polling by calls. The error number tells whether there is a completion.
fn start_poll(queue: &CompletionQueue) -> (*mut CqEx, Errno) {
    let cq: *mut CqEx = queue.raw().cast();
    let mut attr = PollCqAttr::zeroed();
    // SAFETY: the queue is read by calls.
    (cq, unsafe { ((*cq).start_poll.expect("a call"))(cq, &raw mut attr) })
}

/// Reads a member of the current completion.
macro_rules! read {
    ($cq:expr, $name:ident) => {
        // SAFETY: see the module.
        unsafe { ((*$cq).$name.expect("a call"))($cq) }
    };
}

pub(crate) fn completions_can_be_read_by_calls(rig: &Rig) {
    for kind in rig.connections() {
        let (a, mut b) = rig.unconnected(kind, Options::default());
        let queue = create_cq_ex(&b, 64, CreateCqWcFlags::BYTE_LEN | CreateCqWcFlags::IMM).expect("a queue");
        use_extended_qp(&mut b, Options::default(), &queue, &queue);
        a.connect(&b.info(), Options::default());
        b.connect(&a.info(), Options::default());
        assert_eq!(start_poll(&queue).1, libc::ENOENT);
        (0..3).for_each(|id| b.receive(70 + id, 0, 64));
        let imm = 7u32.to_be();
        for len in [5, 6] {
            a.post(&Work::new(WrOpcode::SEND_WITH_IMM, &[a.sge(0, len)]).imm(imm));
        }
        let (cq, found) = start_poll(&queue);
        assert_eq!(found, 0);
        for (id, len) in [(70, 5), (71, 6)] {
            // SAFETY: both members may be read.
            assert_eq!(unsafe { ((*cq).wr_id, (*cq).status) }, (id, WcStatus::SUCCESS));
            assert_eq!((read!(cq, read_opcode), read!(cq, read_byte_len)), (WcOpcode::RECV, len));
            assert_eq!((read!(cq, read_imm_data), read!(cq, read_qp_num)), (imm, b.qp.number()));
            assert_eq!(
                (read!(cq, read_wc_flags), read!(cq, read_src_qp)),
                (WcFlags::WITH_IMM.0, a.qp.number())
            );
            assert_eq!((read!(cq, read_vendor_err), read!(cq, read_slid), read!(cq, read_sl)), (0, 0, 0));
            let next = read!(cq, next_poll);
            assert_eq!(next, if id == 70 { 0 } else { libc::ENOENT });
        }
        read!(cq, end_poll);
        assert_eq!(b.qp.become_state(verbs_sys::QpState::ERR), 0);
        let (cq, found) = start_poll(&queue);
        // SAFETY: as above.
        assert_eq!((found, unsafe { ((*cq).wr_id, (*cq).status) }), (0, (72, WcStatus::WR_FLUSH_ERR)));
        read!(cq, end_poll);
        // The lock is free again: `ibv_poll_cq` works too.
        queue.stays_empty();
    }
}

/// A thread that reads a completion keeps others from the queue until it is done.
pub(crate) fn one_thread_at_a_time_reads_by_calls(rig: &Rig) {
    let (mut a, b) = rig.unconnected(QpType::RC, Options::default());
    let queue = create_cq_ex(&a, 512, CreateCqWcFlags::BYTE_LEN).expect("a queue");
    use_extended_qp(&mut a, Options { depth: 512, ..Options::default() }, &queue, &queue);
    a.connect(&b.info(), Options::default());
    b.connect(&a.info(), Options::default());
    let write = Work::new(WrOpcode::RDMA_WRITE, &[a.sge(0, 8)]).at(b.memory.address(), b.region.rkey);
    (0..400).for_each(|id| a.post(&write.clone().id(id)));
    let read_some = || {
        let mut ids = Vec::new();
        for _ in 0..200 {
            let cq = wait_for("a completion", || Some(start_poll(&queue)).filter(|(_, found)| *found == 0)).0;
            // SAFETY: the member may be read, and this thread holds the lock.
            let id = unsafe { (*cq).wr_id };
            thread::yield_now();
            // SAFETY: as above.
            assert_eq!(unsafe { (*cq).wr_id }, id, "somebody else reads");
            ids.push(id);
            read!(cq, end_poll);
        }
        ids
    };
    let mut ids = thread::scope(|scope| {
        let other = scope.spawn(read_some);
        let mut ids = read_some();
        ids.extend(other.join().expect("a thread"));
        ids
    });
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..400));
}

/// Returns the time of the device's clock in nanoseconds.
fn device_clock(end: &End) -> u64 {
    let mut values = ValuesEx::zeroed();
    let query = verbs_context(end).query_rt_values.expect("an extended device");
    // SAFETY: the device is open; the pointer is a valid place for values.
    assert_eq!(unsafe { query(end.node.raw(), &raw mut values) }, 0);
    values.raw_clock.0.tv_sec as u64 * 1_000_000_000 + values.raw_clock.0.tv_nsec as u64
}

fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_nanos() as u64
}

/// Timestamps are those of the arrival of completions, not of their polling.
pub(crate) fn completions_say_when_they_came(rig: &Rig) {
    const PAUSE: Duration = Duration::from_millis(50);
    for cable in ["", "latency_us = 10000.0"] {
        let rig = rig.another("", cable);
        let latency = if cable.is_empty() { 0 } else { 10_000_000 };
        let (mut a, b) = rig.unconnected(QpType::RC, Options { access: ALL, ..Options::default() });
        let queue = create_cq_ex(&a, 64, TIMES).expect("a queue");
        use_extended_qp(&mut a, Options::default(), &queue, &queue);
        a.connect(&b.info(), Options::default());
        b.connect(&a.info(), Options::default());
        let write = Work::new(WrOpcode::RDMA_WRITE, &[a.sge(0, 8)]).at(b.memory.address(), b.region.rkey);
        let (posted, posted_by_wall) = (device_clock(&a), wall_clock());
        a.post(&write);
        let began = Instant::now();
        thread::sleep(PAUSE);
        let paused = began.elapsed().as_nanos() as u64;
        let cq = wait_for("a completion", || Some(start_poll(&queue)).filter(|(_, found)| *found == 0)).0;
        let (came, by_wall) = (read!(cq, read_completion_ts), read!(cq, read_completion_wallclock_ns));
        read!(cq, end_poll);
        let (came, by_wall) =
            (came.checked_sub(posted).expect("after it was posted"), by_wall - posted_by_wall);
        assert!(came >= 2 * latency && came < paused, "{came} ns, {cable}");
        // The two clocks are read one after the other, possibly with a delay between.
        assert!(by_wall.abs_diff(came) < 30_000_000, "{by_wall} and {came} ns, {cable}");
    }
}

/// Unsupported calls return an error and change nothing.
pub(crate) fn what_is_not_offered_says_so(rig: &Rig) {
    let (a, b) = rig.pair(QpType::UC);
    assert_eq!(a.send.resize(512), libc::EOPNOTSUPP);
    let changed = a.region.change_access(AccessFlags::LOCAL_WRITE);
    assert_eq!((changed, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EOPNOTSUPP)));
    b.receive(1, 0, 8);
    a.send(2, 0, 8);
    assert_eq!((a.sent(), b.received()), ((2, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)));
}
