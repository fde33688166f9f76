//! The shape of a ring.

/// The shape of a ring. Equal on all ranks of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    /// Cells; a power of two.
    pub cells: usize,
    /// Bytes of the staging area; a multiple of 4 pieces.
    pub staging_bytes: usize,
    /// The largest piece that is staged at a time, in bytes; a multiple of a cache line.
    pub piece_bytes: usize,
}

impl RingLayout {
    /// Bytes of a cache line, a cell, and the unit of the staging area.
    pub const LINE: usize = 64;

    /// Bytes of a whole ring.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        (Self::LINE + self.cells * Self::LINE + self.staging_bytes).next_multiple_of(4096)
    }

    /// Panics unless the invariants of the fields hold.
    pub(crate) fn check(&self) {
        assert!(self.cells.is_power_of_two() && self.cells >= 8, "cells: {}", self.cells);
        assert!(
            self.piece_bytes.is_multiple_of(Self::LINE) && self.piece_bytes > 0,
            "piece: {}",
            self.piece_bytes
        );
        assert!(
            self.staging_bytes.is_multiple_of(self.piece_bytes) && self.staging_bytes >= 4 * self.piece_bytes,
            "staging: {}",
            self.staging_bytes
        );
    }
}

impl Default for RingLayout {
    /// 256 KiB of staging in pieces of 32 KiB: a staged piece is still in a second-level cache of 1 MiB when
    /// the receiver reads it.
    fn default() -> RingLayout {
        RingLayout { cells: 256, staging_bytes: 256 * 1024, piece_bytes: 32 * 1024 }
    }
}
