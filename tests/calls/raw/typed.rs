//! Raw calls compared with typed calls: the same results, to the bit, and the same errors.

use super::{INT8, Make, call_raw, filled, in_place, on_each_rank, raw};
use half::{bf16, f16};
use num_complex::Complex32;
use std::fmt::Debug;
use tbccl::{Collective, Communicator, Element, Error, Operation, Rank, ReduceOp, Result, Scale};

fn assert_same_outcome(name: &str, typed: &Result<()>, raw: &Result<()>) {
    let text = |result: &Result<()>| result.as_ref().map_err(Error::to_string).copied();
    assert_eq!(text(raw), text(typed), "{name}");
}

/// Compares raw with typed calls of `count` elements on one rank.
struct TypedComparison<'c, T> {
    comm: &'c mut Communicator,
    make: Make<T>,
    count: usize,
}

impl<T: Element + PartialEq + Debug> TypedComparison<'_, T> {
    /// Compares calls with separate buffers.
    fn compare(
        &mut self,
        operation: Operation<'static>,
        (sent, received): (usize, usize),
        typed: impl FnOnce(&mut Communicator, &[T], &mut [T]) -> Result<()>,
    ) {
        let name = format!("{operation:?} of {} {}", self.count, T::DTYPE);
        let send = filled(self.make, self.comm.rank().0, sent);
        let [mut raw_result, mut typed_result] = [0, 1].map(|_| filled(self.make, 99, received));
        let done = typed(self.comm, &send, &mut typed_result);
        assert_same_outcome(
            &name,
            &done,
            &call_raw(self.comm, &raw(operation, self.count, &send, &mut raw_result)),
        );
        assert_eq!(raw_result, typed_result, "{name}");
    }

    /// Compares calls in place, whose buffers begin at the given elements.
    fn compare_in_place(
        &mut self,
        operation: Operation<'static>,
        (len, send, recv): (usize, usize, usize),
        typed: impl FnOnce(&mut Communicator, &mut [T]) -> Result<()>,
    ) {
        let name = format!("{operation:?} of {} {} in place", self.count, T::DTYPE);
        let [mut raw_result, mut typed_result] = [0, 1].map(|_| filled(self.make, self.comm.rank().0, len));
        let done = typed(self.comm, &mut typed_result);
        assert_same_outcome(
            &name,
            &done,
            &call_raw(self.comm, &in_place(operation, self.count, &mut raw_result, (send, recv))),
        );
        assert_eq!(raw_result, typed_result, "{name}");
    }

    fn reductions(&mut self, op: ReduceOp, root: Rank) {
        let (count, n, me) = (self.count, self.comm.size() as usize, self.comm.rank().index());
        let is_root = self.comm.rank() == root;
        self.compare(Operation::new(Collective::AllReduce).with_op(op), (count, count), |c, s, r| {
            c.all_reduce(s, r, op)
        });
        self.compare_in_place(Operation::new(Collective::AllReduce).with_op(op), (count, 0, 0), |c, d| {
            c.all_reduce_in_place(d, op)
        });
        self.compare(
            Operation::new(Collective::Reduce).with_op(op).with_root(root),
            (count, count),
            |c, s, r| c.reduce(s, r, op, root),
        );
        if is_root {
            self.compare_in_place(
                Operation::new(Collective::Reduce).with_op(op).with_root(root),
                (count, 0, 0),
                |c, d| c.reduce_in_place(d, op, root),
            );
        } else {
            self.compare(
                Operation::new(Collective::Reduce).with_op(op).with_root(root),
                (count, 0),
                |c, s, r| c.reduce(s, r, op, root),
            );
        }
        let scatter = Operation::new(Collective::ReduceScatter).with_op(op);
        self.compare(scatter.clone(), (n * count, count), |c, s, r| c.reduce_scatter(s, r, op));
        self.compare_in_place(scatter, (n * count, 0, me * count), |c, d| c.reduce_scatter_in_place(d, op));
        self.compare(Operation::new(Collective::Scan).with_op(op), (count, count), |c, s, r| {
            c.scan(s, r, op)
        });
        self.compare_in_place(Operation::new(Collective::Scan).with_op(op), (count, 0, 0), |c, d| {
            c.scan_in_place(d, op)
        });
        let scan = Operation::new(Collective::ExclusiveScan).with_op(op);
        self.compare(scan.clone(), (count, count), |c, s, r| c.exclusive_scan(s, r, op));
        self.compare_in_place(scan, (count, 0, 0), |c, d| c.exclusive_scan_in_place(d, op));
        let counts = self.counts();
        let all = counts.iter().sum();
        let vector = Operation::new(Collective::ReduceScatter).with_op(op).with_counts(counts.clone());
        self.compare(vector, (all, counts[me]), |c, s, r| c.reduce_scatter_v(s, r, &counts, op));
    }

    fn moves(&mut self, root: Rank) {
        let (count, n, me) = (self.count, self.comm.size() as usize, self.comm.rank().index());
        let is_root = self.comm.rank() == root;
        self.compare(Operation::new(Collective::Broadcast).with_root(root), (count, count), |c, s, r| {
            c.broadcast_from(s, r, root)
        });
        self.compare_in_place(
            Operation::new(Collective::Broadcast).with_root(root),
            (count, 0, 0),
            |c, d| c.broadcast(d, root),
        );
        self.compare(Operation::new(Collective::AllGather), (count, n * count), |c, s, r| c.all_gather(s, r));
        self.compare_in_place(Operation::new(Collective::AllGather), (n * count, me * count, 0), |c, d| {
            c.all_gather_in_place(d)
        });
        self.compare(Operation::new(Collective::AllToAll), (n * count, n * count), |c, s, r| {
            c.all_to_all(s, r)
        });
        let all = if is_root { n * count } else { count };
        let own = if is_root { me * count } else { 0 };
        self.compare(Operation::new(Collective::Gather).with_root(root), (count, n * count), |c, s, r| {
            c.gather(s, r, root)
        });
        self.compare(Operation::new(Collective::Scatter).with_root(root), (n * count, count), |c, s, r| {
            c.scatter(s, r, root)
        });
        self.compare_in_place(Operation::new(Collective::Gather).with_root(root), (all, own, 0), |c, d| {
            c.gather_in_place(d, root)
        });
        self.compare_in_place(Operation::new(Collective::Scatter).with_root(root), (all, 0, own), |c, d| {
            c.scatter_in_place(d, root)
        });
        self.vectors(root);
        self.messages();
        self.compare(Operation::new(Collective::Barrier), (0, 0), |c, _, _| c.barrier());
    }

    /// Returns block lengths, different ones and 0.
    fn counts(&self) -> Vec<usize> {
        (0..self.comm.size() as usize).map(|rank| self.count * ((rank + 2) % 3)).collect()
    }

    fn vectors(&mut self, root: Rank) {
        let (counts, me) = (self.counts(), self.comm.rank().index());
        let (own, all): (usize, usize) = (counts[me], counts.iter().sum());
        let shared = counts.clone();
        let operation = Operation::new(Collective::AllGather).with_counts(shared.clone());
        self.compare(operation, (own, all), |c, s, r| c.all_gather_v(s, r, &counts));
        let at_root = if self.comm.rank() == root { all } else { 0 };
        let operation = Operation::new(Collective::Gather).with_root(root).with_counts(shared.clone());
        self.compare(operation, (own, at_root), |c, s, r| c.gather_v(s, r, &counts, root));
        let operation = Operation::new(Collective::Scatter).with_root(root).with_counts(shared.clone());
        self.compare(operation, (at_root, own), |c, s, r| c.scatter_v(s, r, &counts, root));
        // Rank i sends counts[j] to rank j.
        let received = vec![own; counts.len()];
        let operation = Operation::new(Collective::AllToAll).with_own_counts(shared, received.clone());
        let lengths = (all, own * counts.len());
        self.compare(operation, lengths, |c, s, r| c.all_to_all_v(s, &counts, r, &received));
    }

    /// Sends a message from each rank to the next, beginning with rank 0.
    fn messages(&mut self) {
        let (n, me, count) = (self.comm.size(), self.comm.rank(), self.count);
        if n < 2 {
            return;
        }
        let (next, previous) = (me.ahead(1, n), me.ahead(n - 1, n));
        let send = |t: &mut Self| {
            t.compare(Operation::send(next), (count, 0), |c, s, _| c.send(s, next));
        };
        if me == Rank(0) {
            send(self);
        }
        self.compare(Operation::recv(previous), (0, count), |c, _, r| c.recv(r, previous));
        if me != Rank(0) {
            send(self);
        }
    }
}

