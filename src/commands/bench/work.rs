//! One rank's part of one operation: the call, its input, and the check of its output.

use super::{
    buffers::Buffers,
    case::Case,
    operation::{Form, Operation},
    packed::{self, Accuracy},
    pattern::{Table, Value},
};
use collectives::{Collective, Overlap, Rank, ReduceOp, Sources};
use std::ops::Range;
use tbccl::{Communicator, Result};

/// An operation on given buffers of any element type.
pub(in crate::commands) trait Work {
    /// Runs the operation once. Operations without a root ignore `root`.
    fn run(&mut self, comm: &mut Communicator, root: Rank) -> Result<()>;

    /// Writes the input for this seed, and wrong values to the expected output.
    fn fill(&mut self, root: Rank, seed: u64);

    /// Counts the wrong elements of this rank's output, after [`Work::fill`] with the same arguments.
    fn count_wrong(&self, root: Rank, seed: u64) -> u64;

    /// Returns the accuracy of this rank's output, after [`Work::fill`] with the same arguments; `None` if
    /// the output must be exact.
    fn evaluate(&self, root: Rank, seed: u64) -> Option<Accuracy>;

    /// Returns a hash of this rank's output.
    fn fingerprint(&self) -> u64;

    /// Sets all elements to zero, which repeated reductions in place leave unchanged.
    fn clear(&mut self);
}

/// A case on given buffers.
pub(in crate::commands) struct Task<'a, T: Value> {
    case: Case,
    buffers: &'a mut Buffers<T>,
}

impl<'a, T: Value> Task<'a, T> {
    pub(in crate::commands) fn new(case: Case, buffers: &'a mut Buffers<T>) -> Task<'a, T> {
        Task { case, buffers }
    }

    /// Returns the input and output slices of this case.
    fn slices(&mut self) -> (&mut [T], &mut [T]) {
        let (input, output) = self.case.lengths();
        (self.buffers.input.get_mut(input), self.buffers.output.get_mut(output))
    }

    /// Returns a rank's input.
    fn input_table(&self, rank: u32, seed: u64) -> Table<T> {
        let Case { operation, redop, count, ranks, .. } = self.case;
        let (input, _) = operation.input_and_output_blocks(ranks);
        Table::input(redop, rank, ranks, seed, input as usize * count)
    }

    /// Returns the expected output: patterns, each with its range in the output and its first index.
    fn expected(&self, root: Rank, seed: u64) -> Vec<(Table<T>, Range<usize>, usize)> {
        let Case { operation, redop, form, count, rank, ranks, .. } = self.case;
        let redop = redop.unwrap_or(ReduceOp::Sum);
        let Operation::Collective(collective) = operation else {
            if self.case.is_idle() {
                return Vec::new();
            }
            return vec![(self.input_table(1 - rank, seed), 0..count, 0)];
        };
        let shape = collective.shape();
        if !shape.recv.is_present(rank == root.0) {
            return Vec::new();
        }
        let reduced = |contributors| {
            let len = collective.input_blocks(ranks) as usize * count;
            Table::reduced(redop, contributors, ranks, seed, len)
        };
        let table = |block| match collective.result_rule().sources(ranks, root, Rank(rank), block) {
            Sources::All => Some(reduced(ranks)),
            Sources::Below(end) => Some(reduced(end.0)),
            Sources::One(from) => Some(self.input_table(from.0, seed)),
            Sources::Any => None,
        };
        let range = |block: u32| match (form, shape.in_place) {
            (Form::InPlace, Overlap::RecvInSend) => self.case.own_block(),
            _ => block as usize * count..(block as usize + 1) * count,
        };
        let first = collective.source_block(Rank(rank)) as usize * count;
        let blocks = 0..shape.recv.count(ranks);
        blocks.filter_map(|block| Some((table(block)?, range(block), first))).collect()
    }
}

impl<T: Value> Work for Task<'_, T> {
    fn run(&mut self, comm: &mut Communicator, root: Rank) -> Result<()> {
        let Case { operation, redop, form, rank, packed, .. } = self.case;
        if let Some(packed) = packed {
            return packed::run(packed, &self.case, self.buffers, comm);
        }
        let (input, output) = self.slices();
        let redop = redop.unwrap_or(ReduceOp::Sum);
        let Operation::Collective(collective) = operation else {
            return ping_pong(comm, rank, input, output);
        };
        let call = tbccl::Operation::new(collective).with_root(root);
        let call = if collective.reduces() { call.with_op(redop) } else { call };
        match form {
            Form::OutOfPlace => comm.call(&call, input, output),
            Form::InPlace => comm.call_in_place(&call, output),
        }
    }

