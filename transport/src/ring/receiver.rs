//! The receiving end of a ring.
//!
//! # Safety
//! The rules of the sender apply. Staging bytes are read only between the load of the stamp that publishes
//! them and the store of the counter that returns them. Reads stay inside the staging area, no matter what
//! the cell contains.

use super::{
    RingLayout,
    cell::{Cell, ConsumerLine, Content, INLINE_BYTES, LONG_BYTES, Number},
    costs::{Costs, TimedRead},
};
use crate::{BriefMessage, TransportError, is_intel, memory::Span, sync};
use std::sync::atomic::Ordering::{Relaxed, Release};

/// The receiving end of a ring.
#[derive(Debug)]
pub(crate) struct RingReceiver {
    base: *mut u8,
    /// The ring in the other direction, which has a cell that changes hands, too.
    other: *mut u8,
    layout: RingLayout,
    /// Messages consumed since the ring was created, in any cell.
    messages: u64,
    /// Cells of the ring consumed since it was created.
    cells: u64,
    /// Messages consumed in cells that change hands.
    swaps: u64,
    /// Staging bytes consumed since the ring was created.
    staging: u64,
    /// Values of `cells` and `staging` last published to the sender.
    published_cells: u64,
    published_staging: u64,
    /// Costs of timed reads.
    reads: Costs,
    /// Whether both lines of a long message are looked at in each poll, so that they come at the same time.
    /// Otherwise the second one is looked at once the first one is there.
    ///
    /// Half a round trip of 64 bytes on two cores of an Intel Xeon takes 0.46 us with the former, and 0.27 us
    /// with the latter, which was not measured on other processors since cells change hands.
    polls_both: bool,
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
    /// `base` must be the start of a ring of this layout, aligned to a cell, that outlives this value. This
    /// must be the ring's only receiver. `other` must be such a ring, through which the same end sends.
    pub(crate) unsafe fn new(base: *mut u8, other: *mut u8, layout: RingLayout) -> RingReceiver {
        layout.check();
        let (cells, staging) = (0, 0);
        RingReceiver {
            base,
            other,
            layout,
            messages: cells,
            cells,
            swaps: 0,
            staging,
            published_cells: cells,
            published_staging: staging,
            reads: Costs::default(),
            polls_both: !is_intel(),
        }
    }

    /// Creates the receiving end of a ring on which `cells` cells have been sent and consumed.
    ///
    /// The contract of [`RingReceiver::new`] applies.
    #[cfg(test)]
    pub(super) unsafe fn starting_at(
        cells: u64,
        [base, other]: [*mut u8; 2],
        layout: RingLayout,
    ) -> RingReceiver {
        // SAFETY: the caller keeps the contract of `new`.
        let new = unsafe { RingReceiver::new(base, other, layout) };
        new.line().cells.store(cells, Release);
        RingReceiver { messages: cells, cells, swaps: cells, published_cells: cells, ..new }
    }

    /// Looks at both lines of long messages in each poll, or at one after the other, on any processor.
    #[cfg(test)]
    pub(super) fn poll_both(&mut self, polls_both: bool) {
        self.polls_both = polls_both;
    }

    fn line(&self) -> &ConsumerLine {
        // SAFETY: the consumer line is at the start of the ring, aligned, and made of atomics.
        unsafe { &*self.base.cast() }
    }

    /// Returns the cell of the ring after `ahead` others, from the next one on.
    #[inline]
    fn ring_cell(&self, ahead: u64) -> &Cell {
        let slot = (self.cells + ahead) as usize & (self.layout.cells - 1);
        // SAFETY: `slot` is less than `cells`, so the cell is inside of the ring; it is made of atomics.
        unsafe { &*self.base.add(RingLayout::cell_start(slot)).cast() }
    }

    /// Returns the cell in which the next message comes if it changes hands: that of the ring for the first
    /// one, that of the other ring for the second one, and so on.
    #[inline]
    fn swap_cell(&self) -> &Cell {
        let ring = if self.swaps & 1 == 0 { self.base } else { self.other };
        // SAFETY: the cell is inside of the ring; it is made of atomics.
        unsafe { &*ring.add(RingLayout::SWAP_START).cast() }
    }

    /// Returns the number of the next message in a cell of the ring.
    #[inline]
    fn in_ring(&self) -> Number {
        Number { nth: self.cells, order: self.messages }
    }

    /// Returns the number of the next message in a cell that changes hands.
    #[inline]
    fn in_swap(&self) -> Number {
        Number { nth: self.swaps, order: self.messages }
    }

