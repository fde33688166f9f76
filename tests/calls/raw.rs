//! Calls by address against their typed twins: the same results, to the bit, and the same errors; and what addresses can
//! get wrong and slices can't.
//!
//! # Safety
//! Addresses are those of vectors that outlive the calls, and lengths are theirs, but where a test says otherwise; those
//! calls are refused before anything is touched.

use half::{bf16, f16};
use num_complex::Complex32;
use std::{fmt::Debug, ptr, sync::Arc, thread};
use tbccl::{
    BlockLen, Codec, Communicator, Config, DType, Element, Error, Rank, RawCall, RawWhat, ReduceOp, Result,
    Scale, element::bytes_of,
};

const INT8: Codec = Codec::Int8(BlockLen::B128);

/// Runs `body` as each rank of a job of threads.
fn job(ranks: u32, body: impl Fn(&mut Communicator) + Sync) {
    let config = Config { slab_bytes: Some(64 << 20), ..Config::default() };
    let communicators = Communicator::local(ranks, &config).expect("memory for a test");
    thread::scope(|scope| {
        for mut communicator in communicators {
            let body = &body;
            scope.spawn(move || body(&mut communicator));
        }
    });
}

fn raw<T: Element>(what: RawWhat, count: usize, send: &[T], recv: &mut [T]) -> RawCall {
    RawCall { what, dtype: T::DTYPE, count, send: send.as_ptr().cast(), recv: recv.as_mut_ptr().cast() }
}

/// A call in place: of these elements, one of the buffers begins with this one and the other with that one.
fn in_place<T: Element>(
    what: RawWhat,
    count: usize,
    data: &mut [T],
    (send, recv): (usize, usize),
) -> RawCall {
    let start = data.as_mut_ptr();
    let at = |element: usize| start.wrapping_add(element).cast::<u8>();
    RawCall { what, dtype: T::DTYPE, count, send: at(send), recv: at(recv) }
}

fn carry_out(comm: &mut Communicator, call: &RawCall) -> Result<()> {
    // SAFETY: see the module.
    unsafe { comm.call_raw(call) }
}

fn together(comm: &mut Communicator, calls: &[RawCall]) -> Result<()> {
    // SAFETY: see the module.
    unsafe { comm.group_raw(calls) }
}

fn same(name: &str, typed: &Result<()>, raw: &Result<()>) {
    let text = |result: &Result<()>| result.as_ref().map_err(Error::to_string).copied();
    assert_eq!(text(raw), text(typed), "{name}");
}

type Make<T> = fn(u8) -> T;

fn filled<T>(make: Make<T>, rank: u32, count: usize) -> Vec<T> {
    (0..count).map(|i| make(((i * 7 + rank as usize * 3) % 5) as u8)).collect()
}

/// One rank, a type of elements, and a number of them.
struct Twins<'c, T> {
    comm: &'c mut Communicator,
    make: Make<T>,
    count: usize,
}

