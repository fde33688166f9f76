//! Two cache lines of a ring: a descriptor that the sender passes to the receiver.
//!
//! | word | inline, long | staged piece | handed piece | direct | pull |
//! |---|---|---|---|---|---|
//! | 0 | head, with the length | head, with the mark | head | head | head |
//! | 1 | digest | digest | digest | digest | digest |
//! | 2 | payload | message length | message length | message length | message length |
//! | 3 | payload | staging position | number of the buffer | offset in the slab | address |
//! | 4 | payload | piece length | piece length | | |
//! | 5..7 | payload | | | | |
//!
//! The second line belongs to long messages only: a stamp and the rest of the payload. Other messages leave
//! it alone. Processors that fetch the neighbor of a line fetch it in vain then, and no other cell's line,
//! which its sender may be about to store to.
//!
//! The bits of a head:
//!
//! | bits | content |
//! |---|---|
//! | 0..32 | stamp: the number of the message among those in cells of this kind |
//! | 32..40 | kind |
//! | 40..48 | length of the payload, or mark of a timed piece |
//! | 48..64 | number of the message among all |
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
#[repr(C, align(128))]
pub(super) struct Cell([AtomicU64; 16]);

/// Maximum payload bytes of an inline message.
pub(crate) const INLINE_BYTES: usize = 48;
/// Maximum payload bytes of a long message.
///
/// Half a round trip between cores without a common cache takes 0.44 us for 64 bytes in two lines, and 0.60
/// where they are staged; 0.58 for 128 bytes in three lines, and 0.51 staged: each further line that the
/// receiver polls delays the sender's store to it.
pub(crate) const LONG_BYTES: usize = INLINE_BYTES + 56;

const KIND_INLINE: u64 = 1;
const KIND_STAGED: u64 = 2;
const KIND_DIRECT: u64 = 3;
const KIND_PULL: u64 = 4;
const KIND_LONG: u64 = 5;
const KIND_REST: u64 = 6;
const KIND_HANDED: u64 = 7;

/// First word of the second line, which has the stamp of a long message.
const REST: usize = 8;
/// The bits of a head that say which message it is.
const NUMBER_BITS: u64 = 0xffff << 48 | 0xffff_ffff;

/// Which message of one direction a cell holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Number {
    /// Messages before it in cells of the same kind: in those of the ring, or in those that change hands.
    pub(super) nth: u64,
    /// Messages before it in any cell. Fewer than 65,536 are on their way.
    pub(super) order: u64,
}

impl Number {
    /// Returns the bits of a head that tell it.
    ///
    /// Cells start as zero. A cell never already holds the stamp of the next message that it can be asked
    /// for: each kind of cells is used in turns.
    #[inline]
    fn bits(self) -> u64 {
        u64::from((self.nth as u32).wrapping_add(1)) | self.order << 48
    }
}

/// Content of a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content {
    /// A whole message in the cell.
    Inline { len: usize },
    /// A whole message of more bytes, in both lines of the cell.
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
    /// Fills the cell and publishes it.
    #[inline]
    pub(super) fn publish(&self, number: Number, digest: u64, content: &Content) {
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
        self.0[0].store(Self::head_of(number, kind, more), Release);
        if let Content::Long { .. } = content {
            self.0[REST].store(Self::head_of(number, KIND_REST, 0), Release);
        }
    }

    #[inline]
    fn head_of(number: Number, kind: u64, more: u64) -> u64 {
        number.bits() | kind << 32 | more << 40
    }

    /// Whether the cell has been published with this message, and that has `len` bytes in the cell; `None` if
    /// it has not been published with this message.
    #[inline]
    pub(super) fn has_message(&self, number: Number, len: usize) -> Option<bool> {
        let kind = if len <= INLINE_BYTES { KIND_INLINE } else { KIND_LONG };
        let (head, expected) = (self.0[0].load(Acquire), Self::head_of(number, kind, len as u64));
        ((head ^ expected) & NUMBER_BITS == 0).then_some(head == expected)
    }

    /// Whether the rest of a long message has been published.
    #[inline]
    pub(super) fn has_rest(&self, number: Number) -> bool {
        self.0[REST].load(Acquire) == Self::head_of(number, KIND_REST, 0)
    }

    /// Returns the first word of the part of a payload in a line, and the bytes of the message before it.
    #[inline]
    const fn place(line: usize) -> (usize, usize) {
        if line == 0 { (2, 0) } else { (REST + 1, INLINE_BYTES) }
    }

    /// Returns the bytes of a message of `len` bytes in one of the lines that it takes.
    #[inline]
    const fn part_bytes(line: usize, len: usize) -> usize {
        let (word, before) = Cell::place(line);
        let (left, room) = (len - before, (REST * (line + 1) - word) * 8);
        if left < room { left } else { room }
    }

    /// Writes the part of a message in one of the lines that it takes, before the cell is published.
    ///
    /// # Safety
    /// The cell must be this end's.
    #[inline]
    pub(super) unsafe fn write_part(&self, line: usize, message: Span<'_>) {
        let ((word, before), len) = (Cell::place(line), Cell::part_bytes(line, message.len()));
        let part = message.sub(before, len);
        #[cfg(not(any(loom, miri)))]
        // SAFETY: the words of the line from `word` on have room for the part, and atomics may be written
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
            let line = &self.0[word..REST * (line + 1)];
            line.iter().zip(words).for_each(|(word, value)| word.store(value, Relaxed));
        }
    }

    /// Calls `read` with the part of a message of `len` bytes in one of the lines that it takes, and with the
    /// bytes before it.
    ///
    /// # Safety
    /// The cell must be published, and this end's until `read` returns.
    ///
    /// # Panics
    /// If no message of this length takes this line.
    #[inline]
    pub(super) unsafe fn read_part(&self, line: usize, len: usize, read: impl FnOnce(usize, Span<'_>)) {
        #[cfg(not(any(loom, miri)))]
        // SAFETY: the caller's contract.
        read(Cell::place(line).1, unsafe { self.part(line, len) });
        #[cfg(any(loom, miri))]
        {
            let ((word, before), len) = (Cell::place(line), Cell::part_bytes(line, len));
            let mut words = [0u64; 8];
            let line = &self.0[word..REST * (line + 1)];
            words.iter_mut().zip(line).for_each(|(value, word)| *value = word.load(Relaxed));
            // SAFETY: the words are a live local array of at least `len` bytes.
            read(before, unsafe { Span::new(words.as_ptr().cast(), len) });
        }
    }

    /// Returns the part of a message of `len` bytes in one of the lines that it takes.
    ///
    /// # Safety
    /// The cell must be this end's, and stay so while the part is used.
    #[inline]
    pub(super) unsafe fn part(&self, line: usize, len: usize) -> Span<'_> {
        let word = Cell::place(line).0;
        // SAFETY: the words of the line from `word` on hold the part, and the sender writes them again only
        // after the cell was given back.
        unsafe { Span::new(self.0.as_ptr().add(word).cast(), Cell::part_bytes(line, len)) }
    }

    /// Returns the address of a line, to be fetched.
    #[inline]
    pub(super) fn line(&self, line: usize) -> *const u8 {
        std::ptr::from_ref(&self.0[REST * line]).cast()
    }

    /// Returns the head word, if the cell has been published with this message.
    #[inline]
    pub(super) fn head(&self, number: Number) -> Option<u64> {
        let head = self.0[0].load(Acquire);
        ((head ^ number.bits()) & NUMBER_BITS == 0).then_some(head)
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
            KIND_LONG => Ok(Content::Long { len: (head >> 40 & 0xff) as usize }),
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
