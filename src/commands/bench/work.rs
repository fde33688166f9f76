//! One rank's part of one operation: the call, its input, and the check of its output.
//!
//! Grouped calls share their input, and each has its own part of the output buffer; every part is checked.

use super::{
    buffers::Buffers,
    case::Case,
    operation::{Form, Operation},
    packed::{self, Accuracy},
    pattern::{Table, Value},
};
use collectives::{Collective, Overlap, Rank, ReduceOp, Sources, VectorCounts};
use std::{hint::black_box, mem, ops::Range};
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

    /// Writes all of this rank's input, each time other values of the same kind.
    fn rewrite(&mut self, root: Rank);

    /// Sets all elements to zero, which repeated reductions in place leave unchanged.
    fn clear(&mut self);
}

/// A case on given buffers.
pub(in crate::commands) struct Task<'a, T: Value> {
    case: Case,
    buffers: &'a mut Buffers<T>,
    /// Calls per run, in one group if there are several.
    calls: usize,
    /// Lengths of this rank's blocks; empty if all are equal.
    lengths: Vec<usize>,
    /// Elements of the input and of the output of a call.
    extents: (usize, usize),
    /// The collective and its operation, if a run is one call on blocks of equal lengths.
    plain: Option<(Collective, Option<ReduceOp>)>,
}

impl<'a, T: Value> Task<'a, T> {
    pub(in crate::commands) fn new(case: Case, buffers: &'a mut Buffers<T>) -> Task<'a, T> {
        let lengths = case.vector_lengths().unwrap_or_default();
        let plain = match case.operation {
            Operation::Collective(collective) if case.packed.is_none() => {
                let redop = collective.reduces().then(|| case.redop.unwrap_or(ReduceOp::Sum));
                Some((collective, redop))
            }
            _ => None,
        };
        Task { case, buffers, calls: 1, lengths, extents: case.lengths(), plain }
    }

    /// Sets the calls of a run, which are made in a group if there are several.
    pub(super) fn with_calls(self, calls: u32) -> Task<'a, T> {
        Task { calls: calls as usize, plain: self.plain.filter(|_| calls == 1), ..self }
    }

    /// Runs messages, groups, packed calls, and calls on blocks of unequal lengths.
    fn run_other(&mut self, comm: &mut Communicator, root: Rank) -> Result<()> {
        let Case { operation, redop, form, rank, packed, .. } = self.case;
        if let Some(packed) = packed {
            return packed::run(packed, &self.case, self.buffers, comm);
        }
        let (calls, (_, len)) = (self.calls, self.extents);
        let lengths = mem::take(&mut self.lengths);
        let (input, output) = self.slices();
        let redop = redop.unwrap_or(ReduceOp::Sum);
        let Some(collective) = operation.collective() else {
            return ping_pong(comm, rank, input, output);
        };
        let call = tbccl::Operation::new(collective).with_root(root);
        let call = if collective.reduces() { call.with_op(redop) } else { call };
        let call = match (operation, collective.shape().vector) {
            (Operation::Vector(_), Some(VectorCounts::Own)) => call.with_own_counts(&lengths, &lengths),
            (Operation::Vector(_), _) => call.with_counts(&lengths),
            _ => call,
        };
        let done = match form {
            _ if calls > 1 => run_group(comm, (&call, form, calls), input, (output, len)),
            Form::OutOfPlace => comm.call(&call, input, output),
            Form::InPlace => comm.call_in_place(&call, output),
        };
        drop(call);
        self.lengths = lengths;
        done
    }

    /// Returns the index of each call's first element in the output buffer.
    fn call_starts(&self) -> impl Iterator<Item = usize> + use<T> {
        let (_, len) = self.extents;
        (0..self.calls).map(move |call| call * len)
    }

    /// Returns the input and output slices of this case.
    fn slices(&mut self) -> (&mut [T], &mut [T]) {
        let (input, output) = self.extents;
        (self.buffers.input.get_mut(input), self.buffers.output.get_mut(output * self.calls))
    }

    /// Calls `visit` with this rank's input of each call; calls out of place share theirs.
    fn for_each_input(&mut self, root: Rank, mut visit: impl FnMut(&mut [T])) {
        let case = self.case;
        let shape = case.operation.collective().map(Collective::shape);
        let has_input = shape.is_none_or(|shape| shape.send.is_present(case.rank == root.0));
        let (starts, (_, len)) = (self.call_starts(), case.lengths());
        let (input, output) = self.slices();
        if case.form == Form::OutOfPlace {
            return visit(input);
        }
        for start in starts.filter(|_| has_input) {
            let output = &mut output[start..][..len];
            match shape.map(|shape| shape.in_place) {
                Some(Overlap::SendInRecv) => visit(&mut output[case.own_block()]),
                _ => visit(output),
            }
        }
    }

