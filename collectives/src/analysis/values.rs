//! The contents of every chunk, as a set of contributions.
//!
//! A chunk is undefined, or holds the reduction of one chunk position of the inputs over a set of ranks. For
//! a collective that only moves data the set has one member. Executing a schedule on such values, in any
//! order that its dependencies allow, shows what it computes; without races, every order gives the same.
//!
//! Beside the set, a value knows its expression: which sums of which sums, though not which operand was the
//! left one, and what was packed on the way. Equal expressions have equal numbers. A packed chunk and its
//! decoded one have the same number: only the packing counts.

use super::{FastMap, Flow, Matching};
use crate::Collective;
use crate::schedule::{Action, Buffer, ChunkRange, Schedule};
use crate::schedule::{Memory, StepId};
use std::ops::Range;
use topology::Rank;

/// The symbolic contents of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    /// The chunk of the inputs that it comes from.
    pub(crate) position: u32,
    /// The expression over the ranks' contributions.
    pub(crate) expression: Expression,
}

/// A sum of contributions: equal numbers of one [`Expressions`] are equal sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Expression(u32);

/// The derivation of an expression from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Node {
    /// The sum of two, the one with the lower number first.
    Sum(Expression, Expression),
    /// A packed value.
    Encoded(Expression),
}

/// All expressions. The first ones are the ranks' contributions.
#[derive(Debug)]
pub(crate) struct Expressions {
    /// Whether a contribution may be added twice: in a barrier, which only checks that all ranks have
    /// entered.
    repeats: bool,
    /// Words per set.
    words: usize,
    /// The ranks that have contributed to each expression, one bit per rank.
    sets: Vec<u64>,
    /// By number: the maximum number of encodings that a contribution in the expression goes through.
    encodings: Vec<u32>,
    numbers: FastMap<Node, Expression>,
}

impl Expressions {
    fn new(ranks: u32, repeats: bool) -> Expressions {
        let words = ranks.div_ceil(64) as usize;
        let mut sets = vec![0; words * ranks as usize];
        for rank in 0..ranks as usize {
            sets[rank * words + rank / 64] = 1 << (rank % 64);
        }
        let encodings = vec![0; ranks as usize];
        Expressions { repeats, words, sets, encodings, numbers: FastMap::default() }
    }

    /// Returns a rank's contribution.
    pub(crate) const fn of(rank: Rank) -> Expression {
        Expression(rank.0)
    }

    fn set(&self, sum: Expression) -> &[u64] {
        &self.sets[sum.0 as usize * self.words..][..self.words]
    }

    /// Returns the ranks that have contributed to a sum, ascending.
    pub(crate) fn ranks(&self, sum: Expression) -> impl Iterator<Item = Rank> {
        let bits =
            (0..).zip(self.set(sum)).flat_map(|(word, bits)| (0..64).map(move |bit| (word, bits, bit)));
        bits.filter(|(_, bits, bit)| *bits >> bit & 1 == 1).map(|(word, _, bit)| Rank(word * 64 + bit))
    }

    /// Returns the number of ranks that have contributed to a sum.
    pub(crate) fn count(&self, sum: Expression) -> u32 {
        self.set(sum).iter().map(|word| word.count_ones()).sum()
    }

    /// Returns the sum of two sums.
    ///
    /// # Errors
    /// [`ValueError::Twice`] when they have a rank in common.
    pub(crate) fn sum(&mut self, a: Expression, b: Expression) -> Result<Expression, ValueError> {
        let node = Node::Sum(a.min(b), a.max(b));
        if let Some(known) = self.numbers.get(&node) {
            return Ok(*known);
        }
        let common = |rank: &Rank| self.set(b)[rank.index() / 64] >> (rank.0 % 64) & 1 == 1;
        if let Some(twice) = self.ranks(a).find(common).filter(|_| !self.repeats) {
            return Err(ValueError::Twice(twice));
        }
        let union: Vec<u64> = self.set(a).iter().zip(self.set(b)).map(|(a, b)| a | b).collect();
        Ok(self.add(node, union, self.encodings(a).max(self.encodings(b))))
    }

    /// Returns the expression, packed and unpacked.
    fn encoded(&mut self, of: Expression) -> Expression {
        let node = Node::Encoded(of);
        match self.numbers.get(&node) {
            Some(known) => *known,
            None => self.add(node, self.set(of).to_vec(), self.encodings(of) + 1),
        }
    }

    fn add(&mut self, node: Node, set: Vec<u64>, encodings: u32) -> Expression {
        let number = Expression(self.encodings.len() as u32);
        self.sets.extend(set);
        self.encodings.push(encodings);
        self.numbers.insert(node, number);
        number
    }

    /// Returns the maximum number of encodings that a contribution in an expression goes through.
    pub(crate) fn encodings(&self, of: Expression) -> u32 {
        self.encodings[of.0 as usize]
    }
}

/// The reason why a step is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueError {
    /// The step reads a chunk that has not been written.
    Undefined(ChunkRange),
    /// The step combines different chunks of the inputs.
    Mixed {
        /// The chunk of the first operand.
        a: u32,
        /// The chunk of the second operand.
        b: u32,
    },
    /// The step adds a contribution that is already there.
    Twice(Rank),
    /// The step has the wrong `last` mark.
    Last {
        /// The expected mark.
        expected: bool,
    },
}