impl<T: Element + PartialEq + Debug> Twins<'_, T> {
    /// From one buffer to another one.
    fn apart(
        &mut self,
        what: RawWhat,
        (sent, received): (usize, usize),
        typed: impl FnOnce(&mut Communicator, &[T], &mut [T]) -> Result<()>,
    ) {
        let name = format!("{what:?} of {} {}", self.count, T::DTYPE);
        let send = filled(self.make, self.comm.rank().0, sent);
        let [mut ours, mut theirs] = [0, 1].map(|_| filled(self.make, 99, received));
        let done = typed(self.comm, &send, &mut theirs);
        same(&name, &done, &carry_out(self.comm, &raw(what, self.count, &send, &mut ours)));
        assert_eq!(ours, theirs, "{name}");
    }

    /// In place, with both buffers beginning at these elements.
    fn within(
        &mut self,
        what: RawWhat,
        (len, send, recv): (usize, usize, usize),
        typed: impl FnOnce(&mut Communicator, &mut [T]) -> Result<()>,
    ) {
        let name = format!("{what:?} of {} {} in place", self.count, T::DTYPE);
        let [mut ours, mut theirs] = [0, 1].map(|_| filled(self.make, self.comm.rank().0, len));
        let done = typed(self.comm, &mut theirs);
        same(&name, &done, &carry_out(self.comm, &in_place(what, self.count, &mut ours, (send, recv))));
        assert_eq!(ours, theirs, "{name}");
    }

    fn reductions(&mut self, op: ReduceOp, root: Rank) {
        let (count, n, me) = (self.count, self.comm.size() as usize, self.comm.rank().index());
        let is_root = self.comm.rank() == root;
        self.apart(RawWhat::AllReduce(op), (count, count), |c, s, r| c.all_reduce(s, r, op));
        self.within(RawWhat::AllReduce(op), (count, 0, 0), |c, d| c.all_reduce_in_place(d, op));
        self.apart(RawWhat::Reduce(op, root), (count, count), |c, s, r| c.reduce(s, r, op, root));
        if is_root {
            self.within(RawWhat::Reduce(op, root), (count, 0, 0), |c, d| c.reduce_in_place(d, op, root));
        } else {
            self.apart(RawWhat::Reduce(op, root), (count, 0), |c, s, r| c.reduce(s, r, op, root));
        }
        let scatter = RawWhat::ReduceScatter(op);
        self.apart(scatter.clone(), (n * count, count), |c, s, r| c.reduce_scatter(s, r, op));
        self.within(scatter, (n * count, 0, me * count), |c, d| c.reduce_scatter_in_place(d, op));
        self.apart(RawWhat::Scan(op), (count, count), |c, s, r| c.scan(s, r, op));
        self.within(RawWhat::Scan(op), (count, 0, 0), |c, d| c.scan_in_place(d, op));
        let scan = RawWhat::ExclusiveScan(op);
        self.apart(scan.clone(), (count, count), |c, s, r| c.exclusive_scan(s, r, op));
        self.within(scan, (count, 0, 0), |c, d| c.exclusive_scan_in_place(d, op));
        let counts = self.counts();
        let all = counts.iter().sum();
        let vector = RawWhat::ReduceScatterV(op, Arc::from(&counts[..]));
        self.apart(vector, (all, counts[me]), |c, s, r| c.reduce_scatter_v(s, r, &counts, op));
    }

    fn moves(&mut self, root: Rank) {
        let (count, n, me) = (self.count, self.comm.size() as usize, self.comm.rank().index());
        let is_root = self.comm.rank() == root;
        self.apart(RawWhat::Broadcast(root), (count, count), |c, s, r| c.broadcast_from(s, r, root));
        self.within(RawWhat::Broadcast(root), (count, 0, 0), |c, d| c.broadcast(d, root));
        self.apart(RawWhat::AllGather, (count, n * count), |c, s, r| c.all_gather(s, r));
        self.within(RawWhat::AllGather, (n * count, me * count, 0), |c, d| c.all_gather_in_place(d));
        self.apart(RawWhat::AllToAll, (n * count, n * count), |c, s, r| c.all_to_all(s, r));
        let all = if is_root { n * count } else { count };
        let own = if is_root { me * count } else { 0 };
        self.apart(RawWhat::Gather(root), (count, n * count), |c, s, r| c.gather(s, r, root));
        self.apart(RawWhat::Scatter(root), (n * count, count), |c, s, r| c.scatter(s, r, root));
        self.within(RawWhat::Gather(root), (all, own, 0), |c, d| c.gather_in_place(d, root));
        self.within(RawWhat::Scatter(root), (all, 0, own), |c, d| c.scatter_in_place(d, root));
        self.vectors(root);
        self.messages();
        self.apart(RawWhat::Barrier, (0, 0), |c, _, _| c.barrier());
    }

    /// Lengths of blocks, different ones and none.
    fn counts(&self) -> Vec<usize> {
        (0..self.comm.size() as usize).map(|rank| self.count * ((rank + 2) % 3)).collect()
    }

    fn vectors(&mut self, root: Rank) {
        let (counts, me) = (self.counts(), self.comm.rank().index());
        let (own, all): (usize, usize) = (counts[me], counts.iter().sum());
        let shared: Arc<[usize]> = Arc::from(&counts[..]);
        let what = RawWhat::AllGatherV(Arc::clone(&shared));
        self.apart(what, (own, all), |c, s, r| c.all_gather_v(s, r, &counts));
        let at_root = if self.comm.rank() == root { all } else { 0 };
        let what = RawWhat::GatherV(root, Arc::clone(&shared));
        self.apart(what, (own, at_root), |c, s, r| c.gather_v(s, r, &counts, root));
        let what = RawWhat::ScatterV(root, Arc::clone(&shared));
        self.apart(what, (at_root, own), |c, s, r| c.scatter_v(s, r, &counts, root));
        // Rank i sends counts[j] to rank j.
        let received = vec![own; counts.len()];
        let what = RawWhat::AllToAllV { send: shared, recv: Arc::from(&received[..]) };
        let lengths = (all, own * counts.len());
        self.apart(what, lengths, |c, s, r| c.all_to_all_v(s, &counts, r, &received));
    }

    /// From each rank to the next, beginning with rank 0.
    fn messages(&mut self) {
        let (n, me, count) = (self.comm.size(), self.comm.rank(), self.count);
        if n < 2 {
            return;
        }
        let (next, last) = (me.ahead(1, n), me.ahead(n - 1, n));
        let send = |t: &mut Self| {
            t.apart(RawWhat::Send(next), (count, 0), |c, s, _| c.send(s, next));
        };
        if me == Rank(0) {
            send(self);
        }
        self.apart(RawWhat::Recv(last), (0, count), |c, _, r| c.recv(r, last));
        if me != Rank(0) {
            send(self);
        }
    }
}

