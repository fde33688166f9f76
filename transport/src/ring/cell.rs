//! One cache line of a ring: a descriptor that the sender passes to the receiver.
//!
//! | word | inline, long | further | staged piece | handed piece | direct | pull |
//! |---|---|---|---|---|---|---|
//! | 0 | stamp, kind, length | stamp, kind | stamp, kind, mark | stamp, kind | stamp, kind | stamp, kind |
//! | 1 | digest | payload | digest | digest | digest | digest |
//! | 2 | payload | payload | message length | message length | message length | message length |
//! | 3 | payload | payload | staging position | number of the buffer | offset in the slab | address |
//! | 4 | payload | payload | piece length | piece length | | |
//! | 5..7 | payload | payload | | | | |
//!
//! A long message has a long cell and further ones behind it.
//!
//! Payloads are written and read in place, as plain bytes between the stores and loads of stamps. Words that
//! are stored one by one are not there for the vector loads of a copy until they have left the core's store
//! buffer. Model checkers see words: Loom knows no plain accesses of them, and Miri fails on such after
//! atomic ones, unless weak memory is not emulated.
//!
//! # Safety
//! Payloads are accessed by the end that has the cell: the sender until it stores the stamp (release), the
//! receiver from its load (acquire) until it gives the cell back.

use super::costs::Way;
use crate::{TransportError, memory::Span, sync::AtomicU64};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A cell in memory.
#[repr(C, align(64))]
pub(super) struct Cell([AtomicU64; 8]);

/// Maximum payload bytes of an inline message.
pub(crate) const INLINE_BYTES: usize = 48;

const KIND_INLINE: u64 = 1;
const KIND_STAGED: u64 = 2;
const KIND_DIRECT: u64 = 3;
const KIND_PULL: u64 = 4;
const KIND_LONG: u64 = 5;
const KIND_FURTHER: u64 = 6;
const KIND_HANDED: u64 = 7;

/// Payload bytes of a further cell of a message.
const FURTHER_BYTES: usize = 56;
/// Cells of the longest message in cells.
///
/// Half a round trip between cores without a common cache takes 0.44 us for 64 bytes in two cells, and 0.60
/// where they are staged; 0.58 for 128 bytes in three cells, and 0.51 staged: each further line that the
/// receiver polls delays the sender's store to it.
pub(super) const LONG_CELLS: usize = 2;

/// Returns the bytes that a message in `cells` cells has at most.
pub(super) const fn bytes_in(cells: usize) -> usize {
    INLINE_BYTES + (cells - 1) * FURTHER_BYTES
}

/// Returns the cells of a long message.
#[inline]
pub(super) const fn cells_of(bytes: usize) -> usize {
    if bytes <= INLINE_BYTES { 1 } else { 1 + (bytes - INLINE_BYTES).div_ceil(FURTHER_BYTES) }
}

/// Content of a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content {
    /// A whole message in the cell.
    Inline { len: usize },
    /// The first cell of a message of more bytes, which the cells behind it continue.
    Long { len: usize },
    /// The next piece of a message of `total` bytes; `position` counts staging bytes since the ring was
    /// created. The receiver takes the time of the read where `timed` says how the piece was stored.
    Staged { total: usize, position: u64, len: usize, timed: Option<Way> },
    /// The next piece of a message of `total` bytes, in a buffer that changes hands with it.
    Handed { total: usize, buffer: u64, len: usize },
    /// A whole message in the sender's slab.
    Direct { total: usize, offset: u64 },
    /// A whole message in the sender's address space.
    Pull { total: usize, address: u64 },
}

impl Cell {
    /// Returns the stamp of the `index`-th cell since the ring was created.
    ///
    /// Cells start as zero. A cell never already holds the stamp of the next index that it can be asked for.
    fn stamp(index: u64) -> u32 {
        (index as u32).wrapping_add(1)
    }

