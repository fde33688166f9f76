//! Rank and size, against which the arguments of calls are checked.

use crate::error::{Error, Result};
use topology::Rank;

/// A rank and the number of ranks of its communicator.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankInfo {
    pub(super) rank: Rank,
    pub(super) size: u32,
}

impl RankInfo {
    /// Refuses a rank that the communicator does not have. `what` names the argument.
    #[inline]
    pub(super) fn check_rank(self, what: &str, rank: Rank) -> Result<()> {
        if rank.0 < self.size {
            return Ok(());
        }
        Err(self.no_such_rank(what, rank))
    }

    #[cold]
    fn no_such_rank(self, what: &str, rank: Rank) -> Error {
        Error::InvalidArgument(format!("{what} {rank} is not one of the ranks 0..{}", self.size))
    }

    /// Returns the elements of one block per rank, each of `count` elements.
    #[inline]
    pub(super) fn times_size(self, count: usize) -> Result<usize> {
        count.checked_mul(self.size as usize).ok_or_else(|| {
            Error::InvalidArgument(format!("{count} elements per rank are more than memory can hold"))
        })
    }

    /// Returns the elements of one block, where `elements` are divided into one block per rank.
    #[inline]
    pub(super) fn block_of(self, elements: usize) -> Result<usize> {
        let size = self.size as usize;
        if elements.is_multiple_of(size) {
            return Ok(elements / size);
        }
        Err(Error::InvalidArgument(format!("{elements} elements cannot be divided into {size} blocks")))
    }
}
