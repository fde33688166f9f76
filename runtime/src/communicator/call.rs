//! Collective calls by value: parameters that decide the plan and the record of a call.

use crate::{
    error::{Error, Result},
    kernels::Reducer,
};
use collectives::{Codec, Collective, DType, ReduceOp, schedule::InPlace};
use topology::Rank;

/// A collective call, by value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) collective: Collective,
    pub(crate) dtype: DType,
    pub(crate) op: Option<ReduceOp>,
    /// Elements per block; where blocks differ, their mean.
    pub(crate) count: u64,
    pub(crate) root: Rank,
    pub(crate) in_place: InPlace,
    /// How messages are packed, if they are.
    pub(crate) codec: Option<Codec>,
}

/// The lengths of a call's blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Blocks<'c> {
    /// All have the call's count.
    Even,
    /// Each has its own.
    Uneven {
        /// Elements of each block of this rank's input.
        input: &'c [u64],
        /// Elements of each block of this rank's output.
        output: &'c [u64],
        /// The elements of every block, where all ranks know them.
        all: Option<&'c [u64]>,
    },
}

impl Call {
    /// How its elements are combined, if they are.
    #[inline]
    pub(super) fn reducer(&self) -> Result<Option<Reducer>> {
        if self.op == Some(ReduceOp::Avg) && !self.collective.averages() {
            let what = format!("{} has no average; choose another operation, e.g. sum", self.collective);
            return Err(Error::InvalidArgument(what));
        }
        // Spelt out: through `map` and `transpose` it is stored in parts and loaded as a whole, for which a processor waits.
        let Some(op) = self.op else { return Ok(None) };
        match Reducer::new(self.dtype, op) {
            Ok(reducer) => Ok(Some(reducer)),
            Err(illegal) => Err(illegal.into()),
        }
    }
}