fn twins<T: Element + PartialEq + Debug>(make: Make<T>) {
    for ranks in 1..=4 {
        job(ranks, |comm| {
            for count in [0, 1, 3, 700] {
                let root = Rank(count as u32 % ranks);
                let mut twins = Twins { comm, make, count };
                twins.moves(root);
                ReduceOp::ALL.into_iter().for_each(|op| twins.reductions(op, root));
            }
        });
    }
}

#[test]
fn floats_by_address_are_what_they_are_by_slice() {
    twins::<f32>(f32::from);
    twins::<f64>(f64::from);
    twins::<f16>(|v| f16::from_f32(v.into()));
    twins::<bf16>(|v| bf16::from_f32(v.into()));
    twins::<Complex32>(|v| Complex32::new(v.into(), 1.0));
}

#[test]
fn integers_and_bools_by_address_are_what_they_are_by_slice() {
    twins::<i8>(|v| v as i8);
    twins::<i16>(i16::from);
    twins::<i32>(i32::from);
    twins::<i64>(i64::from);
    twins::<u8>(|v| v);
    twins::<u16>(u16::from);
    twins::<u32>(u32::from);
    twins::<u64>(u64::from);
    twins::<bool>(|v| v % 2 == 1);
}

#[test]
fn packed_elements_by_address_are_what_they_are_by_slice() {
    job(3, |comm| {
        let mut twins = Twins::<f32> { comm, make: f32::from, count: 1000 };
        for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max] {
            let what = RawWhat::AllReduceQuantized(op, INT8);
            twins.apart(what.clone(), (1000, 1000), |c, s, r| c.all_reduce_quantized(s, r, op, INT8));
            twins.within(what, (1000, 0, 0), |c, d| c.all_reduce_quantized_in_place(d, op, INT8));
        }
        let what = RawWhat::AllReduceQuantized(ReduceOp::Sum, INT8);
        let mut data = [1u32; 8];
        let error = carry_out(comm, &in_place(what, 8, &mut data, (0, 0))).expect_err("no u32").to_string();
        assert!(error.contains("u32 cannot be packed"), "{error}");
    });
}