    /// Returns a rank's input.
    fn input_table(&self, rank: u32, seed: u64) -> Table<T> {
        let Case { redop, ranks, .. } = self.case;
        let (input, _) = Case { form: Form::OutOfPlace, ..self.case.of_rank(rank) }.lengths();
        Table::input(redop, rank, ranks, seed, input)
    }

    /// Returns the expected output: patterns, each with its range in the output and its first index.
    fn expected(&self, root: Rank, seed: u64) -> Vec<(Table<T>, Range<usize>, usize)> {
        let Case { operation, redop, form, count, rank, ranks, .. } = self.case;
        let redop = redop.unwrap_or(ReduceOp::Sum);
        let Some(collective) = operation.collective() else {
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
            _ => self.case.output_block(block),
        };
        // A result of one rank's input begins at a block of that rank's.
        let source_block = collective.source_block(Rank(rank));
        let first = |block| self.case.of_rank(block % ranks).input_index(source_block);
        let blocks = 0..shape.recv.count(ranks);
        blocks.filter_map(|block| Some((table(block)?, range(block), first(block)))).collect()
    }
}

impl<T: Value> Work for Task<'_, T> {
    // Most cases take few instructions, and none after the call: these would count as its time.
    fn run(&mut self, comm: &mut Communicator, root: Rank) -> Result<()> {
        let Some((collective, redop)) = self.plain else { return self.run_other(comm, root) };
        let (form, call) = (self.case.form, tbccl::Operation::new(collective).with_root(root));
        let call = match redop {
            Some(redop) => call.with_op(redop),
            None => call,
        };
        let (input, output) = self.slices();
        match form {
            Form::OutOfPlace => comm.call(&call, input, output),
            Form::InPlace => comm.call_in_place(&call, output),
        }
    }

    fn fill(&mut self, root: Rank, seed: u64) {
        for (table, range, first) in self.expected(root, seed) {
            let poison = table.poison();
            for start in self.call_starts() {
                let (_, output) = self.slices();
                poison.write(&mut output[start..][range.clone()], first);
            }
        }
        if self.case.operation.has_data() {
            let own = self.input_table(self.case.rank, seed);
            self.for_each_input(root, |input| own.write(input, 0));
        }
    }

    fn rewrite(&mut self, root: Rank) {
        // Whole lines, as kernels store them: 128 KiB that a peer had read took 62 to 95 us with one element
        // of each line and a store to the stack in turn, and 15 to 20 us so.
        let mut block = [T::default(); 256];
        self.for_each_input(root, |input| {
            for part in input.chunks_mut(block.len()) {
                let copy = &mut block[..part.len()];
                let (last, others) = part.split_last().expect("not empty");
                copy[0] = *last;
                copy[1..].copy_from_slice(others);
                part.copy_from_slice(black_box(copy));
            }
        });
    }

    fn evaluate(&self, root: Rank, seed: u64) -> Option<Accuracy> {
        let (packed, (expected, ..)) = (self.case.packed?, self.expected(root, seed).pop()?);
        let inputs = (0..self.case.ranks).map(|rank| self.input_table(rank, seed).period().to_vec());
        let found = self.buffers.output.get(self.case.count);
        Some(packed::evaluate(packed, &self.case, found, expected.period(), inputs))
    }

    fn fingerprint(&self) -> u64 {
        let (_, len) = self.extents;
        packed::fingerprint(self.buffers.output.get(len))
    }

    fn count_wrong(&self, root: Rank, seed: u64) -> u64 {
        let (_, len) = self.extents;
        let output = self.buffers.output.get(len * self.calls);
        let expected = self.expected(root, seed);
        let wrong = |start: usize| {
            let output = &output[start..];
            expected.iter().map(|(table, range, first)| table.count_wrong(&output[range.clone()], *first))
        };
        self.call_starts().flat_map(wrong).sum()
    }

    fn clear(&mut self) {
        let (input, output) = self.slices();
        input.fill(T::default());
        output.fill(T::default());
    }
}

/// Work whose runs write their input first. What they receive is not checked.
pub(super) struct Written<'a>(pub(super) &'a mut dyn Work);

