//! What every chunk holds, as a set of contributions.
//!
//! A chunk is undefined, or holds the reduction of one chunk position of the inputs over a set of ranks. For
//! a collective that only moves data the set has one member. Executing a schedule on such values, in any
//! order that its dependencies allow, tells what it computes; if it has no races, every order tells the same.
//!
//! Beside the set, a value knows the very expression: which sums of which sums, though not which operand was the left
//! one, and what was packed on the way. Equal expressions have equal numbers. A packed chunk and what it is decoded to
//! have the same: that it was packed is what counts.

use super::{Flow, Matching, Memory, StepId};
use crate::Collective;
use crate::schedule::{Action, Buffer, ChunkRange, Schedule};
use std::collections::HashMap;
use std::ops::Range;
use topology::Rank;

/// The symbolic contents of one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    /// The chunk of the inputs that it comes from.
    pub(crate) position: u32,
    /// Which of the ranks 0 to 63 have contributed.
    low: u64,
    /// The same for ranks from 64 on, 64 per word; empty, and so not allocated, on up to 64 ranks.
    high: Box<[u64]>,
    /// The expression.
    pub(crate) expression: Expression,
}

/// A sum of contributions: equal numbers of one [`Expressions`] are equal sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Expression(u32);

/// How an expression is made from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Node {
    /// The sum of two, the one with the lower number first.
    Sum(Expression, Expression),
    /// One that was packed.
    Encoded(Expression),
}

/// The expressions that there are. The first ones are the ranks' contributions.
#[derive(Debug)]
pub(crate) struct Expressions {
    numbers: HashMap<Node, Expression>,
    /// By number: the most encodings that a contribution in it goes through.
    encodings: Vec<u32>,
}

impl Expressions {
    fn new(ranks: u32) -> Expressions {
        Expressions { numbers: HashMap::new(), encodings: vec![0; ranks as usize] }
    }

    /// A rank's contribution.
    pub(crate) const fn of(rank: Rank) -> Expression {
        Expression(rank.0)
    }

    /// The sum of two sums.
    pub(crate) fn sum(&mut self, a: Expression, b: Expression) -> Expression {
        let encodings = self.encodings(a).max(self.encodings(b));
        self.number(Node::Sum(a.min(b), a.max(b)), encodings)
    }

    /// The same, packed and unpacked.
    fn encoded(&mut self, of: Expression) -> Expression {
        self.number(Node::Encoded(of), self.encodings(of) + 1)
    }

    /// The most encodings that a contribution in it goes through.
    pub(crate) fn encodings(&self, of: Expression) -> u32 {
        self.encodings[of.0 as usize]
    }

    fn number(&mut self, node: Node, encodings: u32) -> Expression {
        let next = Expression(self.encodings.len() as u32);
        let number = *self.numbers.entry(node).or_insert(next);
        if number == next {
            self.encodings.push(encodings);
        }
        number
    }
}

/// Why a step makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// It reads a chunk that nothing has been written to.
    Undefined(ChunkRange),
    /// It combines different chunks of the inputs.
    Mixed {
        /// The chunk of the first operand.
        a: u32,
        /// The chunk of the second operand.
        b: u32,
    },
    /// It adds a contribution that is there already.
    Twice(Rank),
    /// Its `last` mark is not what it should be.
    Last {
        /// What it should be.
        expected: bool,
    },
}

impl Value {
    fn own(rank: u32, ranks: u32, position: u32) -> Value {
        let high = vec![0; ranks.div_ceil(64) as usize - 1].into_boxed_slice();
        let mut value = Value { position, low: 0, high, expression: Expressions::of(Rank(rank)) };
        let word = match rank as usize / 64 {
            0 => &mut value.low,
            word => &mut value.high[word - 1],
        };
        *word = 1 << (rank % 64);
        value
    }

    fn words(&self) -> impl Iterator<Item = u64> {
        std::iter::once(self.low).chain(self.high.iter().copied())
    }

    /// The ranks that have contributed, ascending.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = Rank> {
        let bits = (0..).zip(self.words()).flat_map(|(word, bits)| (0..64).map(move |bit| (word, bits, bit)));
        bits.filter(|(_, bits, bit)| bits >> bit & 1 == 1).map(|(word, _, bit)| Rank(word * 64 + bit))
    }

    /// The number of ranks that have contributed.
    pub(crate) fn count(&self) -> u32 {
        self.words().map(u64::count_ones).sum()
    }

    fn combine(&self, other: &Value, repeats: bool, sums: &mut Expressions) -> Result<Value, Wrong> {
        if self.position != other.position {
            return Err(Wrong::Mixed { a: self.position, b: other.position });
        }
        let mut common = self.words().zip(other.words()).map(|(a, b)| a & b);
        if !repeats && common.any(|word| word != 0) {
            let twice = self.ranks().find(|rank| other.ranks().any(|r| r == *rank));
            return Err(Wrong::Twice(twice.unwrap_or_default()));
        }
        let high = self.high.iter().zip(&other.high).map(|(a, b)| a | b).collect();
        // The tokens of a barrier are not numbers.
        let expression = if repeats { self.expression } else { sums.sum(self.expression, other.expression) };
        Ok(Value { position: self.position, low: self.low | other.low, high, expression })
    }
}