/// Contributions that are multiplied first, against typed calls on products.
fn scaled<T: Element + PartialEq + Debug>(make: Make<T>, factor: Make<T>, times: fn(T, T) -> T) {
    for ranks in 1..=3u32 {
        job(ranks, |comm| {
            let (n, me, count) = (ranks as usize, comm.rank(), 1500);
            let own = factor(me.0 as u8 + 2);
            let by = Scale::new(own);
            let send = filled(make, me.0, n * count);
            let products: Vec<T> = send.iter().map(|value| times(*value, own)).collect();
            for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Avg] {
                let root = Rank(ranks - 1);
                let [mut ours, mut theirs] = [0, 1].map(|_| filled(make, 99, count));
                let mut data = send.clone();
                let name = format!("{op} of {}", T::DTYPE);

                let done = comm.all_reduce(&products[..count], &mut theirs, op);
                let what = RawWhat::AllReduceScaled(op, by);
                same(&name, &done, &carry_out(comm, &raw(what.clone(), count, &send, &mut ours)));
                same(&name, &done, &carry_out(comm, &in_place(what, count, &mut data, (0, 0))));
                if done.is_ok() {
                    assert_eq!((&ours, &data[..count]), (&theirs, &theirs[..]), "{name}");
                }
                data.clone_from(&send);

                let done = comm.reduce(&products[..count], &mut theirs, op, root);
                let what = RawWhat::ReduceScaled(op, root, by);
                same(&name, &done, &carry_out(comm, &raw(what, count, &send, &mut ours)));
                assert_eq!(ours, theirs, "{name}");

                let done = comm.reduce_scatter(&products, &mut theirs, op);
                let what = RawWhat::ReduceScatterScaled(op, by);
                same(&name, &done, &carry_out(comm, &raw(what.clone(), count, &send, &mut ours)));
                let at = me.index() * count;
                same(&name, &done, &carry_out(comm, &in_place(what, count, &mut data, (0, at))));
                if done.is_ok() {
                    assert_eq!((&ours, &data[at..at + count]), (&theirs, &theirs[..]), "{name}");
                }
            }
        });
    }
}

#[test]
fn contributions_are_multiplied_before_they_are_combined() {
    scaled::<f32>(f32::from, f32::from, |a, b| a * b);
    scaled::<f16>(|v| f16::from_f32(v.into()), |v| f16::from_f32(v.into()), |a, b| a * b);
    scaled::<i64>(i64::from, i64::from, |a, b| a * b);
    scaled::<u8>(|v| v, |v| v, u8::wrapping_mul);
}

#[test]
fn a_factor_of_another_type_is_refused_and_nothing_is_multiplied() {
    job(2, |comm| {
        let mut data = [3i32; 4];
        let wrong = RawWhat::AllReduceScaled(ReduceOp::Sum, Scale::new(2.0f32));
        let error = carry_out(comm, &in_place(wrong, 4, &mut data, (0, 0))).expect_err("f32 is not i32");
        assert!(error.to_string().contains("the factor is a f32"), "{error}");
        let legal = RawWhat::AllReduceScaled(ReduceOp::Sum, Scale::new(2i32));
        let illegal = RawWhat::Scan(ReduceOp::Avg);
        let mut other = [1i32; 4];
        let calls = [in_place(legal, 4, &mut data, (0, 0)), in_place(illegal, 4, &mut other, (0, 0))];
        together(comm, &calls).expect_err("a scan has no average");
        assert_eq!((data, other), ([3; 4], [1; 4]));
        assert!(Scale::from_bytes(DType::F64, &[0; 4]).is_err());
        assert_eq!(Scale::from_bytes(DType::I32, bytes_of(&[2i32])).expect("four"), Scale::new(2i32));
    });
}

