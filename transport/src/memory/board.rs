//! The board of a rank: words of shared memory that the rank writes and its peers read.
//!
//! The runtime defines the meaning of the words. They are atomics, so every access from every process is
//! defined, no matter what the other processes do.
//!
//! # Safety
//! The board is the first [`Board::BYTES`] of a mapping, which it keeps alive. The mapping is page-aligned
//! and at least that long, and every access goes through atomics.

use super::Mapping;
use crate::{TransportError, sync::AtomicU64};
use std::sync::Arc;

/// The words at the start of one rank's arena.
#[derive(Clone, Debug)]
pub struct Board {
    mapping: Arc<Mapping>,
}

impl Board {
    /// Number of words.
    pub const WORDS: usize = 2048;
    /// Size of the board in bytes.
    pub const BYTES: usize = Board::WORDS * 8;

    /// Creates a board that only this process sees.
    ///
    /// # Errors
    /// [`TransportError::Memory`] when the system refuses the memory.
    pub fn private() -> Result<Board, TransportError> {
        Ok(Board::new(Arc::new(Mapping::private(Board::BYTES)?)))
    }

    pub(crate) fn new(mapping: Arc<Mapping>) -> Board {
        assert!(mapping.len() >= Board::BYTES, "an arena has room for its board");
        Board { mapping }
    }

    /// Returns the words; zero when the arena is new. Each 8 words, from word 0 on, share a cache line.
    #[must_use]
    #[inline]
    pub fn words(&self) -> &[AtomicU64; Board::WORDS] {
        // SAFETY: the mapping is page-aligned, at least `BYTES` long and lives as long as `self`. It starts
        // zeroed, and every process accesses its first `BYTES` as atomics only.
        unsafe { &*self.mapping.as_ptr().cast() }
    }
}
