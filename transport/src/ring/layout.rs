//! Layout of a ring.

use super::cell::Cell;
use std::{fmt, str::FromStr};

/// How pieces are stored into staging areas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stores {
    /// The faster way, by the time that pieces take.
    #[default]
    Auto,
    /// Through the caches.
    Cached,
    /// Through the caches, with the lines fetched for writing ahead of the stores.
    Fetched,
    /// Past the caches, to memory, where the processor can.
    Streamed,
}

impl FromStr for Stores {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Stores, &'static str> {
        match text {
            "auto" => Ok(Stores::Auto),
            "cached" => Ok(Stores::Cached),
            "fetched" => Ok(Stores::Fetched),
            "streamed" => Ok(Stores::Streamed),
            _ => Err("must be auto, cached, fetched or streamed"),
        }
    }
}

impl fmt::Display for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stores::Auto => "auto",
            Stores::Cached => "cached",
            Stores::Fetched => "fetched",
            Stores::Streamed => "streamed",
        })
    }
}

/// Layout of a ring. All but `lap_bytes`, `stores` and `fetches` is equal on all ranks of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    /// Number of cells; a power of two.
    pub cells: usize,
    /// Bytes of the staging area; a multiple of 4 pieces.
    pub staging_bytes: usize,
    /// Maximum bytes staged at a time; a multiple of a cache line.
    pub piece_bytes: usize,
    /// Buffers of two pieces that the ends of a link hand to each other; 16 at most.
    pub buffers: usize,
    /// Bytes of the staging area after which a sender of this process begins again at its start: all of them,
    /// or at least 8 pieces.
    ///
    /// A piece is fastest where neither core has its lines in a cache of its own any more. So a lap is longer
    /// than these caches, and short enough for the cache that the cores share.
    pub lap_bytes: usize,
    /// How a sender of this process stores pieces into the staging area.
    pub stores: Stores,
    /// Whether [`Stores::Auto`] fetches lines ahead of the stores through the caches.
    pub fetches: bool,
}

impl RingLayout {
    /// The smallest ring, for models.
    #[cfg(all(test, loom))]
    pub(crate) const SMALLEST: RingLayout = RingLayout {
        cells: 2,
        staging_bytes: 2 * 64,
        piece_bytes: 64,
        buffers: 1,
        lap_bytes: 2 * 64,
        stores: Stores::Auto,
        fetches: false,
    };

    /// Bytes of a cache line, which is also the unit of the staging area.
    pub const LINE: usize = 64;
    /// Bytes of a cell: two lines.
    pub(crate) const CELL: usize = size_of::<Cell>();
    /// Most buffers of a ring.
    pub const MOST_BUFFERS: usize = 16;

    /// Returns the size of a whole ring in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        (self.buffers_start() + self.buffers * self.buffer_stride()).next_multiple_of(4096)
    }

    /// Offset in a ring of the cell that changes hands. The consumer line has the place of a cell before it.
    pub(crate) const SWAP_START: usize = Self::CELL;

    /// Returns the offset of a cell in a ring.
    pub(crate) const fn cell_start(slot: usize) -> usize {
        2 * Self::CELL + slot * Self::CELL
    }

    /// Returns the offset of the staging area in a ring.
    pub(super) const fn staging_start(&self) -> usize {
        Self::cell_start(self.cells)
    }

    /// Returns the offset of the first buffer in a ring.
    pub(super) const fn buffers_start(&self) -> usize {
        self.staging_start() + self.staging_bytes
    }

    /// Returns the size of a buffer in bytes.
    pub(crate) const fn buffer_bytes(&self) -> usize {
        2 * self.piece_bytes
    }

    /// Returns the distance between buffers. Equal lines of them are in different sets of a cache.
    pub(super) const fn buffer_stride(&self) -> usize {
        self.buffer_bytes() + Self::LINE
    }

    /// Checks the layout.
    ///
    /// # Panics
    /// If an invariant of the fields is violated.
    pub(crate) fn check(&self) {
        // Models use the smallest rings.
        let (cells, pieces) = if cfg!(loom) { (2, 2) } else { (8, 4) };
        // Heads number messages by 16 bits.
        let most = 1 << 15;
        assert!(
            self.cells.is_power_of_two() && (cells..=most).contains(&self.cells),
            "cells: {}",
            self.cells
        );
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
        assert!(self.buffers <= Self::MOST_BUFFERS, "buffers: {}", self.buffers);
        assert!(
            self.lap_bytes == self.staging_bytes
                || self.lap_bytes < self.staging_bytes && self.lap_bytes >= 8 * self.piece_bytes,
            "lap: {}",
            self.lap_bytes
        );
    }

    /// Returns the consumed bytes of which the sender need not be told yet.
    ///
    /// They are less than a lap by more than a piece, so that a sender that begins a lap learns of the room
    /// at its start.
    pub(super) fn untold_bytes(&self) -> u64 {
        (self.staging_bytes / 4).min(2 * self.piece_bytes) as u64
    }
}

impl Default for RingLayout {
    /// Returns 256 KiB of staging in pieces of 32 KiB: a staged piece is still in a second-level cache of 1
    /// MiB when the receiver reads it.
    fn default() -> RingLayout {
        let staging_bytes = 256 * 1024;
        let (piece_bytes, stores) = (32 * 1024, Stores::Auto);
        let lap_bytes = staging_bytes;
        RingLayout { cells: 256, staging_bytes, piece_bytes, buffers: 8, lap_bytes, stores, fetches: false }
    }
}
