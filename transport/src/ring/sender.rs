//! The sending end of a ring.
//!
//! # Safety
//! `base` is the address of a ring of `layout` in an arena; the owner of this value keeps the arena's mapping
//! alive. Cells and the consumer line are accessed as atomics. Bytes of the staging area are written only
//! while the counters say that they are free. The store of the cell's stamp hands them to the receiver.

use super::{
    Buffers, RingLayout, RingReceiver,
    cell::{Cell, ConsumerLine, Content, INLINE_BYTES, LONG_BYTES, Number},
    costs::Costs,
    demotions, fetches,
    stores::Sensor,
};
use crate::{TransportError, memory::Span, sync};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Longest message whose lines are fetched before it is sent.
///
/// An `all_reduce` between two cores without a common cache takes 0.29 us instead of 0.35 for 16 bytes, 0.38
/// instead of 0.50 for 256, 0.56 instead of 0.70 for 1 KiB and 0.68 instead of 0.74 for 2 KiB, but 1.03
/// instead of 0.74 for 4 KiB: a core has a limited number of fetches under way.
const FETCHED_BYTES: usize = 2048;
/// Longest message whose cell is fetched, too.
const FETCHED_CELL_BYTES: usize = 512;

/// Messages that may have short pieces, of which one has none, so that its piece is timed.
const TIMED_EVERY: u64 = 16;

/// The kind of the cell that a message goes into.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// The next cell of the ring.
    Ring,
    /// A cell that changes hands, which this end has received.
    Swap,
}

/// The sending end of a ring.
#[derive(Debug)]
pub(crate) struct RingSender {
    base: *mut u8,
    /// The ring in the other direction, which has a cell that changes hands, too.
    other: *mut u8,
    layout: RingLayout,
    /// Longest message whose lines are fetched.
    fetched_bytes: usize,
    /// Longest message whose lines are moved to the common cache.
    demoted_bytes: usize,
    /// Messages published since the ring was created, in any cell.
    messages: u64,
    /// Cells of the ring published since it was created.
    cells: u64,
    /// Messages published in cells that change hands, and how many may have been.
    swaps: u64,
    most_swaps: u64,
    /// Staging bytes used since the ring was created, including those skipped at the end of a lap.
    staging: u64,
    /// Consumption counters as last read from the receiver's consumer line.
    consumed_cells: u64,
    consumed_staging: u64,
    sensor: Sensor,
}

// SAFETY: the addresses are valid in every thread (the arena is shared memory), and `&mut self` methods allow
// one sending thread at a time.
unsafe impl Send for RingSender {}

impl RingSender {
    /// Creates the sending end.
    ///
    /// # Safety
    /// `base` must be the start of a ring of this layout, aligned to a cell, that outlives this value. This
    /// must be the ring's only sender. `other` must be such a ring, through which the same end receives.
    pub(crate) unsafe fn new(base: *mut u8, other: *mut u8, layout: RingLayout) -> RingSender {
        layout.check();
        RingSender {
            base,
            other,
            fetched_bytes: FETCHED_BYTES.min(layout.piece_bytes),
            demoted_bytes: demotions::most_bytes(),
            sensor: Sensor::new(&layout),
            messages: 0,
            cells: 0,
            swaps: 0,
            most_swaps: 0,
            layout,
            staging: 0,
            consumed_cells: 0,
            consumed_staging: 0,
        }
    }

    /// Creates the sending end of a ring on which `cells` cells have been sent and consumed.
    ///
    /// The contract of [`RingSender::new`] applies.
    #[cfg(test)]
    pub(super) unsafe fn starting_at(
        cells: u64,
        [base, other]: [*mut u8; 2],
        layout: RingLayout,
    ) -> RingSender {
        // SAFETY: the caller keeps the contract of `new`.
        let new = unsafe { RingSender::new(base, other, layout) };
        RingSender { messages: cells, cells, swaps: cells, consumed_cells: cells, ..new }
    }

    /// Returns the start of the ring.
    #[cfg(all(test, loom))]
    pub(super) fn base(&self) -> *mut u8 {
        self.base
    }

    fn line(&self) -> &ConsumerLine {
        // SAFETY: the consumer line is at the start of the ring, aligned, and made of atomics.
        unsafe { &*self.base.cast() }
    }

    /// Returns the next cell of a kind, and the number that the next message has there.
    #[inline]
    fn cell(&self, place: Place) -> (&Cell, Number) {
        let (nth, start) = match place {
            Place::Ring => {
                let slot = self.cells as usize & (self.layout.cells - 1);
                (self.cells, self.base.wrapping_add(RingLayout::cell_start(slot)))
            }
            Place::Swap => {
                let ring = if self.swaps & 1 == 0 { self.base } else { self.other };
                (self.swaps, ring.wrapping_add(RingLayout::SWAP_START))
            }
        };
        // SAFETY: the cell is inside of a ring, since a slot is less than `cells`; it is made of atomics.
        (unsafe { &*start.cast() }, Number { nth, order: self.messages })
    }

