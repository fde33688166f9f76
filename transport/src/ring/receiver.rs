//! The receiving end of a ring.
//!
//! # Safety
//! The rules of the sender apply. Staging bytes are read only between the load of the stamp that publishes
//! them and the store of the counter that returns them. Reads stay inside the staging area, no matter what
//! the cell contains.

use super::{
    RingLayout,
    cell::{Cell, ConsumerLine, Content},
};
use crate::{TransportError, memory::Span, sync};
use std::sync::atomic::Ordering::Release;

/// The receiving end of a ring.
#[derive(Debug)]
pub(crate) struct RingReceiver {
    base: *mut u8,
    layout: RingLayout,
    /// Cells consumed since the ring was created.
    cells: u64,
    /// Staging bytes consumed since the ring was created.
    staging: u64,
    /// Values of `cells` and `staging` last published to the sender.
    published_cells: u64,
    published_staging: u64,
}

// SAFETY: as for `RingSender`: the memory is shared, and one thread at a time uses the end.
unsafe impl Send for RingReceiver {}

/// When to publish a consumption to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publish {
    /// At once, because the sender waits for it.
    Now,
    /// With the next batch of credits: after a quarter of the cells, or two pieces of the staging area.
    Lazily,
}

impl RingReceiver {
    /// Creates the receiving end.
    ///
    /// # Safety
    /// `base` must be the start of a ring of this layout, aligned to a cache line, that outlives this value.
    /// This must be the ring's only receiver.
    pub(crate) unsafe fn new(base: *mut u8, layout: RingLayout) -> RingReceiver {
        layout.check();
        RingReceiver { base, layout, cells: 0, staging: 0, published_cells: 0, published_staging: 0 }
    }

    /// Creates the receiving end of a ring on which `cells` cells have been sent and consumed.
    ///
    /// The contract of [`RingReceiver::new`] applies.
    #[cfg(test)]
    pub(super) unsafe fn starting_at(cells: u64, base: *mut u8, layout: RingLayout) -> RingReceiver {
        // SAFETY: the caller keeps the contract of `new`.
        let new = unsafe { RingReceiver::new(base, layout) };
        new.line().cells.store(cells, Release);
        RingReceiver { cells, published_cells: cells, ..new }
    }

    fn line(&self) -> &ConsumerLine {
        // SAFETY: the consumer line is at the start of the ring, aligned, and made of atomics.
        unsafe { &*self.base.cast() }
    }

    fn cell(&self) -> &Cell {
        let slot = self.cells as usize & (self.layout.cells - 1);
        // SAFETY: `slot` is less than `cells`, so the cell is inside of the ring; it is made of atomics.
        unsafe { &*self.base.add(RingLayout::LINE + slot * RingLayout::LINE).cast() }
    }

    /// Returns the head word of the next cell, if it has been published.
    #[inline]
    pub(crate) fn head(&self) -> Option<u64> {
        self.cell().head(self.cells)
    }

    /// Returns the digest of the next cell, which must have been published.
    #[inline]
    pub(crate) fn digest(&self) -> u64 {
        self.cell().digest()
    }

    /// Returns the content of the next cell, which must have been published.
    #[inline]
    pub(crate) fn content(&self, head: u64) -> Result<Content, TransportError> {
        self.cell().content(head)
    }

    /// Returns the bytes of a staged piece.
    ///
    /// The piece begins at the end of the previous one, or at the start of the next lap of the staging area.
    pub(crate) fn piece(&self, position: u64, len: usize) -> Result<Span<'_>, TransportError> {
        let area = self.layout.staging_bytes;
        let offset = (position % area as u64) as usize;
        let follows = position == self.staging
            || offset == 0 && position > self.staging && position - self.staging < area as u64;
        if !follows || len == 0 || len > self.layout.piece_bytes || len > area - offset {
            return Err(TransportError::Corrupt("staged piece"));
        }
        // SAFETY: the piece is inside the staging area, checked above. The sender does not write it until it
        // is consumed, which takes `&mut self`.
        let piece =
            unsafe { Span::new(self.base.add(RingLayout::LINE * (1 + self.layout.cells) + offset), len) };
        sync::mark_read(piece.as_ptr(), len);
        Ok(piece)
    }

    /// Consumes the next cell, and the staging area up to `staging` if it is given.
    #[inline]
    pub(crate) fn consume(&mut self, staging: Option<u64>, publish: Publish) {
        self.cells += 1;
        if let Some(position) = staging {
            self.staging = position;
        }
        let due = self.cells - self.published_cells >= self.layout.cells as u64 / 4
            || self.staging - self.published_staging >= self.layout.untold_bytes();
        if publish == Publish::Now || due {
            self.line().staging.store(self.staging, Release);
            self.line().cells.store(self.cells, Release);
            self.published_cells = self.cells;
            self.published_staging = self.staging;
        }
    }
}