#[test]
fn every_call_may_be_in_a_group() {
    job(3, |comm| {
        const COUNT: usize = 50;
        let (n, me) = (3, comm.rank());
        let (next, last) = (me.ahead(1, n), me.ahead(n - 1, n));
        let counts: Arc<[usize]> = Arc::from([COUNT, 0, 2 * COUNT]);
        let (own, all) = (counts[me.index()], 3 * COUNT);
        let (sum, root) = (ReduceOp::Sum, Rank(1));
        let received: Arc<[usize]> = Arc::from([own; 3]);
        let whats = [
            (RawWhat::AllReduce(sum), COUNT, COUNT),
            (RawWhat::AllReduce(sum), COUNT, COUNT),
            (RawWhat::Barrier, 0, 0),
            (RawWhat::AllReduceScaled(sum, Scale::new(3.0f32)), COUNT, COUNT),
            (RawWhat::AllReduceQuantized(sum, INT8), COUNT, COUNT),
            (RawWhat::Reduce(sum, root), COUNT, COUNT),
            (RawWhat::ReduceScaled(sum, root, Scale::new(2.0f32)), COUNT, COUNT),
            (RawWhat::Broadcast(root), COUNT, COUNT),
            (RawWhat::AllGather, COUNT, all),
            (RawWhat::ReduceScatter(sum), all, COUNT),
            (RawWhat::ReduceScatterScaled(sum, Scale::new(me.0 as f32)), all, COUNT),
            (RawWhat::AllToAll, all, all),
            (RawWhat::Gather(root), COUNT, all),
            (RawWhat::Scatter(root), all, COUNT),
            (RawWhat::Scan(sum), COUNT, COUNT),
            (RawWhat::ExclusiveScan(sum), COUNT, COUNT),
            (RawWhat::AllGatherV(Arc::clone(&counts)), own, all),
            (RawWhat::ReduceScatterV(sum, Arc::clone(&counts)), all, own),
            (RawWhat::GatherV(root, Arc::clone(&counts)), own, all),
            (RawWhat::ScatterV(root, Arc::clone(&counts)), all, own),
            (RawWhat::AllToAllV { send: Arc::clone(&counts), recv: received }, all, 3 * own),
        ];
        let sends: Vec<Vec<f32>> = whats.iter().map(|(_, sent, _)| filled(f32::from, me.0, *sent)).collect();
        let fresh = || whats.iter().map(|(_, _, received)| vec![-1.0f32; *received]).collect::<Vec<_>>();
        let calls = |recvs: &mut [Vec<f32>]| -> Vec<RawCall> {
            let memory = sends.iter().zip(recvs);
            whats.iter().zip(memory).map(|((what, ..), (s, r))| raw(what.clone(), COUNT, s, r)).collect()
        };
        let (mut one_by_one, mut grouped) = (fresh(), fresh());
        for call in calls(&mut one_by_one) {
            carry_out(comm, &call).unwrap_or_else(|error| panic!("{:?}: {error}", call.what));
        }
        let mut group = calls(&mut grouped);
        let (send, mut from_last, mut from_me) = (filled(f32::from, me.0, 9), vec![0.0; 9], vec![0.0; 9]);
        group.push(raw(RawWhat::Send(next), 9, &send, &mut []));
        group.insert(0, raw(RawWhat::Recv(last), 9, &[], &mut from_last));
        group.push(raw(RawWhat::Recv(me), 9, &[], &mut from_me));
        group.push(raw(RawWhat::Send(me), 9, &send, &mut []));
        together(comm, &group).expect("a group of everything");
        for (at, (what, ..)) in whats.iter().enumerate() {
            assert_eq!(grouped[at], one_by_one[at], "{what:?} in a group");
        }
        assert_eq!((from_last, from_me), (filled(f32::from, last.0, 9), send));
    });
}