    fn fill(&mut self, root: Rank, seed: u64) {
        for (table, range, first) in self.expected(root, seed) {
            let (_, output) = self.slices();
            table.poison().write(&mut output[range], first);
        }
        let case = self.case;
        if !case.operation.has_data() {
            return;
        }
        let own = self.input_table(case.rank, seed);
        let shape = case.operation.collective().map(Collective::shape);
        let has_input = shape.is_none_or(|shape| shape.send.is_present(case.rank == root.0));
        let (input, output) = self.slices();
        match (case.form, shape.map(|shape| shape.in_place)) {
            (Form::OutOfPlace, _) => own.write(input, 0),
            (Form::InPlace, _) if !has_input => {}
            (Form::InPlace, Some(Overlap::SendInRecv)) => own.write(&mut output[case.own_block()], 0),
            (Form::InPlace, _) => own.write(output, 0),
        }
    }

    fn evaluate(&self, root: Rank, seed: u64) -> Option<Accuracy> {
        let (packed, (expected, ..)) = (self.case.packed?, self.expected(root, seed).pop()?);
        let inputs = (0..self.case.ranks).map(|rank| self.input_table(rank, seed).period().to_vec());
        let found = self.buffers.output.get(self.case.count);
        Some(packed::evaluate(packed, &self.case, found, expected.period(), inputs))
    }

    fn fingerprint(&self) -> u64 {
        let (_, len) = self.case.lengths();
        packed::fingerprint(self.buffers.output.get(len))
    }

    fn count_wrong(&self, root: Rank, seed: u64) -> u64 {
        let (_, len) = self.case.lengths();
        let output = self.buffers.output.get(len);
        let expected = self.expected(root, seed);
        expected.into_iter().map(|(table, range, first)| table.count_wrong(&output[range], first)).sum()
    }

    fn clear(&mut self) {
        let (input, output) = self.slices();
        input.fill(T::default());
        output.fill(T::default());
    }
}

/// Exchanges one ping-pong between ranks 0 and 1; other ranks return at once.
fn ping_pong<T: Value>(comm: &mut Communicator, rank: u32, input: &[T], output: &mut [T]) -> Result<()> {
    match rank {
        0 => {
            comm.send(input, Rank(1))?;
            comm.recv(output, Rank(1))
        }
        1 => {
            comm.recv(output, Rank(0))?;
            comm.send(input, Rank(0))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tbccl::Config;

    /// Returns the communicator of rank 1 of 3.
    fn communicator() -> Communicator {
        let config = Config { slab_bytes: Some(1 << 20), ..Config::default() };
        Communicator::local(3, &config).expect("memory for a test").swap_remove(1)
    }

    fn case(operation: Operation, form: Form) -> Case {
        let redop = operation.reduces().then_some(ReduceOp::Max);
        Case { operation, redop, form, count: 100, rank: 1, ranks: 3, packed: None }
    }

    fn every_operation() -> impl Iterator<Item = Operation> {
        Collective::ALL.into_iter().map(Operation::Collective).chain([Operation::PingPong])
    }

    #[test]
    fn all_output_is_wrong_before_the_operation() {
        let comm = communicator();
        for operation in every_operation() {
            let case = case(operation, Form::OutOfPlace);
            let (input, output) = case.lengths();
            let mut buffers = Buffers::<bool>::new(&comm, input, output, false).expect("memory");
            let mut task = Task::new(case, &mut buffers);
            task.fill(Rank(1), 9);
            assert_eq!(task.count_wrong(Rank(1), 9), output as u64, "{operation:?}");
        }
    }

    #[test]
    fn in_place_the_input_is_where_the_output_will_be() {
        let comm = communicator();
        let wrong = |collective, root| {
            let case = case(Operation::Collective(collective), Form::InPlace);
            let (_, output) = case.lengths();
            let mut buffers = Buffers::<u64>::new(&comm, 0, output, false).expect("memory");
            let mut task = Task::new(case, &mut buffers);
            task.fill(Rank(root), 9);
            task.count_wrong(Rank(root), 9)
        };
        assert_eq!(wrong(Collective::AllGather, 0), 200);
        assert_eq!(wrong(Collective::Broadcast, 0), 100);
        assert_eq!(wrong(Collective::Broadcast, 1), 0);
        assert!(wrong(Collective::AllReduce, 0) > 50);
        assert!(wrong(Collective::ReduceScatter, 0) > 50);
    }
}
