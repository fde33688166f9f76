//! Calls by address against their typed twins: the same results, to the bit, and the same errors; and what addresses can
//! get wrong and slices can't.
//!
//! # Safety
//! Addresses are those of vectors that outlive the calls, and lengths are theirs, but where a test says otherwise; those
//! calls are refused before anything is touched.

use half::{bf16, f16};
use num_complex::Complex32;
use std::{fmt::Debug, ptr, thread};
use tbccl::{
    BlockLen, Codec, Collective, Communicator, Config, DType, Element, Error, Operation, Rank, RawCall,
    ReduceOp, Result, Scale, element::bytes_of,
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

fn raw<T: Element>(operation: Operation<'static>, count: usize, send: &[T], recv: &mut [T]) -> RawCall {
    RawCall { operation, dtype: T::DTYPE, count, send: send.as_ptr().cast(), recv: recv.as_mut_ptr().cast() }
}

/// A call in place: of these elements, one of the buffers begins with this one and the other with that one.
fn in_place<T: Element>(
    operation: Operation<'static>,
    count: usize,
    data: &mut [T],
    (send, recv): (usize, usize),
) -> RawCall {
    let start = data.as_mut_ptr();
    let at = |element: usize| start.wrapping_add(element).cast::<u8>();
    RawCall { operation, dtype: T::DTYPE, count, send: at(send), recv: at(recv) }
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
        operation: Operation<'static>,
        (sent, received): (usize, usize),
        typed: impl FnOnce(&mut Communicator, &[T], &mut [T]) -> Result<()>,
    ) {
        let name = format!("{operation:?} of {} {}", self.count, T::DTYPE);
        let send = filled(self.make, self.comm.rank().0, sent);
        let [mut ours, mut theirs] = [0, 1].map(|_| filled(self.make, 99, received));
        let done = typed(self.comm, &send, &mut theirs);
        same(&name, &done, &carry_out(self.comm, &raw(operation, self.count, &send, &mut ours)));
        assert_eq!(ours, theirs, "{name}");
    }

    /// In place, with both buffers beginning at these elements.
    fn within(
        &mut self,
        operation: Operation<'static>,
        (len, send, recv): (usize, usize, usize),
        typed: impl FnOnce(&mut Communicator, &mut [T]) -> Result<()>,
    ) {
        let name = format!("{operation:?} of {} {} in place", self.count, T::DTYPE);
        let [mut ours, mut theirs] = [0, 1].map(|_| filled(self.make, self.comm.rank().0, len));
        let done = typed(self.comm, &mut theirs);
        same(&name, &done, &carry_out(self.comm, &in_place(operation, self.count, &mut ours, (send, recv))));
        assert_eq!(ours, theirs, "{name}");
    }

    fn reductions(&mut self, op: ReduceOp, root: Rank) {
        let (count, n, me) = (self.count, self.comm.size() as usize, self.comm.rank().index());
        let is_root = self.comm.rank() == root;
        self.apart(Operation::new(Collective::AllReduce).with_op(op), (count, count), |c, s, r| {
            c.all_reduce(s, r, op)
        });
        self.within(Operation::new(Collective::AllReduce).with_op(op), (count, 0, 0), |c, d| {
            c.all_reduce_in_place(d, op)
        });
        self.apart(
            Operation::new(Collective::Reduce).with_op(op).with_root(root),
            (count, count),
            |c, s, r| c.reduce(s, r, op, root),
        );
        if is_root {
            self.within(
                Operation::new(Collective::Reduce).with_op(op).with_root(root),
                (count, 0, 0),
                |c, d| c.reduce_in_place(d, op, root),
            );
        } else {
            self.apart(
                Operation::new(Collective::Reduce).with_op(op).with_root(root),
                (count, 0),
                |c, s, r| c.reduce(s, r, op, root),
            );
        }
        let scatter = Operation::new(Collective::ReduceScatter).with_op(op);
        self.apart(scatter.clone(), (n * count, count), |c, s, r| c.reduce_scatter(s, r, op));
        self.within(scatter, (n * count, 0, me * count), |c, d| c.reduce_scatter_in_place(d, op));
        self.apart(Operation::new(Collective::Scan).with_op(op), (count, count), |c, s, r| c.scan(s, r, op));
        self.within(Operation::new(Collective::Scan).with_op(op), (count, 0, 0), |c, d| {
            c.scan_in_place(d, op)
        });
        let scan = Operation::new(Collective::ExclusiveScan).with_op(op);
        self.apart(scan.clone(), (count, count), |c, s, r| c.exclusive_scan(s, r, op));
        self.within(scan, (count, 0, 0), |c, d| c.exclusive_scan_in_place(d, op));
        let counts = self.counts();
        let all = counts.iter().sum();
        let vector = Operation::new(Collective::ReduceScatter).with_op(op).with_counts(counts.clone());
        self.apart(vector, (all, counts[me]), |c, s, r| c.reduce_scatter_v(s, r, &counts, op));
    }

    fn moves(&mut self, root: Rank) {
        let (count, n, me) = (self.count, self.comm.size() as usize, self.comm.rank().index());
        let is_root = self.comm.rank() == root;
        self.apart(Operation::new(Collective::Broadcast).with_root(root), (count, count), |c, s, r| {
            c.broadcast_from(s, r, root)
        });
        self.within(Operation::new(Collective::Broadcast).with_root(root), (count, 0, 0), |c, d| {
            c.broadcast(d, root)
        });
        self.apart(Operation::new(Collective::AllGather), (count, n * count), |c, s, r| c.all_gather(s, r));
        self.within(Operation::new(Collective::AllGather), (n * count, me * count, 0), |c, d| {
            c.all_gather_in_place(d)
        });
        self.apart(Operation::new(Collective::AllToAll), (n * count, n * count), |c, s, r| {
            c.all_to_all(s, r)
        });
        let all = if is_root { n * count } else { count };
        let own = if is_root { me * count } else { 0 };
        self.apart(Operation::new(Collective::Gather).with_root(root), (count, n * count), |c, s, r| {
            c.gather(s, r, root)
        });
        self.apart(Operation::new(Collective::Scatter).with_root(root), (n * count, count), |c, s, r| {
            c.scatter(s, r, root)
        });
        self.within(Operation::new(Collective::Gather).with_root(root), (all, own, 0), |c, d| {
            c.gather_in_place(d, root)
        });
        self.within(Operation::new(Collective::Scatter).with_root(root), (all, 0, own), |c, d| {
            c.scatter_in_place(d, root)
        });
        self.vectors(root);
        self.messages();
        self.apart(Operation::new(Collective::Barrier), (0, 0), |c, _, _| c.barrier());
    }

    /// Lengths of blocks, different ones and none.
    fn counts(&self) -> Vec<usize> {
        (0..self.comm.size() as usize).map(|rank| self.count * ((rank + 2) % 3)).collect()
    }

    fn vectors(&mut self, root: Rank) {
        let (counts, me) = (self.counts(), self.comm.rank().index());
        let (own, all): (usize, usize) = (counts[me], counts.iter().sum());
        let shared = counts.clone();
        let operation = Operation::new(Collective::AllGather).with_counts(shared.clone());
        self.apart(operation, (own, all), |c, s, r| c.all_gather_v(s, r, &counts));
        let at_root = if self.comm.rank() == root { all } else { 0 };
        let operation = Operation::new(Collective::Gather).with_root(root).with_counts(shared.clone());
        self.apart(operation, (own, at_root), |c, s, r| c.gather_v(s, r, &counts, root));
        let operation = Operation::new(Collective::Scatter).with_root(root).with_counts(shared.clone());
        self.apart(operation, (at_root, own), |c, s, r| c.scatter_v(s, r, &counts, root));
        // Rank i sends counts[j] to rank j.
        let received = vec![own; counts.len()];
        let operation = Operation::new(Collective::AllToAll).with_own_counts(shared, received.clone());
        let lengths = (all, own * counts.len());
        self.apart(operation, lengths, |c, s, r| c.all_to_all_v(s, &counts, r, &received));
    }

    /// From each rank to the next, beginning with rank 0.
    fn messages(&mut self) {
        let (n, me, count) = (self.comm.size(), self.comm.rank(), self.count);
        if n < 2 {
            return;
        }
        let (next, last) = (me.ahead(1, n), me.ahead(n - 1, n));
        let send = |t: &mut Self| {
            t.apart(Operation::send(next), (count, 0), |c, s, _| c.send(s, next));
        };
        if me == Rank(0) {
            send(self);
        }
        self.apart(Operation::recv(last), (0, count), |c, _, r| c.recv(r, last));
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
            let operation = Operation::new(Collective::AllReduce).with_op(op).with_codec(INT8);
            twins.apart(operation.clone(), (1000, 1000), |c, s, r| c.all_reduce_quantized(s, r, op, INT8));
            twins.within(operation, (1000, 0, 0), |c, d| c.all_reduce_quantized_in_place(d, op, INT8));
        }
        let operation = Operation::new(Collective::AllReduce).with_op(ReduceOp::Sum).with_codec(INT8);
        let mut data = [1u32; 8];
        let error =
            carry_out(comm, &in_place(operation, 8, &mut data, (0, 0))).expect_err("no u32").to_string();
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
                let operation = Operation::new(Collective::AllReduce).with_op(op).with_scale(by);
                same(&name, &done, &carry_out(comm, &raw(operation.clone(), count, &send, &mut ours)));
                same(&name, &done, &carry_out(comm, &in_place(operation, count, &mut data, (0, 0))));
                if done.is_ok() {
                    assert_eq!((&ours, &data[..count]), (&theirs, &theirs[..]), "{name}");
                }
                data.clone_from(&send);

                let done = comm.reduce(&products[..count], &mut theirs, op, root);
                let operation = Operation::new(Collective::Reduce).with_op(op).with_root(root).with_scale(by);
                same(&name, &done, &carry_out(comm, &raw(operation, count, &send, &mut ours)));
                assert_eq!(ours, theirs, "{name}");

                let done = comm.reduce_scatter(&products, &mut theirs, op);
                let operation = Operation::new(Collective::ReduceScatter).with_op(op).with_scale(by);
                same(&name, &done, &carry_out(comm, &raw(operation.clone(), count, &send, &mut ours)));
                let at = me.index() * count;
                same(&name, &done, &carry_out(comm, &in_place(operation, count, &mut data, (0, at))));
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
        let wrong =
            Operation::new(Collective::AllReduce).with_op(ReduceOp::Sum).with_scale(Scale::new(2.0f32));
        let error = carry_out(comm, &in_place(wrong, 4, &mut data, (0, 0))).expect_err("f32 is not i32");
        assert!(error.to_string().contains("the factor is a f32"), "{error}");
        let legal = Operation::new(Collective::AllReduce).with_op(ReduceOp::Sum).with_scale(Scale::new(2i32));
        let illegal = Operation::new(Collective::Scan).with_op(ReduceOp::Avg);
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
        let counts = vec![COUNT, 0, 2 * COUNT];
        let (own, all) = (counts[me.index()], 3 * COUNT);
        let (sum, root) = (ReduceOp::Sum, Rank(1));
        let received = vec![own; 3];
        let operations = [
            (Operation::new(Collective::AllReduce).with_op(sum), COUNT, COUNT),
            (Operation::new(Collective::AllReduce).with_op(sum), COUNT, COUNT),
            (Operation::new(Collective::Barrier), 0, 0),
            (Operation::new(Collective::AllReduce).with_op(sum).with_scale(Scale::new(3.0f32)), COUNT, COUNT),
            (Operation::new(Collective::AllReduce).with_op(sum).with_codec(INT8), COUNT, COUNT),
            (Operation::new(Collective::Reduce).with_op(sum).with_root(root), COUNT, COUNT),
            (
                Operation::new(Collective::Reduce)
                    .with_op(sum)
                    .with_root(root)
                    .with_scale(Scale::new(2.0f32)),
                COUNT,
                COUNT,
            ),
            (Operation::new(Collective::Broadcast).with_root(root), COUNT, COUNT),
            (Operation::new(Collective::AllGather), COUNT, all),
            (Operation::new(Collective::ReduceScatter).with_op(sum), all, COUNT),
            (
                Operation::new(Collective::ReduceScatter).with_op(sum).with_scale(Scale::new(me.0 as f32)),
                all,
                COUNT,
            ),
            (Operation::new(Collective::AllToAll), all, all),
            (Operation::new(Collective::Gather).with_root(root), COUNT, all),
            (Operation::new(Collective::Scatter).with_root(root), all, COUNT),
            (Operation::new(Collective::Scan).with_op(sum), COUNT, COUNT),
            (Operation::new(Collective::ExclusiveScan).with_op(sum), COUNT, COUNT),
            (Operation::new(Collective::AllGather).with_counts(counts.clone()), own, all),
            (Operation::new(Collective::ReduceScatter).with_op(sum).with_counts(counts.clone()), all, own),
            (Operation::new(Collective::Gather).with_root(root).with_counts(counts.clone()), own, all),
            (Operation::new(Collective::Scatter).with_root(root).with_counts(counts.clone()), all, own),
            (Operation::new(Collective::AllToAll).with_own_counts(counts.clone(), received), all, 3 * own),
        ];
        let sends: Vec<Vec<f32>> =
            operations.iter().map(|(_, sent, _)| filled(f32::from, me.0, *sent)).collect();
        let fresh = || operations.iter().map(|(_, _, received)| vec![-1.0f32; *received]).collect::<Vec<_>>();
        let calls = |recvs: &mut [Vec<f32>]| -> Vec<RawCall> {
            let memory = sends.iter().zip(recvs);
            operations
                .iter()
                .zip(memory)
                .map(|((operation, ..), (s, r))| raw(operation.clone(), COUNT, s, r))
                .collect()
        };
        let (mut one_by_one, mut grouped) = (fresh(), fresh());
        for call in calls(&mut one_by_one) {
            carry_out(comm, &call).unwrap_or_else(|error| panic!("{:?}: {error}", call.operation));
        }
        let mut group = calls(&mut grouped);
        let (send, mut from_last, mut from_me) = (filled(f32::from, me.0, 9), vec![0.0; 9], vec![0.0; 9]);
        group.push(raw(Operation::send(next), 9, &send, &mut []));
        group.insert(0, raw(Operation::recv(last), 9, &[], &mut from_last));
        group.push(raw(Operation::recv(me), 9, &[], &mut from_me));
        group.push(raw(Operation::send(me), 9, &send, &mut []));
        together(comm, &group).expect("a group of everything");
        for (at, (operation, ..)) in operations.iter().enumerate() {
            assert_eq!(grouped[at], one_by_one[at], "{operation:?} in a group");
        }
        assert_eq!((from_last, from_me), (filled(f32::from, last.0, 9), send));
    });
}