/// Calls that no memory can make right, with what their errors say.
fn wrong(data: &mut [f32; 64]) -> Vec<(RawCall, &'static str)> {
    let sum = ReduceOp::Sum;
    let start: *mut u8 = data.as_mut_ptr().cast();
    let call = |what: RawWhat, count: usize, send: usize, recv: usize| {
        let at =
            |offset: usize| if offset == usize::MAX { ptr::null_mut() } else { start.wrapping_add(offset) };
        RawCall { what, dtype: DType::F32, count, send: at(send), recv: at(recv) }
    };
    const NULL: usize = usize::MAX;
    let lengths = |lengths: &[usize]| Arc::<[usize]>::from(lengths);
    vec![
        (call(RawWhat::AllReduce(sum), 1, NULL, 0), "send is null"),
        (call(RawWhat::AllReduce(sum), 1, 0, NULL), "recv is null"),
        (call(RawWhat::Send(Rank(1)), 1, NULL, 0), "send is null"),
        (call(RawWhat::Recv(Rank(1)), 1, 0, NULL), "recv is null"),
        (call(RawWhat::AllReduce(sum), 1, 2, 64), "send is at"),
        (call(RawWhat::AllReduce(sum), 1, 0, 66), "recv is at"),
        (call(RawWhat::AllReduce(sum), 8, 0, 4), "recv overlap; in place they are the same"),
        (call(RawWhat::Scan(sum), 8, 28, 0), "recv overlap; in place they are the same"),
        (call(RawWhat::AllGather, 4, 4, 0), "in place send is the block of this rank"),
        (call(RawWhat::ReduceScatter(sum), 4, 0, 4), "in place recv is the block of this rank"),
        (call(RawWhat::AllToAll, 4, 0, 0), "no form in place"),
        (call(RawWhat::AllGatherV(lengths(&[2, 2])), 0, 0, 0), "no form in place"),
        (call(RawWhat::AllReduce(sum), usize::MAX, 0, 64), "more than memory can hold"),
        (call(RawWhat::AllReduce(sum), usize::MAX / 4, 0, 64), "more than memory can hold"),
        (call(RawWhat::AllGather, usize::MAX / 2 + 1, 0, 64), "more than memory can hold"),
        (call(RawWhat::Broadcast(Rank(2)), 1, 0, 64), "root 2 is not one of the ranks"),
        (call(RawWhat::Reduce(sum, Rank(u32::MAX)), 1, 0, 64), "is not one of the ranks"),
        (call(RawWhat::Send(Rank(2)), 1, 0, 0), "to 2 is not one of the ranks"),
        (call(RawWhat::Recv(Rank(2)), 1, 0, 0), "from 2 is not one of the ranks"),
        (call(RawWhat::AllReduce(ReduceOp::BitAnd), 1, 0, 64), "f32"),
        (call(RawWhat::Scan(ReduceOp::Avg), 1, 0, 64), "no average"),
        (call(RawWhat::AllGatherV(lengths(&[2])), 0, 0, 64), "counts has 1 lengths, and there are 2 ranks"),
        (call(RawWhat::GatherV(Rank(0), lengths(&[2, 2, 2])), 0, 0, 64), "counts has 3 lengths"),
        (call(RawWhat::ScatterV(Rank(0), lengths(&[usize::MAX, 2])), 0, 0, 64), "more elements than memory"),
        (call(RawWhat::ReduceScatterV(sum, lengths(&[usize::MAX, 0])), 0, 0, 64), "than memory can hold"),
        (
            call(RawWhat::AllToAllV { send: lengths(&[1, 1]), recv: lengths(&[2, 2]) }, 0, 0, 64),
            "the own block of recv",
        ),
    ]
}

#[test]
fn wrong_arguments_are_named_and_nothing_is_touched() {
    job(2, |comm| {
        let mut data = [5.0f32; 64];
        for (call, says) in wrong(&mut data) {
            for error in [carry_out(comm, &call), together(comm, std::slice::from_ref(&call))] {
                let error = error.expect_err(says);
                let is_about_arguments = matches!(error, Error::InvalidArgument(_) | Error::IllegalOp(_));
                assert!(is_about_arguments && error.to_string().contains(says), "{call:?}: {error}");
            }
        }
        assert_eq!(data, [5.0; 64]);
        comm.barrier().expect("it is as it was");
    });
}

#[test]
fn no_elements_may_be_anywhere() {
    job(2, |comm| {
        let whats =
            [RawWhat::AllReduce(ReduceOp::Sum), RawWhat::AllGather, RawWhat::AllToAll, RawWhat::Barrier];
        for what in whats {
            let call =
                RawCall { what, dtype: DType::F64, count: 0, send: ptr::null(), recv: ptr::null_mut() };
            carry_out(comm, &call).expect("nothing to do");
            together(comm, &[call.clone(), call]).expect("nothing to do");
        }
    });
}

#[test]
fn bools_that_come_from_elsewhere_are_0_or_1() {
    job(2, |comm| {
        let send = [if comm.rank() == Rank(0) { 255u8 } else { 0 }; 8];
        let mut recv = [7u8; 8];
        let what = RawWhat::Broadcast(Rank(0));
        let call = RawCall { dtype: DType::Bool, ..raw(what, 8, &send, &mut recv) };
        carry_out(comm, &call).expect("a broadcast");
        assert_eq!(recv, [1; 8]);
        recv = [7; 8];
        together(comm, &[RawCall { recv: recv.as_mut_ptr(), ..call }]).expect("a group");
        assert_eq!(recv, [1; 8]);
    });
}
