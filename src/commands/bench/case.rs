//! A case of a benchmark: an operation with its form and size.

use super::operation::{Form, Operation};
use collectives::{Codec, ReduceOp};
use std::ops::Range;

/// An operation with its form and size, as one rank runs it.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) struct Case {
    pub(in crate::commands) operation: Operation,
    pub(in crate::commands) redop: Option<ReduceOp>,
    pub(in crate::commands) form: Form,
    /// Elements per block.
    pub(in crate::commands) count: usize,
    pub(in crate::commands) rank: u32,
    pub(in crate::commands) ranks: u32,
    /// Message packing; the result is then not exact.
    pub(in crate::commands) packed: Option<Packed>,
}

impl Case {
    /// Returns the element counts of the input and the output. In place the output buffer holds both.
    pub(in crate::commands) fn lengths(&self) -> (usize, usize) {
        let (input, output) = self.operation.input_and_output_blocks(self.ranks);
        let (input, output) = (input as usize * self.count, output as usize * self.count);
        match self.form {
            Form::OutOfPlace => (input, output),
            Form::InPlace => (0, input.max(output)),
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

/// The message packing of a case.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) struct Packed {
    pub(super) codec: Codec,
    /// Maximum number of times that an element is packed on its way.
    pub(super) encodings: u32,
}
