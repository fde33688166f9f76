//! Collective calls by value: the parameters that decide the plan and the record of a call.

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
    /// Codec of packed messages, if they are packed.
    pub(crate) codec: Option<Codec>,
}

/// The lengths of a call's blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Blocks<'c> {
    /// All blocks have the call's count.
    Even,
    /// Each block has a length of its own.
    Uneven {
        /// Elements of each of this rank's input blocks.
        input: &'c [u64],
        /// Elements of each of this rank's output blocks.
        output: &'c [u64],
        /// Elements of every block, where all ranks know them.
        all: Option<&'c [u64]>,
    },
}

impl Call {
    /// Returns the function that combines elements; `None` for a collective without reduction.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an average that the collective does not have, [`Error::IllegalOp`] for
    /// an operation that the elements do not have.
    #[inline]
    pub(super) fn reducer(&self) -> Result<Option<Reducer>> {
        if self.op == Some(ReduceOp::Avg) && !self.collective.averages() {
            let what = format!("{} has no average; choose another operation, e.g. sum", self.collective);
            return Err(Error::InvalidArgument(what));
        }
        // Not written with `map` and `transpose`: these would store the result in parts and load it as a
        // whole, and the processor would wait for the stores.
        let Some(op) = self.op else { return Ok(None) };
        match Reducer::new(self.dtype, op) {
            Ok(reducer) => Ok(Some(reducer)),
            Err(illegal) => Err(illegal.into()),
        }
    }
}
