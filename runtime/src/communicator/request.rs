//! Calls whose arguments have been checked: a communicator carries one out at once, a group when it is run.
//!
//! What a call of each name needs of its arguments is said once, by the functions of [`Us`] in `typed`, `rooted`,
//! `uneven` and `quantized`, for slices and for addresses. Nothing here moves bytes or asks peers: a request is made of what this rank knows.

use super::call::{Blocks, Call};
use crate::{
    call::CallKind,
    error::{Error, Result},
};
use collectives::{Collective, DType};
use topology::Rank;
use transport::memory::{Span, SpanMut};

/// A call of checked arguments, with its memory, which it borrows.
#[derive(Debug)]
pub(super) struct Request<'m> {
    pub(super) what: What,
    pub(super) input: Span<'m>,
    pub(super) output: SpanMut<'m>,
    /// Those of its blocks, where they differ.
    pub(super) lengths: Option<Box<Lengths>>,
}

/// What is called.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Collective(Call),
    Message { kind: CallKind, dtype: DType, peer: Rank },
}

/// The elements of each block, where blocks differ.
#[derive(Debug)]
pub(super) struct Lengths {
    /// Of this rank's input.
    pub(super) input: Vec<u64>,
    /// Of this rank's output.
    pub(super) output: Vec<u64>,
    pub(super) known: Known,
}

/// Which lengths all ranks know, and must agree about.
#[derive(Clone, Copy, Debug)]
pub(super) enum Known {
    Input,
    Output,
    Neither,
}

impl Lengths {
    fn blocks(&self) -> Blocks<'_> {
        let (input, output) = (&self.input[..], &self.output[..]);
        let all = match self.known {
            Known::Input => Some(input),
            Known::Output => Some(output),
            Known::Neither => None,
        };
        Blocks::Uneven { input, output, all }
    }
}

impl<'m> Request<'m> {
    pub(super) fn collective(call: Call, input: Span<'m>, output: SpanMut<'m>) -> Request<'m> {
        Request { what: What::Collective(call), input, output, lengths: None }
    }

    /// The type of its elements.
    #[inline]
    pub(super) fn dtype(&self) -> DType {
        match self.what {
            What::Collective(call) => call.dtype,
            What::Message { dtype, .. } => dtype,
        }
    }

    /// The blocks of a collective.
    #[inline]
    pub(super) fn blocks(&self) -> Blocks<'_> {
        self.lengths.as_deref().map_or(Blocks::Even, Lengths::blocks)
    }
}

/// What must be known to check arguments: which rank this is, and of how many.
#[derive(Clone, Copy, Debug)]
pub(super) struct Us {
    pub(super) rank: Rank,
    pub(super) size: u32,
}

impl Us {
    pub(super) fn check_rank(self, what: &str, rank: Rank) -> Result<()> {
        if rank.0 < self.size {
            return Ok(());
        }
        Err(Error::InvalidArgument(format!("{what} {rank} is not one of the ranks 0..{}", self.size)))
    }

    /// The elements of all ranks' blocks of `count` each.
    pub(super) fn times_size(self, count: usize) -> Result<usize> {
        count.checked_mul(self.size as usize).ok_or_else(|| {
            Error::InvalidArgument(format!("{count} elements per rank are more than memory can hold"))
        })
    }

    /// The elements of a rank's block, of so many of all ranks.
    pub(super) fn block_of(self, elements: usize) -> Result<usize> {
        let size = self.size as usize;
        if elements.is_multiple_of(size) {
            return Ok(elements / size);
        }
        Err(Error::InvalidArgument(format!("{elements} elements cannot be divided into {size} blocks")))
    }

    /// Has this rank the buffer of all blocks of such a call? Where there is a root, only it does.
    pub(super) fn has_all_blocks(self, collective: Collective, root: Rank) -> bool {
        !collective.has_root() || self.rank == root
    }
}
