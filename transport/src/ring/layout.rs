//! Layout of a ring.

/// Layout of a ring; equal on all ranks of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    /// Number of cells; a power of two.
    pub cells: usize,
    /// Bytes of the staging area; a multiple of 4 pieces.
    pub staging_bytes: usize,
    /// Maximum bytes staged at a time; a multiple of a cache line.
    pub piece_bytes: usize,
}

impl RingLayout {
    /// Bytes of a cache line, which is also the size of a cell and the unit of the staging area.
    pub const LINE: usize = 64;

    /// Returns the size of a whole ring in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        (Self::LINE + self.cells * Self::LINE + self.staging_bytes).next_multiple_of(4096)
    }

    /// Checks the layout.
    ///
    /// # Panics
    /// If an invariant of the fields is violated.
    pub(crate) fn check(&self) {
        // Models use the smallest rings.
        let (cells, pieces) = if cfg!(loom) { (2, 2) } else { (8, 4) };
        assert!(self.cells.is_power_of_two() && self.cells >= cells, "cells: {}", self.cells);
        assert!(
            self.piece_bytes.is_multiple_of(Self::LINE) && self.piece_bytes > 0,
            "piece: {}",
            self.piece_bytes
        );
        assert!(
            self.staging_bytes.is_multiple_of(self.piece_bytes)
                && self.staging_bytes >= pieces * self.piece_bytes,
            "staging: {}",
            self.staging_bytes
        );
    }
}

impl Default for RingLayout {
    /// Returns 256 KiB of staging in pieces of 32 KiB: a staged piece is still in a second-level cache of 1
    /// MiB when the receiver reads it.
    fn default() -> RingLayout {
        RingLayout { cells: 256, staging_bytes: 256 * 1024, piece_bytes: 32 * 1024 }
    }
}