    /// Fills the cell and publishes it. `index` counts cells since the ring was created.
    #[inline]
    pub(super) fn publish(&self, index: u64, digest: u64, content: &Content) {
        let (kind, more) = match content {
            Content::Inline { len } => (KIND_INLINE, *len as u64),
            Content::Long { len } => (KIND_LONG, *len as u64),
            Content::Staged { total, position, len, timed } => {
                self.0[2].store(*total as u64, Relaxed);
                self.0[3].store(*position, Relaxed);
                self.0[4].store(*len as u64, Relaxed);
                (KIND_STAGED, Way::mark(*timed))
            }
            Content::Handed { total, buffer, len } => {
                self.0[2].store(*total as u64, Relaxed);
                self.0[3].store(*buffer, Relaxed);
                self.0[4].store(*len as u64, Relaxed);
                (KIND_HANDED, 0)
            }
            Content::Direct { total, offset } => {
                self.0[2].store(*total as u64, Relaxed);
                self.0[3].store(*offset, Relaxed);
                (KIND_DIRECT, 0)
            }
            Content::Pull { total, address } => {
                self.0[2].store(*total as u64, Relaxed);
                self.0[3].store(*address, Relaxed);
                (KIND_PULL, 0)
            }
        };
        self.0[1].store(digest, Relaxed);
        self.0[0].store(Self::head_of(index, kind, more), Release);
    }

    /// Returns the head word of the `index`-th cell since the ring was created.
    #[inline]
    fn head_of(index: u64, kind: u64, more: u64) -> u64 {
        u64::from(Self::stamp(index)) | kind << 32 | more << 40
    }

    /// Whether the cell has been published as the first one of a message in cells, of `len` bytes; `None` if
    /// it has not been published.
    #[inline]
    pub(super) fn begins_message(&self, index: u64, len: usize) -> Option<bool> {
        let kind = if len <= INLINE_BYTES { KIND_INLINE } else { KIND_LONG };
        let (head, expected) = (self.0[0].load(Acquire), Self::head_of(index, kind, len as u64));
        (head as u32 == expected as u32).then_some(head == expected)
    }

    /// Whether the cell has been published as a further one of a long message.
    #[inline]
    pub(super) fn continues_message(&self, index: u64) -> bool {
        self.0[0].load(Acquire) == Self::head_of(index, KIND_FURTHER, 0)
    }

    /// Publishes the cell as a further one of a long message.
    #[inline]
    pub(super) fn publish_further(&self, index: u64) {
        self.0[0].store(Self::head_of(index, KIND_FURTHER, 0), Release);
    }

    /// Checks that a published cell is a further one of a long message.
    #[inline]
    pub(super) fn check_further(&self) -> Result<(), TransportError> {
        match self.0[0].load(Relaxed) >> 32 & 0xff {
            KIND_FURTHER => Ok(()),
            _ => Err(TransportError::Corrupt("a further cell")),
        }
    }

    /// Returns the first word of the payload of the `nth` cell of a message, and the bytes before it in the
    /// message.
    #[inline]
    const fn payload(nth: usize) -> (usize, usize) {
        match nth {
            0 => (2, 0),
            nth => (1, INLINE_BYTES + (nth - 1) * FURTHER_BYTES),
        }
    }

    /// Writes the part of a message that belongs into its `nth` cell, before the cell is published.
    ///
    /// # Safety
    /// The cell must be this end's.
    #[inline]
    pub(super) unsafe fn write_payload(&self, nth: usize, message: Span<'_>) {
        let (word, before) = Cell::payload(nth);
        let len = (message.len() - before).min((8 - word) * 8);
        let part = message.sub(before, len);
        #[cfg(not(any(loom, miri)))]
        // SAFETY: the words of the cell from `word` on have room for the part, and atomics may be written
        // through a shared reference. The receiver accesses them only after the stamp has been stored. `part`
        // is readable, and no part of a ring.
        unsafe {
            std::ptr::copy_nonoverlapping(part.as_ptr(), self.0.as_ptr().add(word).cast_mut().cast(), len);
        }
        #[cfg(any(loom, miri))]
        {
            let mut words = [0u64; 8];
            // SAFETY: `words` has room for the part, which is readable.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), words.as_mut_ptr().cast(), len) };
            self.0[word..].iter().zip(words).for_each(|(word, value)| word.store(value, Relaxed));
        }
    }