    /// Takes the next cell that changes hands, if the receiving end of the same link has received in it.
    ///
    /// The two ends use the two cells in turns: the first message of each end is in the cell of the ring
    /// through which it sends, its second one in the other cell, and so on. An end may send its nth message
    /// there once it has consumed n - 1 of the peer's. It has then consumed the peer's message that was last
    /// in the cell. The peer had consumed this end's message before that in order to send it, and does not
    /// send the next one there until it has consumed this one.
    #[inline]
    pub(crate) fn take_swap(&mut self, receiver: &RingReceiver) {
        self.most_swaps = receiver.swaps() + 1;
    }

    /// Reads the consumption counters, and checks that they neither decreased nor exceed what was sent.
    #[inline]
    fn refresh(&mut self) -> Result<(), TransportError> {
        let cells = self.line().cells.load(Acquire);
        let staging = self.line().staging.load(Acquire);
        if cells < self.consumed_cells || cells > self.cells {
            return Err(TransportError::Corrupt("number of consumed cells"));
        }
        if staging < self.consumed_staging || staging > self.staging {
            return Err(TransportError::Corrupt("number of consumed staging bytes"));
        }
        self.consumed_cells = cells;
        self.consumed_staging = staging;
        Ok(())
    }

    /// Whether a cell of the ring is free.
    #[inline]
    fn has_cell(&mut self) -> Result<bool, TransportError> {
        let most = self.layout.cells as u64 - 1;
        if self.cells - self.consumed_cells > most {
            self.refresh()?;
        }
        Ok(self.cells - self.consumed_cells <= most)
    }

    /// Returns a free cell: one that changes hands, if this end has one.
    #[inline]
    fn free_cell(&mut self) -> Result<Option<Place>, TransportError> {
        if self.swaps < self.most_swaps {
            return Ok(Some(Place::Swap));
        }
        Ok(self.has_cell()?.then_some(Place::Ring))
    }

    /// Fetches the lines of the next message for writing, if that is a short one of `len` bytes.
    ///
    /// Its stores then need not wait for lines that the receiver has read. A line that the receiver polls
    /// goes back at once, so this is for a receiver that does not wait for the message yet. The lines of a
    /// buffer or of a cell that changes hands are here already.
    #[inline]
    pub(crate) fn fetch_next(&self, len: usize, receiver: &RingReceiver, buffers: &Buffers) {
        let has_cell = self.swaps <= receiver.swaps();
        if len <= INLINE_BYTES {
            if !has_cell {
                fetches::fetch(self.cell(Place::Ring).0.line(0));
            }
            return;
        }
        if len > self.fetched_bytes {
            return;
        }
        let is_staged = len > LONG_BYTES;
        if is_staged && !buffers.has_one() && !self.sensor.streams(len) {
            let start = self.staging_at(self.next_position(len).0);
            for line in (0..len).step_by(RingLayout::LINE) {
                fetches::fetch(start.wrapping_add(line));
            }
        }
        // The receiver polls the cell of a longer one before its bytes are stored.
        if len <= FETCHED_CELL_BYTES && (is_staged || !has_cell) {
            let cell = self.cell(Place::Ring).0;
            fetches::fetch(cell.line(0));
            if !is_staged {
                fetches::fetch(cell.line(1));
            }
        }
    }

    /// Returns the position of the next piece, of `len` bytes, and the position after it.
    #[inline]
    fn next_position(&self, len: usize) -> (u64, u64) {
        let area = self.layout.staging_bytes as u64;
        let room = len.next_multiple_of(RingLayout::LINE) as u64;
        let at = self.staging % area;
        let is_in_lap = at + room <= self.sensor.lap_bytes(&self.layout) as u64;
        let position = if is_in_lap { self.staging } else { self.staging + area - at };
        (position, position + room)
    }

    /// Returns the address of a position of the staging area.
    #[inline]
    fn staging_at(&self, position: u64) -> *mut u8 {
        let offset = (position % self.layout.staging_bytes as u64) as usize;
        self.base.wrapping_add(self.layout.staging_start() + offset)
    }

    /// Publishes a message in a free cell of a kind. Returns its number among those of the kind.
    #[inline]
    fn publish(&mut self, place: Place, digest: u64, content: &Content) -> u64 {
        let (cell, number) = self.cell(place);
        cell.publish(number, digest, content);
        match content {
            Content::Long { len } if *len <= self.demoted_bytes => {
                demotions::demote(cell.line(0), RingLayout::CELL);
            }
            Content::Handed { len, .. } if *len <= self.demoted_bytes => {
                demotions::demote(cell.line(0), RingLayout::LINE);
            }
            _ => {}
        }
        match place {
            Place::Ring => self.cells += 1,
            Place::Swap => self.swaps += 1,
        }
        self.messages += 1;
        number.nth
    }