/// The memory of all ranks while a schedule runs.
#[derive(Debug)]
pub(crate) struct Values {
    ranks: u32,
    memories: Vec<Memory>,
    cells: Vec<Vec<Option<Value>>>,
    /// The message of each send that no receive has taken yet, by the number of the receive.
    messages: Vec<Option<Vec<Value>>>,
    /// May a contribution be added twice? In a barrier, which only asks whether everyone is in.
    repeats: bool,
    pub(crate) expressions: Expressions,
}

impl Values {
    /// Memory at the start of a call: inputs hold what their rank contributes, all else is undefined. A
    /// barrier has no input; there, block 0 of scratch stands for "this rank has entered".
    pub(crate) fn new(schedule: &Schedule, messages: usize) -> Values {
        let ranks = schedule.ranks();
        let memories: Vec<_> = (0..ranks).map(|r| Memory::new(schedule, ranks, Rank(r))).collect();
        let barrier = schedule.collective == Collective::Barrier;
        let cells = memories.iter().enumerate().map(|(rank, memory)| {
            let mut cells = vec![None; memory.cells()];
            let own = if barrier { token(schedule, memory, 0) } else { memory.whole(Buffer::Input) };
            for (position, cell) in cells[own].iter_mut().enumerate() {
                *cell = Some(Value::own(rank as u32, ranks, position as u32));
            }
            cells
        });
        let cells = cells.collect();
        Values {
            ranks,
            memories,
            cells,
            messages: vec![None; messages],
            repeats: barrier,
            expressions: Expressions::new(ranks),
        }
    }

    /// Runs all steps in the order of `flow`; `judge` sees each reducing step with the mark it should have,
    /// and every error.
    pub(crate) fn run(
        &mut self,
        schedule: &Schedule,
        matching: &Matching,
        flow: &Flow,
        mut judge: impl FnMut(StepId, Result<Option<bool>, Wrong>) -> bool,
    ) {
        for id in &flow.order {
            let outcome =
                self.execute(*id, &id.of(schedule).action, matching, schedule.collective.averages());
            if !judge(*id, outcome) {
                return;
            }
        }
    }

    /// Runs one step; tells, for one that reduces, whether its result is complete.
    fn execute(
        &mut self,
        id: StepId,
        action: &Action,
        matching: &Matching,
        marks: bool,
    ) -> Result<Option<bool>, Wrong> {
        let message = |values: &mut Values| values.messages[matching.number(id)].take().unwrap_or_default();
        let result = match *action {
            Action::Send { src, .. } => {
                let message = self.read(id.rank, src)?;
                if let Some(recv) = matching.partner(id) {
                    self.messages[matching.number(recv)] = Some(message);
                }
                return Ok(None);
            }
            Action::Copy { src, .. } | Action::Decode { src, .. } => self.read(id.rank, src)?,
            Action::Encode { src, .. } => {
                let mut values = self.read(id.rank, src)?;
                for value in &mut values {
                    value.expression = self.expressions.encoded(value.expression);
                }
                values
            }
            Action::Recv { .. } => message(self),
            Action::RecvReduce { local, .. } => {
                let message = message(self);
                let local = self.read(id.rank, local)?;
                self.reduce(&local, &message)?
            }
            Action::Reduce { a, b, .. } | Action::DecodeReduce { local: a, src: b, .. } => {
                let (a, b) = (self.read(id.rank, a)?, self.read(id.rank, b)?);
                self.reduce(&a, &b)?
            }
        };
        let reduced = action.last().is_some();
        let complete = reduced && marks && result.iter().all(|value| value.count() == self.ranks);
        if let Some(dst) = action.writes() {
            let span = self.memories[id.rank as usize].span(dst);
            for (cell, value) in self.cells[id.rank as usize][span].iter_mut().zip(result) {
                *cell = Some(value);
            }
        }
        Ok(reduced.then_some(complete))
    }

    fn read(&self, rank: u32, range: ChunkRange) -> Result<Vec<Value>, Wrong> {
        let cells = &self.cells[rank as usize][self.memories[rank as usize].span(range)];
        cells.iter().map(|cell| cell.clone().ok_or(Wrong::Undefined(range))).collect()
    }

    fn reduce(&mut self, a: &[Value], b: &[Value]) -> Result<Vec<Value>, Wrong> {
        a.iter().zip(b).map(|(a, b)| a.combine(b, self.repeats, &mut self.expressions)).collect()
    }

    /// What a rank has at the end: its output, or the last token of a barrier.
    pub(crate) fn result(&self, schedule: &Schedule, rank: Rank) -> &[Option<Value>] {
        let memory = &self.memories[rank.index()];
        let span = match schedule.collective {
            Collective::Barrier => token(schedule, memory, schedule.scratch_blocks.saturating_sub(1)),
            _ => memory.whole(Buffer::Output),
        };
        &self.cells[rank.index()][span]
    }
}

/// The cells of a block of scratch; none when there is no scratch at all.
fn token(schedule: &Schedule, memory: &Memory, block: u32) -> Range<usize> {
    let all = memory.whole(Buffer::Scratch);
    let start = all.start + (block * schedule.chunks) as usize;
    if start < all.end { start..start + schedule.chunks as usize } else { all.end..all.end }
}