    /// Calls `read` with the part of a message of `len` bytes in its `nth` cell, and with the bytes before
    /// it.
    ///
    /// # Safety
    /// The cell must be published, and this end's until `read` returns.
    ///
    /// # Panics
    /// If no message of this length has such a cell.
    #[inline]
    pub(super) unsafe fn read_payload(&self, nth: usize, len: usize, read: impl FnOnce(usize, Span<'_>)) {
        #[cfg(not(any(loom, miri)))]
        // SAFETY: the caller's contract.
        read(Cell::payload(nth).1, unsafe { self.payload_part(nth, len) });
        #[cfg(any(loom, miri))]
        {
            let (word, before) = Cell::payload(nth);
            let len = (len - before).min((8 - word) * 8);
            let mut words = [0u64; 8];
            words.iter_mut().zip(&self.0[word..]).for_each(|(value, word)| *value = word.load(Relaxed));
            // SAFETY: the words are a live local array of at least `len` bytes.
            read(before, unsafe { Span::new(words.as_ptr().cast(), len) });
        }
    }

    /// Returns the part of a message of `len` bytes that the `nth` cell of it has.
    ///
    /// # Safety
    /// The cell must be this end's, and stay so while the part is used.
    #[inline]
    pub(super) unsafe fn payload_part(&self, nth: usize, len: usize) -> Span<'_> {
        let (word, before) = Cell::payload(nth);
        // SAFETY: the words of the cell from `word` on hold the part, and the sender writes them again only
        // after the cell was given back.
        unsafe { Span::new(self.0.as_ptr().add(word).cast(), (len - before).min((8 - word) * 8)) }
    }

    /// Returns the head word, if the cell has been published.
    #[inline]
    pub(super) fn head(&self, index: u64) -> Option<u64> {
        let head = self.0[0].load(Acquire);
        (head as u32 == Self::stamp(index)).then_some(head)
    }

    /// Returns the digest of a published cell.
    #[inline]
    pub(super) fn digest(&self) -> u64 {
        self.0[1].load(Relaxed)
    }

    /// Returns the content of a published cell.
    #[inline]
    pub(super) fn content(&self, head: u64) -> Result<Content, TransportError> {
        let word = |i: usize| self.0[i].load(Relaxed);
        match head >> 32 & 0xff {
            KIND_INLINE => {
                let len = (head >> 40 & 0xff) as usize;
                if len > INLINE_BYTES {
                    return Err(TransportError::Corrupt("inline length"));
                }
                Ok(Content::Inline { len })
            }
            KIND_LONG => Ok(Content::Long { len: (head >> 40 & 0xffff) as usize }),
            KIND_STAGED => {
                let (total, len) = (word(2) as usize, word(4) as usize);
                Ok(Content::Staged { total, position: word(3), len, timed: Way::of_mark(head >> 40 & 0xff) })
            }
            KIND_HANDED => {
                Ok(Content::Handed { total: word(2) as usize, buffer: word(3), len: word(4) as usize })
            }
            KIND_DIRECT => Ok(Content::Direct { total: word(2) as usize, offset: word(3) }),
            KIND_PULL => Ok(Content::Pull { total: word(2) as usize, address: word(3) }),
            _ => Err(TransportError::Corrupt("kind")),
        }
    }
}

/// The receiver's cache line: its consumption counters and its costs.
#[repr(C, align(64))]
pub(super) struct ConsumerLine {
    /// Cells consumed since the ring was created.
    pub(super) cells: AtomicU64,
    /// Staging bytes consumed since the ring was created.
    pub(super) staging: AtomicU64,
    /// Costs of timed reads ([`super::costs::Costs`]).
    pub(super) reads: AtomicU64,
}
