//! Buffers that change hands: an end stores a piece into a buffer that it has read, and hands it over.
//!
//! A core that reads what another core has stored takes the lines into its own cache. A sender that stores to
//! them again has to fetch them back, unless they have left both cores' caches meanwhile. The receiver need
//! not: it has them. So each buffer belongs to one end of a link. That end may store a piece into it, and the
//! message gives it to the other end, which may send in it once it has read the piece. Intel MPI does the
//! same with its forward cells. Messages between two cores of an AMD EPYC (Zen 4), by a program that only
//! copies, through a staging area with laps of 4 MiB and in buffers, in us:
//!
//! | cores | messages | 1 K | 4 K | 16 K | 64 K | 256 K | 1 M |
//! |---|---|---:|---:|---:|---:|---:|---:|
//! | a common cache | in turns | 0.11 / 0.10 | 0.64 / 0.21 | 0.96 / 0.77 | 2.3 / 1.9 | 8.3 / 6.5 | 36 / 34 |
//! | | both ways | 0.15 / 0.13 | 0.70 / 0.23 | 1.2 / 1.0 | 3.4 / 2.8 | 14 / 11 | 59 / 56 |
//! | none | in turns | 0.59 / 0.34 | 2.4 / 0.80 | 7.0 / 2.0 | 25 / 4.7 | 97 / 15 | 386 / 44 |
//! | | both ways | 0.54 / 0.38 | 2.4 / 0.82 | 7.7 / 2.3 | 30 / 5.7 | 117 / 19 | 459 / 71 |
//!
//! Half of the buffers of a link lie in each of its two rings. An end begins with those of the ring through
//! which it sends. It uses the buffer that came last, whose lines are the likeliest to be in its caches. An
//! end without a buffer stages its pieces: one that receives all the time keeps all of them.
//!
//! Invariant: a buffer belongs to exactly one end, or to the message that hands it over.
//!
//! # Safety
//! The rings lie in arenas that the owner of this value keeps alive. Only the end that owns a buffer accesses
//! its bytes. The store of the cell's stamp (release) hands them over, and its load (acquire) takes them.

use super::{RingLayout, demotions};
use crate::{TransportError, memory::Span, sync};
use std::ptr;

/// The buffers that an end of a link owns.
///
/// An end numbers the buffers of the ring through which it sends from 0, and those of the other ring after
/// them.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// First buffers of the ring through which this end sends, and of the other one.
    starts: [*mut u8; 2],
    layout: RingLayout,
    /// Longest piece whose lines are moved to the common cache.
    demoted_bytes: usize,
    /// Numbers of the buffers that this end owns, in the order in which they came.
    owned: [u8; 2 * RingLayout::MOST_BUFFERS],
    len: usize,
    /// The same numbers as a set.
    set: u32,
}

// SAFETY: the addresses are valid in every thread (the arenas are shared memory), and `&mut self` methods
// allow one thread at a time.
unsafe impl Send for Buffers {}

impl Buffers {
    /// Creates the buffers of an end that sends through the ring at `sends` and receives through that at
    /// `receives`.
    ///
    /// # Safety
    /// Both must be starts of rings of this layout that outlive this value. There must be one such value at
    /// each end of the link.
    pub(crate) unsafe fn new(sends: *mut u8, receives: *mut u8, layout: RingLayout) -> Buffers {
        let starts = [sends, receives].map(|ring| ring.wrapping_add(layout.buffers_start()));
        let (mut owned, len) = ([0; 2 * RingLayout::MOST_BUFFERS], layout.buffers);
        for (number, slot) in owned[..len].iter_mut().enumerate() {
            *slot = number as u8;
        }
        Buffers { starts, layout, demoted_bytes: demotions::most_bytes(), owned, len, set: (1 << len) - 1 }
    }

    /// Whether this end owns a buffer.
    #[inline]
    pub(crate) fn has_one(&self) -> bool {
        self.len > 0
    }

    /// Returns the address of a buffer.
    #[inline]
    fn at(&self, number: usize) -> *mut u8 {
        let count = self.layout.buffers;
        let (ring, nth) = if number < count { (0, number) } else { (1, number - count) };
        self.starts[ring].wrapping_add(nth * self.layout.buffer_stride())
    }

    /// Stores a piece into the buffer that came last, and returns its number. The message with this number
    /// must be published next.
    ///
    /// # Panics
    /// If this end owns no buffer, or the piece is longer than one.
    #[inline]
    pub(super) fn fill(&mut self, piece: Span<'_>) -> u64 {
        let len = piece.len();
        assert!(self.len > 0 && len <= self.layout.buffer_bytes(), "a piece of {len} bytes");
        self.len -= 1;
        let number = self.owned[self.len];
        self.set &= !(1 << number);
        let start = self.at(usize::from(number));
        sync::mark_write(start, len);
        // SAFETY: the buffer lies in its ring and has room for the piece, checked above. This end owned it,
        // so nobody else accesses its bytes. `piece` is readable, and is no part of a ring.
        unsafe { ptr::copy_nonoverlapping(piece.as_ptr(), start, len) };
        if len <= self.demoted_bytes {
            demotions::demote(start, len);
        }
        u64::from(number)
    }

    /// Returns the number and the bytes of a piece in the buffer that the peer calls `number`.
    ///
    /// # Errors
    /// [`TransportError::Corrupt`] if the peer has no such buffer to hand over, or the piece is longer than
    /// one.
    #[inline]
    pub(crate) fn piece(&self, number: u64, len: usize) -> Result<(u8, Span<'_>), TransportError> {
        let count = self.layout.buffers as u64;
        if number >= 2 * count || len == 0 || len > self.layout.buffer_bytes() {
            return Err(TransportError::Corrupt("handed piece"));
        }
        // The ring through which one end sends is the other ring of its peer.
        let here = if number < count { number + count } else { number - count } as u8;
        if self.set >> here & 1 == 1 {
            return Err(TransportError::Corrupt("owner of a buffer"));
        }
        let start = self.at(usize::from(here));
        sync::mark_read(start, len);
        // SAFETY: the buffer lies in its ring and holds the piece, checked above. The peer has handed it
        // over, and writes it again only after this end has sent in it, which takes `&mut self`.
        Ok((here, unsafe { Span::new(start, len) }))
    }

    /// Takes a buffer whose piece has been read.
    #[inline]
    pub(crate) fn take(&mut self, number: u8) {
        self.owned[self.len] = number;
        self.len += 1;
        self.set |= 1 << number;
    }
}