    /// Sends a whole message of at most [`INLINE_BYTES`] within a line. Returns false when there is no
    /// credit.
    #[inline]
    pub(crate) fn send_inline(&mut self, digest: u64, src: Span<'_>) -> Result<bool, TransportError> {
        let len = src.len();
        assert!(len <= INLINE_BYTES, "an inline message of {len} bytes");
        let Some(place) = self.free_cell()? else { return Ok(false) };
        // SAFETY: the cell is free.
        unsafe { self.cell(place).0.write_part(0, src) };
        self.publish(place, digest, &Content::Inline { len });
        Ok(true)
    }

    /// Sends a whole message of more than [`INLINE_BYTES`] and at most [`LONG_BYTES`] in both lines of a
    /// cell. Returns false when there is no credit.
    #[inline]
    pub(crate) fn send_long(&mut self, digest: u64, src: Span<'_>) -> Result<bool, TransportError> {
        let len = src.len();
        assert!(len > INLINE_BYTES && len <= LONG_BYTES, "a long message of {len} bytes");
        let Some(place) = self.free_cell()? else { return Ok(false) };
        for line in 0..2 {
            // SAFETY: the cell is free.
            unsafe { self.cell(place).0.write_part(line, src) };
        }
        self.publish(place, digest, &Content::Long { len });
        Ok(true)
    }

    /// Stages the next piece of a message of `total` bytes. Returns false when there is no credit.
    pub(crate) fn send_piece(
        &mut self,
        digest: u64,
        total: usize,
        piece: Span<'_>,
    ) -> Result<bool, TransportError> {
        let len = piece.len();
        assert!(len <= self.layout.piece_bytes, "a piece of {len} bytes");
        if self.sensor.is_due() {
            self.refresh()?;
            let reads = Costs::from_word(self.line().reads.load(Relaxed));
            self.sensor.decide(self.staging, self.consumed_staging, reads);
        }
        let area = self.layout.staging_bytes as u64;
        let (position, after) = self.next_position(len);
        if after - self.consumed_staging > area {
            self.refresh()?;
        }
        if after - self.consumed_staging > area || !self.has_cell()? {
            return Ok(false);
        }
        let timed = self.sensor.timed_way(len);
        // SAFETY: `[position, position + room)` modulo the area is inside of the staging area, since a piece
        // ends within a lap. It is free, since the receiver has consumed everything up to `after - area`.
        // `piece` holds `len` readable bytes. Positions in the area are multiples of a line.
        unsafe {
            let start = self.staging_at(position);
            sync::mark_write(start, len);
            self.sensor.store(start, piece.as_ptr(), len);
        }
        if position != self.staging {
            self.sensor.lap_ended();
        }
        self.staging = after;
        self.publish(Place::Ring, digest, &Content::Staged { total, position, len, timed });
        Ok(true)
    }

    /// Sends the next piece of a message of `total` bytes in a buffer that changes hands. Returns false when
    /// there is no credit.
    ///
    /// # Panics
    /// If this end owns no buffer.
    #[inline]
    pub(crate) fn hand_over(
        &mut self,
        digest: u64,
        total: usize,
        piece: Span<'_>,
        buffers: &mut Buffers,
    ) -> Result<bool, TransportError> {
        let Some(place) = self.free_cell()? else { return Ok(false) };
        let buffer = buffers.fill(piece);
        self.publish(place, digest, &Content::Handed { total, buffer, len: piece.len() });
        Ok(true)
    }

    /// Publishes a whole message in this rank's slab. Returns the cell to wait for, or `None` when there is
    /// no credit.
    pub(crate) fn send_direct(
        &mut self,
        digest: u64,
        total: usize,
        offset: u64,
    ) -> Result<Option<u64>, TransportError> {
        Ok(self.has_cell()?.then(|| self.publish(Place::Ring, digest, &Content::Direct { total, offset })))
    }

    /// Publishes a whole message in this process's address space. Returns the cell to wait for, or `None`
    /// when there is no credit.
    pub(crate) fn send_pull(
        &mut self,
        digest: u64,
        total: usize,
        address: u64,
    ) -> Result<Option<u64>, TransportError> {
        Ok(self.has_cell()?.then(|| self.publish(Place::Ring, digest, &Content::Pull { total, address })))
    }

    /// Whether pieces may be stored that are too short to be timed: longer ones take a short time. Says no
    /// now and then, so that some pieces are timed.
    #[inline]
    pub(crate) fn stores_short_pieces(&self) -> bool {
        self.sensor.is_fast() && !(self.cells / 2).is_multiple_of(TIMED_EVERY)
    }

    /// Whether the receiver has consumed the cell.
    #[inline]
    pub(crate) fn is_consumed(&mut self, cell: u64) -> Result<bool, TransportError> {
        if self.consumed_cells <= cell {
            self.refresh()?;
        }
        Ok(self.consumed_cells > cell)
    }
}
