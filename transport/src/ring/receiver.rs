//! The receiving end of a ring.
//!
//! # Safety
//! The rules of the sender apply. Staging bytes are read only between the load of the stamp that publishes
//! them and the store of the counter that returns them. Reads stay inside the staging area, no matter what
//! the cell contains.

use super::{
    RingLayout,
    cell::{Cell, ConsumerLine, Content, INLINE_BYTES, cells_of},
    costs::{Costs, TimedRead},
};
use crate::{BriefMessage, TransportError, memory::Span, sync};
use std::sync::atomic::Ordering::{Relaxed, Release};

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
    /// Costs of timed reads.
    reads: Costs,
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
        let (cells, staging) = (0, 0);
        RingReceiver {
            base,
            layout,
            cells,
            staging,
            published_cells: cells,
            published_staging: staging,
            reads: Costs::default(),
        }
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
        self.cell_at(self.cells)
    }

    fn cell_at(&self, index: u64) -> &Cell {
        let slot = index as usize & (self.layout.cells - 1);
        // SAFETY: `slot` is less than `cells`, so the cell is inside of the ring; it is made of atomics.
        unsafe { &*self.base.add(RingLayout::LINE + slot * RingLayout::LINE).cast() }
    }

    /// Fetches the line of the cell after the next one, for a message that has further pieces: the sender has
    /// filled it, or is about to. The line then comes while the present piece is read.
    #[inline]
    pub(crate) fn prefetch_following(&self) {
        #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let cell = std::ptr::from_ref(self.cell_at(self.cells + 1));
            // SAFETY: every x86_64 processor has the instruction, which changes no memory and cannot fault.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(cell.cast()) };
        }
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

    /// Calls `read` with the payload of the next cell, which holds a whole message of `len` bytes.
    #[inline]
    pub(crate) fn read_inline(&self, len: usize, read: impl FnOnce(Span<'_>)) {
        // SAFETY: the cell is published, and is given back by `consume`, which takes `&mut self`.
        unsafe { self.cell().read_payload(0, len, |_, payload| read(payload)) };
    }

    /// Returns the next message, if it is one of this digest and of `len` bytes in cells.
    ///
    /// Only one word decides about most messages. Model checkers see no memory of cells, so that there every
    /// message is another one.
    #[inline]
    pub(crate) fn brief(&self, digest: u64, len: usize) -> BriefMessage<'_> {
        if cfg!(any(loom, miri)) {
            return BriefMessage::Another;
        }
        let (cell, next) = (self.cell(), self.cell_at(self.cells + 1));
        let is_long = len > INLINE_BYTES;
        // Both cells are looked at each time, so that their lines come at the same time.
        let is_whole = !is_long || next.continues_message(self.cells + 1);
        match cell.begins_message(self.cells, len) {
            None => BriefMessage::NotYet,
            Some(is_expected) if !is_expected || cell.digest() != digest => BriefMessage::Another,
            Some(_) if !is_whole => BriefMessage::NotYet,
            // SAFETY: the cells are published, and are given back by `consume`, which takes `&mut self`.
            Some(_) => BriefMessage::Whole(unsafe {
                let rest = if is_long { next.payload_part(1, len) } else { Span::empty() };
                [cell.payload_part(0, len), rest]
            }),
        }
    }

    /// Whether all cells of a long message of `len` bytes have been published, and the first one is that of
    /// such a message.
    ///
    /// All cells are looked at each time, so that their lines come at the same time.
    ///
    /// # Errors
    /// [`TransportError::Corrupt`] if another one is no further cell.
    #[inline]
    pub(crate) fn has_long(&self, len: usize) -> Result<bool, TransportError> {
        let cells = cells_of(len);
        let is_there = |nth: usize| {
            let index = self.cells + nth as u64;
            self.cell_at(index).head(index)
        };
        // No branch between the loads.
        let published = (0..cells).fold(true, |all, nth| all & is_there(nth).is_some());
        let is_long = |head| matches!(self.content(head), Ok(Content::Long { len: found }) if found == len);
        if !published || !is_there(0).is_some_and(is_long) {
            return Ok(false);
        }
        (1..cells).try_for_each(|nth| self.cell_at(self.cells + nth as u64).check_further())?;
        Ok(true)
    }

    /// Calls `read` with the parts of a long message that is there, and with the bytes before each.
    #[inline]
    pub(crate) fn read_long(&self, len: usize, mut read: impl FnMut(usize, Span<'_>)) {
        for nth in 0..cells_of(len) {
            // SAFETY: the cells are published, and are given back by `consume_long`, which takes `&mut self`.
            unsafe { self.cell_at(self.cells + nth as u64).read_payload(nth, len, &mut read) };
        }
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

    /// Notes that a piece of `len` bytes has been read.
    #[inline]
    pub(crate) fn took(&mut self, read: TimedRead, len: usize) {
        read.end(len, &mut self.reads);
    }

    /// Consumes the next cell, and the staging area up to `staging` if it is given.
    #[inline]
    pub(crate) fn consume(&mut self, staging: Option<u64>, publish: Publish) {
        self.consume_cells(1, staging, publish);
    }

    /// Consumes the cells of a long message of `len` bytes.
    #[inline]
    pub(crate) fn consume_long(&mut self, len: usize) {
        self.consume_cells(cells_of(len), None, Publish::Lazily);
    }

    #[inline]
    fn consume_cells(&mut self, cells: usize, staging: Option<u64>, publish: Publish) {
        self.cells += cells as u64;
        if let Some(position) = staging {
            self.staging = position;
        }
        let due = self.cells - self.published_cells >= self.layout.cells as u64 / 4
            || self.staging - self.published_staging >= self.layout.untold_bytes();
        if publish == Publish::Now || due {
            self.line().reads.store(self.reads.to_word(), Relaxed);
            self.line().staging.store(self.staging, Release);
            self.line().cells.store(self.cells, Release);
            self.published_cells = self.cells;
            self.published_staging = self.staging;
        }
    }
}
