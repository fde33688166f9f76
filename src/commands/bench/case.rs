//! A case of a benchmark: an operation with its form and size, and the blocks of its buffers.
//!
//! Blocks have the same length, but for the vector forms: there the length of a block grows with its number,
//! and is the given one on average. The blocks of an `all_to_all_v` differ between ranks, too.

use super::operation::{Form, Operation};
use collectives::{Blocks, Codec, Rank, ReduceOp, VectorCounts};
use std::ops::Range;

/// An operation with its form and size, as one rank runs it.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) struct Case {
    pub(in crate::commands) operation: Operation,
    pub(in crate::commands) redop: Option<ReduceOp>,
    pub(in crate::commands) form: Form,
    /// Elements per block; their average for the vector forms.
    pub(in crate::commands) count: usize,
    pub(in crate::commands) rank: u32,
    pub(in crate::commands) ranks: u32,
    /// Message packing; the result is then not exact.
    pub(in crate::commands) packed: Option<Packed>,
}

impl Case {
    /// Returns the element counts of the input and the output. In place the output buffer holds both.
    pub(in crate::commands) fn lengths(&self) -> (usize, usize) {
        let (input, output) = self.vector_extents().unwrap_or_else(|| {
            let (input, output) = self.operation.input_and_output_blocks(self.ranks);
            (input as usize * self.count, output as usize * self.count)
        });
        match self.form {
            Form::OutOfPlace => (input, output),
            Form::InPlace => (0, input.max(output)),
        }
    }

    /// Returns the case as another rank runs it.
    pub(super) fn of_rank(&self, rank: u32) -> Case {
        Case { rank, ..*self }
    }

    /// Returns the lengths of this rank's blocks; `None` if all are equal.
    pub(super) fn vector_lengths(&self) -> Option<Vec<usize>> {
        let Operation::Vector(collective) = self.operation else { return None };
        let mut lengths = uneven_lengths(self.ranks, self.count);
        if collective.shape().vector == Some(VectorCounts::Own) {
            // Rank i sends rank j as much as rank j sends rank i, and every rank the same in total.
            lengths.rotate_left(self.rank as usize % self.ranks.max(1) as usize);
        }
        Some(lengths)
    }

    /// Returns the element counts of the buffers of a vector form.
    fn vector_extents(&self) -> Option<(usize, usize)> {
        let (lengths, shape) = (self.vector_lengths()?, self.operation.collective()?.shape());
        let extent = |blocks| match blocks {
            Blocks::PerRank => lengths.iter().sum(),
            Blocks::One => lengths[Rank(self.rank).index()],
            Blocks::None => 0,
        };
        Some((extent(shape.send.blocks), extent(shape.recv.blocks)))
    }

    /// Returns the range of a block in the output.
    pub(super) fn output_block(&self, block: u32) -> Range<usize> {
        let block = block as usize;
        let Some(lengths) = self.vector_lengths() else {
            return block * self.count..(block + 1) * self.count;
        };
        let has_all = self.operation.collective().is_some_and(|c| c.shape().recv.blocks == Blocks::PerRank);
        if !has_all {
            return 0..lengths[Rank(self.rank).index()];
        }
        let first = lengths[..block].iter().sum();
        first..first + lengths[block]
    }

    /// Returns the index of the first element of a block in this rank's input.
    pub(super) fn input_index(&self, block: u32) -> usize {
        match self.vector_lengths() {
            Some(lengths) => lengths[..block as usize].iter().sum(),
            None => block as usize * self.count,
        }
    }

    /// Returns the range of this rank's own block in a buffer of one block per rank.
    pub(super) fn own_block(&self) -> Range<usize> {
        let first = self.rank as usize * self.count;
        first..first + self.count
    }

    /// Whether this rank takes no part: a ping-pong has two ranks.
    pub(super) fn is_idle(&self) -> bool {
        self.operation == Operation::PingPong && self.rank > 1
    }
}

/// Returns lengths that grow with the number of the block, and are `count` on average. The first may be 0.
fn uneven_lengths(ranks: u32, count: usize) -> Vec<usize> {
    let (ranks, total) = (ranks as usize, ranks as usize * count);
    let mut lengths: Vec<usize> = (0..ranks).map(|block| 2 * count * (block + 1) / (ranks + 1)).collect();
    let rest = total - lengths.iter().sum::<usize>();
    if let Some(last) = lengths.last_mut() {
        *last += rest;
    }
    lengths
}

/// The message packing of a case.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) struct Packed {
    pub(super) codec: Codec,
    /// Maximum number of times that an element is packed on its way.
    pub(super) encodings: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use collectives::Collective;

    fn case(collective: Collective, rank: u32) -> Case {
        let operation = Operation::Vector(collective);
        Case { operation, redop: None, form: Form::OutOfPlace, count: 10, rank, ranks: 3, packed: None }
    }

    #[test]
    fn lengths_of_blocks_are_unequal_and_have_the_given_average() {
        assert_eq!(uneven_lengths(3, 10), [5, 10, 15]);
        assert_eq!(uneven_lengths(2, 1), [0, 2]);
        assert_eq!(uneven_lengths(1, 7), [7]);
        for (ranks, count) in [(2, 999), (5, 1), (7, 64), (64, 3)] {
            let lengths = uneven_lengths(ranks, count);
            assert_eq!(lengths.iter().sum::<usize>(), ranks as usize * count);
            assert!(lengths.is_sorted() && lengths[0] < lengths[ranks as usize - 1], "{lengths:?}");
        }
    }

    #[test]
    fn blocks_of_a_vector_form_follow_each_other() {
        let gather = case(Collective::AllGather, 1);
        assert_eq!(gather.lengths(), (10, 30));
        assert_eq!([0, 1, 2].map(|block| gather.output_block(block)), [0..5, 5..15, 15..30]);
        let scatter = case(Collective::ReduceScatter, 2);
        assert_eq!((scatter.lengths(), scatter.output_block(0)), ((30, 15), 0..15));
        assert_eq!(scatter.input_index(2), 15);
    }

    #[test]
    fn each_rank_sends_another_what_the_other_expects() {
        let lengths = |rank| case(Collective::AllToAll, rank).vector_lengths().expect("a vector form");
        for (from, to) in [(0, 1), (1, 2), (2, 0), (1, 1)] {
            assert_eq!(lengths(from)[to as usize], lengths(to)[from as usize], "{from} to {to}");
        }
    }
}