impl Work for Written<'_> {
    fn run(&mut self, comm: &mut Communicator, root: Rank) -> Result<()> {
        self.0.rewrite(root);
        self.0.run(comm, root)
    }

    fn fill(&mut self, root: Rank, seed: u64) {
        self.0.fill(root, seed);
    }

    fn count_wrong(&self, root: Rank, seed: u64) -> u64 {
        self.0.count_wrong(root, seed)
    }

    fn evaluate(&self, root: Rank, seed: u64) -> Option<Accuracy> {
        self.0.evaluate(root, seed)
    }

    fn fingerprint(&self) -> u64 {
        self.0.fingerprint()
    }

    fn rewrite(&mut self, root: Rank) {
        self.0.rewrite(root);
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// Makes the calls of a run in one group; `output` has `len` elements for each of them.
fn run_group<T: Value>(
    comm: &mut Communicator,
    (call, form, calls): (&tbccl::Operation<'_>, Form, usize),
    input: &[T],
    (mut output, len): (&mut [T], usize),
) -> Result<()> {
    let mut group = comm.group();
    for _ in 0..calls {
        let (own, others) = output.split_at_mut(len);
        output = others;
        match form {
            Form::OutOfPlace => group.call(call, input, own)?,
            Form::InPlace => group.call_in_place(call, own)?,
        }
    }
    group.run()
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

    #[test]
    fn all_output_is_wrong_before_the_operation() {
        let comm = communicator();
        for (operation, calls) in Operation::all().flat_map(|operation| [(operation, 1), (operation, 3)]) {
            let case = case(operation, Form::OutOfPlace);
            let (input, output) = case.lengths();
            let all = output * calls as usize;
            let mut buffers = Buffers::<bool>::new(&comm, input, all, false).expect("memory");
            let mut task = Task::new(case, &mut buffers).with_calls(calls);
            task.fill(Rank(1), 9);
            assert_eq!(task.count_wrong(Rank(1), 9), all as u64, "{operation:?}");
        }
    }

    #[test]
    fn rewriting_changes_nearly_all_of_the_input_and_nothing_else_in_every_form() {
        let comm = communicator();
        let forms = |operation: Operation| operation.forms().iter().map(move |form| (operation, *form));
        for (operation, form) in Operation::all().filter(|operation| operation.has_data()).flat_map(forms) {
            let case = case(operation, form);
            let (input, output) = case.lengths();
            let mut buffers = Buffers::<u64>::new(&comm, input, output, false).expect("memory");
            let mut task = Task::new(case, &mut buffers);
            task.fill(Rank(1), 9);
            let inputs = |task: &mut Task<'_, u64>| {
                let mut all = Vec::new();
                task.for_each_input(Rank(1), |input| all.extend_from_slice(input));
                all
            };
            let contents = |task: &mut Task<'_, u64>| {
                let (input, output) = task.slices();
                [input, output].map(|part| {
                    let mut sorted = part.to_vec();
                    sorted.sort_unstable();
                    sorted
                })
            };
            let (before, values) = (inputs(&mut task), contents(&mut task));
            assert!(before.len() >= 100, "{operation:?} {form:?}: {} elements of the input", before.len());
            Written(&mut task).rewrite(Rank(1));
            assert_eq!(contents(&mut task), values, "{operation:?} {form:?}");
            let after = inputs(&mut task);
            let changed = before.iter().zip(after).filter(|(before, after)| *before != after).count();
            assert!(
                changed * 10 >= before.len() * 9,
                "{operation:?} {form:?}: {changed} of {}",
                before.len()
            );
        }
    }

    #[test]
    fn one_wrong_element_of_a_grouped_call_is_found() {
        let comm = communicator();
        let case = case(Operation::Vector(Collective::AllGather), Form::OutOfPlace);
        let mut buffers = Buffers::<u64>::new(&comm, 100, 600, false).expect("memory");
        let expected = Task::new(case, &mut buffers).expected(Rank(0), 5);
        for start in [0, 300] {
            for (table, range, first) in &expected {
                table.write(&mut buffers.output.get_mut(600)[start..][range.clone()], *first);
            }
        }
        assert_eq!(Task::new(case, &mut buffers).with_calls(2).count_wrong(Rank(0), 5), 0);
        buffers.output.get_mut(600)[450] ^= 1;
        assert_eq!(Task::new(case, &mut buffers).with_calls(2).count_wrong(Rank(0), 5), 1);
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