/// Calls that no memory can make right, with what their errors say.
fn wrong(data: &mut [f32; 64]) -> Vec<(RawCall, &'static str)> {
    let sum = ReduceOp::Sum;
    let start: *mut u8 = data.as_mut_ptr().cast();
    let call = |operation: Operation<'static>, count: usize, send: usize, recv: usize| {
        let at =
            |offset: usize| if offset == usize::MAX { ptr::null_mut() } else { start.wrapping_add(offset) };
        RawCall { operation, dtype: DType::F32, count, send: at(send), recv: at(recv) }
    };
    const NULL: usize = usize::MAX;
    let lengths = |lengths: &[usize]| lengths.to_vec();
    vec![
        (call(Operation::new(Collective::AllReduce).with_op(sum), 1, NULL, 0), "send is null"),
        (call(Operation::new(Collective::AllReduce).with_op(sum), 1, 0, NULL), "recv is null"),
        (call(Operation::send(Rank(1)), 1, NULL, 0), "send is null"),
        (call(Operation::recv(Rank(1)), 1, 0, NULL), "recv is null"),
        (call(Operation::new(Collective::AllReduce).with_op(sum), 1, 2, 64), "send is at"),
        (call(Operation::new(Collective::AllReduce).with_op(sum), 1, 0, 66), "recv is at"),
        (
            call(Operation::new(Collective::AllReduce).with_op(sum), 8, 0, 4),
            "recv overlap; in place they are the same",
        ),
        (
            call(Operation::new(Collective::Scan).with_op(sum), 8, 28, 0),
            "recv overlap; in place they are the same",
        ),
        (call(Operation::new(Collective::AllGather), 4, 4, 0), "in place send is the block of this rank"),
        (
            call(Operation::new(Collective::ReduceScatter).with_op(sum), 4, 0, 4),
            "in place recv is the block of this rank",
        ),
        (call(Operation::new(Collective::AllToAll), 4, 0, 0), "no form in place"),
        (
            call(Operation::new(Collective::AllGather).with_counts(lengths(&[2, 2])), 0, 0, 0),
            "no form in place",
        ),
        (
            call(Operation::new(Collective::AllReduce).with_op(sum), usize::MAX, 0, 64),
            "more than memory can hold",
        ),
        (
            call(Operation::new(Collective::AllReduce).with_op(sum), usize::MAX / 4, 0, 64),
            "more than memory can hold",
        ),
        (call(Operation::new(Collective::AllGather), usize::MAX / 2 + 1, 0, 64), "more than memory can hold"),
        (
            call(Operation::new(Collective::Broadcast).with_root(Rank(2)), 1, 0, 64),
            "root 2 is not one of the ranks",
        ),
        (
            call(Operation::new(Collective::Reduce).with_op(sum).with_root(Rank(u32::MAX)), 1, 0, 64),
            "is not one of the ranks",
        ),
        (call(Operation::send(Rank(2)), 1, 0, 0), "to 2 is not one of the ranks"),
        (call(Operation::recv(Rank(2)), 1, 0, 0), "from 2 is not one of the ranks"),
        (call(Operation::new(Collective::AllReduce).with_op(ReduceOp::BitAnd), 1, 0, 64), "f32"),
        (call(Operation::new(Collective::Scan).with_op(ReduceOp::Avg), 1, 0, 64), "no average"),
        (
            call(Operation::new(Collective::AllGather).with_counts(lengths(&[2])), 0, 0, 64),
            "counts has 1 lengths, and there are 2 ranks",
        ),
        (
            call(
                Operation::new(Collective::Gather).with_root(Rank(0)).with_counts(lengths(&[2, 2, 2])),
                0,
                0,
                64,
            ),
            "counts has 3 lengths",
        ),
        (
            call(
                Operation::new(Collective::Scatter).with_root(Rank(0)).with_counts(lengths(&[usize::MAX, 2])),
                0,
                0,
                64,
            ),
            "more elements than memory",
        ),
        (
            call(
                Operation::new(Collective::ReduceScatter).with_op(sum).with_counts(lengths(&[usize::MAX, 0])),
                0,
                0,
                64,
            ),
            "than memory can hold",
        ),
        (
            call(
                Operation::new(Collective::AllToAll).with_own_counts(lengths(&[1, 1]), lengths(&[2, 2])),
                0,
                0,
                64,
            ),
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
        let operations = [
            Operation::new(Collective::AllReduce).with_op(ReduceOp::Sum),
            Operation::new(Collective::AllGather),
            Operation::new(Collective::AllToAll),
            Operation::new(Collective::Barrier),
        ];
        for operation in operations {
            let call =
                RawCall { operation, dtype: DType::F64, count: 0, send: ptr::null(), recv: ptr::null_mut() };
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
        let operation = Operation::new(Collective::Broadcast).with_root(Rank(0));
        let call = RawCall { dtype: DType::Bool, ..raw(operation, 8, &send, &mut recv) };
        carry_out(comm, &call).expect("a broadcast");
        assert_eq!(recv, [1; 8]);
        recv = [7; 8];
        together(comm, &[RawCall { recv: recv.as_mut_ptr(), ..call }]).expect("a group");
        assert_eq!(recv, [1; 8]);
    });
}