/// The memory of all ranks while a schedule runs.
#[derive(Debug)]
pub(crate) struct Values {
    ranks: u32,
    memories: Vec<Memory>,
    cells: Vec<Vec<Option<Value>>>,
    /// The start of each receive's message in `sent`, by the number of the receive.
    messages: Vec<u32>,
    /// Sent values, one message behind the other.
    sent: Vec<Value>,
    pub(crate) expressions: Expressions,
}

impl Values {
    /// Memory at the start of a call: inputs hold what their rank contributes, all else is undefined. A
    /// barrier has no input; there, block 0 of scratch stands for "this rank has entered".
    pub(crate) fn new(schedule: &Schedule, messages: usize) -> Values {
        let ranks = schedule.ranks();
        let memories: Vec<_> = (0..ranks).map(|r| Memory::new(schedule, ranks, Rank(r))).collect();
        let barrier = schedule.collective == Collective::Barrier;
        let cells = memories.iter().zip(0..).map(|(memory, rank)| {
            let mut cells = vec![None; memory.cells()];
            let own = if barrier { token(schedule, memory, 0) } else { memory.whole(Buffer::Input) };
            for (cell, position) in cells[own].iter_mut().zip(0..) {
                *cell = Some(Value { position, expression: Expressions::of(Rank(rank)) });
            }
            cells
        });
        let cells = cells.collect();
        let expressions = Expressions::new(ranks, barrier);
        Values { ranks, memories, cells, messages: vec![0; messages], sent: Vec::new(), expressions }
    }

    /// Runs all steps in the order of `flow`; `judge` sees each reducing step with the mark it should have,
    /// and every error.
    pub(crate) fn run(
        &mut self,
        schedule: &Schedule,
        matching: &Matching,
        flow: &Flow,
        mut judge: impl FnMut(StepId, Result<Option<bool>, ValueError>) -> bool,
    ) {
        for id in &flow.order {
            let outcome =
                self.execute(*id, &id.of(schedule).action, matching, schedule.collective.averages());
            if !judge(*id, outcome) {
                return;
            }
        }
    }

    /// Runs one step. Returns, for a reducing step, whether its result is complete.
    fn execute(
        &mut self,
        id: StepId,
        action: &Action,
        matching: &Matching,
        marks: bool,
    ) -> Result<Option<bool>, ValueError> {
        if let Action::Send { src, .. } = *action {
            if let Some(recv) = matching.partner(id) {
                self.messages[matching.number(recv)] = self.sent.len() as u32;
            }
            for chunk in 0..src.len {
                let value = self.read(id.rank, src, chunk)?;
                self.sent.push(value);
            }
            return Ok(None);
        }
        let dst = action.writes().expect("all but sends write");
        let message = self.messages[matching.number(id)];
        let mut complete = action.last().is_some();
        for chunk in 0..dst.len {
            let sent = |values: &Values| values.sent[(message + chunk) as usize];
            let value = match *action {
                Action::Copy { src, .. } | Action::Decode { src, .. } => self.read(id.rank, src, chunk)?,
                Action::Encode { src, .. } => {
                    let value = self.read(id.rank, src, chunk)?;
                    Value { expression: self.expressions.encoded(value.expression), ..value }
                }
                Action::RecvReduce { local, .. } => {
                    let local = self.read(id.rank, local, chunk)?;
                    self.combine(local, sent(self))?
                }
                Action::Reduce { a, b, .. } | Action::DecodeReduce { local: a, src: b, .. } => {
                    let (a, b) = (self.read(id.rank, a, chunk)?, self.read(id.rank, b, chunk)?);
                    self.combine(a, b)?
                }
                _ => sent(self),
            };
            complete = complete && marks && self.expressions.count(value.expression) == self.ranks;
            let cell = self.cell(id.rank, dst, chunk);
            self.cells[id.rank as usize][cell] = Some(value);
        }
        Ok(action.last().map(|_| complete))
    }

    fn cell(&self, rank: u32, range: ChunkRange, chunk: u32) -> usize {
        self.memories[rank as usize].span(range).start + chunk as usize
    }

    fn read(&self, rank: u32, range: ChunkRange, chunk: u32) -> Result<Value, ValueError> {
        self.cells[rank as usize][self.cell(rank, range, chunk)].ok_or(ValueError::Undefined(range))
    }

    fn combine(&mut self, a: Value, b: Value) -> Result<Value, ValueError> {
        if a.position != b.position {
            return Err(ValueError::Mixed { a: a.position, b: b.position });
        }
        Ok(Value { expression: self.expressions.sum(a.expression, b.expression)?, ..a })
    }

    /// Returns a rank's result: its output, or the last token of a barrier.
    pub(crate) fn result(&self, schedule: &Schedule, rank: Rank) -> &[Option<Value>] {
        let memory = &self.memories[rank.index()];
        let span = match schedule.collective {
            Collective::Barrier => token(schedule, memory, schedule.scratch_blocks.saturating_sub(1)),
            _ => memory.whole(Buffer::Output),
        };
        &self.cells[rank.index()][span]
    }
}

/// Returns the cells of a block of scratch; empty when there is no scratch.
fn token(schedule: &Schedule, memory: &Memory, block: u32) -> Range<usize> {
    let all = memory.whole(Buffer::Scratch);
    let start = all.start + (block * schedule.chunks) as usize;
    if start < all.end { start..start + schedule.chunks as usize } else { all.end..all.end }
}