    /// Returns the cell of the next message, and its number there, once it has been published. Before that it
    /// is any of the cells in which it may come.
    #[inline]
    fn cell(&self) -> (&Cell, Number) {
        let (cell, number) = (self.swap_cell(), self.in_swap());
        match cell.head(number) {
            Some(_) => (cell, number),
            None => (self.ring_cell(0), self.in_ring()),
        }
    }

    /// Fetches the line of the cell after the next one, for a message that has further pieces: the sender has
    /// filled it, or is about to. The line then comes while the present piece is read. The next piece is in
    /// the ring.
    #[inline]
    pub(crate) fn prefetch_following(&self) {
        #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let is_in_ring = self.swap_cell().head(self.in_swap()).is_none();
            let cell = std::ptr::from_ref(self.ring_cell(u64::from(is_in_ring)));
            // SAFETY: every x86_64 processor has the instruction, which changes no memory and cannot fault.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(cell.cast()) };
        }
    }

    /// Returns the head word of the next cell, if it has been published.
    #[inline]
    pub(crate) fn head(&self) -> Option<u64> {
        let (cell, number) = self.cell();
        cell.head(number)
    }

    /// Returns the digest of the next cell, which must have been published.
    #[inline]
    pub(crate) fn digest(&self) -> u64 {
        self.cell().0.digest()
    }

    /// Returns the content of the next cell, which must have been published.
    #[inline]
    pub(crate) fn content(&self, head: u64) -> Result<Content, TransportError> {
        self.cell().0.content(head)
    }

    /// Calls `read` with the payload of the next cell, which holds a whole message of `len` bytes.
    #[inline]
    pub(crate) fn read_inline(&self, len: usize, read: impl FnOnce(Span<'_>)) {
        // SAFETY: the cell is published, and is given back by `consume`, which takes `&mut self`.
        unsafe { self.cell().0.read_part(0, len, |_, payload| read(payload)) };
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
        self.brief_in((self.swap_cell(), self.in_swap()), digest, len)
            .or_else(|| self.brief_in((self.ring_cell(0), self.in_ring()), digest, len))
            .unwrap_or(BriefMessage::NotYet)
    }

    /// Returns the message of this number, if the cell has been published with it.
    #[inline(always)]
    fn brief_in<'r>(
        &'r self,
        (cell, number): (&'r Cell, Number),
        digest: u64,
        len: usize,
    ) -> Option<BriefMessage<'r>> {
        let is_long = len > INLINE_BYTES;
        let polled_rest = (is_long && self.polls_both).then(|| cell.has_rest(number));
        Some(match cell.has_message(number, len)? {
            is_expected if !is_expected || cell.digest() != digest => BriefMessage::Another,
            _ if is_long && !polled_rest.unwrap_or_else(|| cell.has_rest(number)) => BriefMessage::NotYet,
            // SAFETY: the cell is published, and is given back by `consume`, which takes `&mut self`.
            _ => BriefMessage::Whole(unsafe {
                [cell.part(0, len), if is_long { cell.part(1, len) } else { Span::empty() }]
            }),
        })
    }

    /// Whether both lines of a long message of `len` bytes have been published.
    ///
    /// # Panics
    /// If no long message has this length.
    #[inline]
    pub(crate) fn has_long(&self, len: usize) -> bool {
        assert!(len > INLINE_BYTES && len <= LONG_BYTES, "a long message of {len} bytes");
        let is_in = |cell: &Cell, number| {
            let has_message = || cell.has_message(number, len) == Some(true);
            if !self.polls_both {
                return has_message() && cell.has_rest(number);
            }
            // No branch between the loads.
            let (has_rest, has_message) = (cell.has_rest(number), has_message());
            has_rest && has_message
        };
        is_in(self.swap_cell(), self.in_swap()) || is_in(self.ring_cell(0), self.in_ring())
    }

    /// Calls `read` with the parts of a long message that is there, and with the bytes before each.
    #[inline]
    pub(crate) fn read_long(&self, len: usize, mut read: impl FnMut(usize, Span<'_>)) {
        for line in 0..2 {
            // SAFETY: the cell is published, and is given back by `consume`, which takes `&mut self`.
            unsafe { self.cell().0.read_part(line, len, &mut read) };
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
        if self.swap_cell().head(self.in_swap()).is_some() {
            // The next message in the cell is the peer's credit.
            self.swaps += 1;
        } else {
            self.cells += 1;
        }
        self.messages += 1;
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

    /// Returns the number of messages that have been consumed in cells that change hands.
    #[inline]
    pub(crate) fn swaps(&self) -> u64 {
        self.swaps
    }
}