fn compare_all<T: Element + PartialEq + Debug>(make: Make<T>) {
    for ranks in 1..=4 {
        on_each_rank(ranks, |comm| {
            for count in [0, 1, 3, 700] {
                let root = Rank(count as u32 % ranks);
                let mut comparison = TypedComparison { comm, make, count };
                comparison.moves(root);
                ReduceOp::ALL.into_iter().for_each(|op| comparison.reductions(op, root));
            }
        });
    }
}

#[test]
fn floats_by_address_are_what_they_are_by_slice() {
    compare_all::<f32>(f32::from);
    compare_all::<f64>(f64::from);
    compare_all::<f16>(|v| f16::from_f32(v.into()));
    compare_all::<bf16>(|v| bf16::from_f32(v.into()));
    compare_all::<Complex32>(|v| Complex32::new(v.into(), 1.0));
}

#[test]
fn integers_and_bools_by_address_are_what_they_are_by_slice() {
    compare_all::<i8>(|v| v as i8);
    compare_all::<i16>(i16::from);
    compare_all::<i32>(i32::from);
    compare_all::<i64>(i64::from);
    compare_all::<u8>(|v| v);
    compare_all::<u16>(u16::from);
    compare_all::<u32>(u32::from);
    compare_all::<u64>(u64::from);
    compare_all::<bool>(|v| v % 2 == 1);
}

