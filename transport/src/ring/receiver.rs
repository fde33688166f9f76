//! The receiving end of a ring.
//!
//! # Safety
//! The rules of the sender apply. Staging bytes are read only between the load of the stamp that publishes
//! them and the store of the counter that returns them. Reads stay inside the staging area, no matter what
//! the cell contains.

use super::{
    RingLayout,
    cell::{Cell, ConsumerLine, Content, INLINE_BYTES, LONG_BYTES},
    costs::{Costs, TimedRead},
    layout::SHORT_LAP,
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
    /// Place of the next cell.
    slot: usize,
    /// Cells that the peer has consumed of those sent to it, as it has told with its messages.
    heard: u64,
    /// Consumed cells of which the sender need not be told yet: fewer in short laps than in long ones.
    untold_cells: u64,
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
            slot: 0,
            heard: 0,
            untold_cells: layout.untold_cells(),
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
        RingReceiver { cells, heard: cells, published_cells: cells, ..new }
    }

    fn line(&self) -> &ConsumerLine {
        // SAFETY: the consumer line is at the start of the ring, aligned, and made of atomics.
        unsafe { &*self.base.cast() }
    }

    fn cell(&self) -> &Cell {
        self.cell_at(self.slot)
    }

    fn cell_at(&self, slot: usize) -> &Cell {
        // SAFETY: `slot` is less than `cells`, as that of the first cell and those that `slot_after` returns,
        // so the cell is inside of the ring; it is made of atomics.
        unsafe { &*self.base.add(RingLayout::cell_start(slot)).cast() }
    }

    /// Returns the place of the cell after the next one, which must have been published.
    #[inline]
    fn slot_after(&self, ends_lap: bool) -> usize {
        if ends_lap { 0 } else { (self.slot + 1) & (self.layout.cells - 1) }
    }

    /// Fetches the line of the cell after the next one, for a message that has further pieces: the sender has
    /// filled it, or is about to. The line then comes while the present piece is read.
    #[inline]
    pub(crate) fn prefetch_following(&self) {
        #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let cell = std::ptr::from_ref(self.cell_at(self.slot_after(self.cell().flow().ends_lap)));
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
        unsafe { self.cell().read_part(0, len, |_, payload| read(payload)) };
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
        let cell = self.cell();
        let is_long = len > INLINE_BYTES;
        // Both lines are looked at each time, so that they come at the same time.
        let is_whole = !is_long || cell.has_rest(self.cells);
        match cell.has_message(self.cells, len) {
            None => BriefMessage::NotYet,
            Some(is_expected) if !is_expected || cell.digest() != digest => BriefMessage::Another,
            Some(_) if !is_whole => BriefMessage::NotYet,
            // SAFETY: the cell is published, and is given back by `consume`, which takes `&mut self`.
            Some(_) => BriefMessage::Whole(unsafe {
                [cell.part(0, len), if is_long { cell.part(1, len) } else { Span::empty() }]
            }),
        }
    }

    /// Whether both lines of a long message of `len` bytes have been published.
    ///
    /// Both are looked at each time, so that they come at the same time.
    ///
    /// # Panics
    /// If no long message has this length.
    #[inline]
    pub(crate) fn has_long(&self, len: usize) -> bool {
        assert!(len > INLINE_BYTES && len <= LONG_BYTES, "a long message of {len} bytes");
        let cell = self.cell();
        // No branch between the loads.
        let (has_rest, has_message) = (cell.has_rest(self.cells), cell.has_message(self.cells, len));
        has_rest && has_message == Some(true)
    }

    /// Calls `read` with the parts of a long message that is there, and with the bytes before each.
    #[inline]
    pub(crate) fn read_long(&self, len: usize, mut read: impl FnMut(usize, Span<'_>)) {
        for line in 0..2 {
            // SAFETY: the cell is published, and is given back by `consume`, which takes `&mut self`.
            unsafe { self.cell().read_part(line, len, &mut read) };
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
        let piece = unsafe { Span::new(self.base.add(self.layout.staging_start() + offset), len) };
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
        let flow = self.cell().flow();
        // Numbers never decrease. The peer may have consumed 65,536 more without a message: a number that is
        // too small gives less credit than there is.
        self.heard += u64::from((flow.told as u16).wrapping_sub(self.heard as u16));
        self.slot = self.slot_after(flow.ends_lap);
        if self.slot == 0 {
            // The sender of a short lap has no other cells than those of the lap before. It may stop reading
            // the messages that tell it of them, so the consumer line follows closely. It does not read that
            // line meanwhile, which thus stays in the cache of this core.
            self.untold_cells = if flow.ends_lap { SHORT_LAP as u64 / 2 } else { self.layout.untold_cells() };
        }
        self.cells += 1;
        if let Some(position) = staging {
            self.staging = position;
        }
        let due = self.cells - self.published_cells >= self.untold_cells
            || self.staging - self.published_staging >= self.layout.untold_bytes();
        if publish == Publish::Now || due {
            self.line().reads.store(self.reads.to_word(), Relaxed);
            self.line().staging.store(self.staging, Release);
            self.line().cells.store(self.cells, Release);
            self.published_cells = self.cells;
            self.published_staging = self.staging;
        }
    }

    /// Returns the number of consumed cells, which the next message to the peer tells.
    #[inline]
    pub(crate) fn consumed(&self) -> u64 {
        self.cells
    }

    /// Returns the number of cells that the peer has consumed, as it has told: that number, or less.
    #[inline]
    pub(crate) fn heard(&self) -> u64 {
        self.heard
    }
}
