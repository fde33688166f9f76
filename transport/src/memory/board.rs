//! A rank's board: words of shared memory that it writes and its peers read.
//!
//! What the words mean is the runtime's business. They are atomics, so that any access from any process is
//! defined whatever the others do.
//!
//! # Safety
//! The board is the first [`Board::BYTES`] of a mapping, an arena's or its own, which it keeps alive; the mapping is aligned to
//! a page and at least that long, and every access goes through atomics.

use super::Mapping;
use crate::TransportError;
use std::sync::{Arc, atomic::AtomicU64};

/// The words at the start of one rank's arena.
#[derive(Clone, Debug)]
pub struct Board {
    mapping: Arc<Mapping>,
}

impl Board {
    /// How many words there are.
    pub const WORDS: usize = 2048;
    /// Bytes they take up.
    pub const BYTES: usize = Board::WORDS * 8;

    /// A board that only this process sees.
    ///
    /// # Errors
    /// When the memory is not to be had.
    pub fn private() -> Result<Board, TransportError> {
        Ok(Board::new(Arc::new(Mapping::private(Board::BYTES)?)))
    }

    pub(crate) fn new(mapping: Arc<Mapping>) -> Board {
        assert!(mapping.len() >= Board::BYTES, "an arena has room for its board");
        Board { mapping }
    }

    /// The words; zero when the arena is new. Eight of them share a cache line, starting with word 0.
    #[must_use]
    #[inline]
    pub fn words(&self) -> &[AtomicU64; Board::WORDS] {
        // SAFETY: the mapping is page-aligned, `BYTES` long at least, lives as long as `self`, starts zeroed, and
        // its first `BYTES` are accessed as atomics only, here and in every other process.
        unsafe { &*self.mapping.as_ptr().cast() }
    }
}