#[test]
fn packed_elements_by_address_are_what_they_are_by_slice() {
    on_each_rank(3, |comm| {
        let mut comparison = TypedComparison::<f32> { comm, make: f32::from, count: 1000 };
        for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max] {
            let operation = Operation::new(Collective::AllReduce).with_op(op).with_codec(INT8);
            comparison
                .compare(operation.clone(), (1000, 1000), |c, s, r| c.all_reduce_quantized(s, r, op, INT8));
            comparison.compare_in_place(operation, (1000, 0, 0), |c, d| {
                c.all_reduce_quantized_in_place(d, op, INT8)
            });
        }
        let operation = Operation::new(Collective::AllReduce).with_op(ReduceOp::Sum).with_codec(INT8);
        let mut data = [1u32; 8];
        let error =
            call_raw(comm, &in_place(operation, 8, &mut data, (0, 0))).expect_err("no u32").to_string();
        assert!(error.contains("u32 cannot be packed"), "{error}");
    });
}

/// Compares calls that multiply contributions by a factor with typed calls on the products.
fn compare_scaled<T: Element + PartialEq + Debug>(make: Make<T>, factor: Make<T>, multiply: fn(T, T) -> T) {
    for ranks in 1..=3u32 {
        on_each_rank(ranks, |comm| {
            let (n, me, count) = (ranks as usize, comm.rank(), 1500);
            let own = factor(me.0 as u8 + 2);
            let scale = Scale::new(own);
            let send = filled(make, me.0, n * count);
            let products: Vec<T> = send.iter().map(|value| multiply(*value, own)).collect();
            for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Avg] {
                let root = Rank(ranks - 1);
                let [mut raw_result, mut typed_result] = [0, 1].map(|_| filled(make, 99, count));
                let mut data = send.clone();
                let name = format!("{op} of {}", T::DTYPE);

                let done = comm.all_reduce(&products[..count], &mut typed_result, op);
                let operation = Operation::new(Collective::AllReduce).with_op(op).with_scale(scale);
                assert_same_outcome(
                    &name,
                    &done,
                    &call_raw(comm, &raw(operation.clone(), count, &send, &mut raw_result)),
                );
                assert_same_outcome(
                    &name,
                    &done,
                    &call_raw(comm, &in_place(operation, count, &mut data, (0, 0))),
                );
                if done.is_ok() {
                    assert_eq!((&raw_result, &data[..count]), (&typed_result, &typed_result[..]), "{name}");
                }
                data.clone_from(&send);

                let done = comm.reduce(&products[..count], &mut typed_result, op, root);
                let operation =
                    Operation::new(Collective::Reduce).with_op(op).with_root(root).with_scale(scale);
                assert_same_outcome(
                    &name,
                    &done,
                    &call_raw(comm, &raw(operation, count, &send, &mut raw_result)),
                );
                assert_eq!(raw_result, typed_result, "{name}");

                let done = comm.reduce_scatter(&products, &mut typed_result, op);
                let operation = Operation::new(Collective::ReduceScatter).with_op(op).with_scale(scale);
                assert_same_outcome(
                    &name,
                    &done,
                    &call_raw(comm, &raw(operation.clone(), count, &send, &mut raw_result)),
                );
                let at = me.index() * count;
                assert_same_outcome(
                    &name,
                    &done,
                    &call_raw(comm, &in_place(operation, count, &mut data, (0, at))),
                );
                if done.is_ok() {
                    assert_eq!(
                        (&raw_result, &data[at..at + count]),
                        (&typed_result, &typed_result[..]),
                        "{name}"
                    );
                }
            }
        });
    }
}

#[test]
fn contributions_are_multiplied_before_they_are_combined() {
    compare_scaled::<f32>(f32::from, f32::from, |a, b| a * b);
    compare_scaled::<f16>(|v| f16::from_f32(v.into()), |v| f16::from_f32(v.into()), |a, b| a * b);
    compare_scaled::<i64>(i64::from, i64::from, |a, b| a * b);
    compare_scaled::<u8>(|v| v, |v| v, u8::wrapping_mul);
}
