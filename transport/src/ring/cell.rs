//! One cache line of a ring: a descriptor that the sender passes to the receiver.
//!
//! | word | inline | staged piece | direct | pull |
//! |---|---|---|---|---|
//! | 0 | stamp, kind, length | stamp, kind | stamp, kind | stamp, kind |
//! | 1 | digest | digest | digest | digest |
//! | 2 | payload | message length | message length | message length |
//! | 3 | payload | staging position | offset in the slab | address |
//! | 4 | payload | piece length | | |
//! | 5..7 | payload | | | |

use crate::{TransportError, sync::AtomicU64};
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

/// Content of a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content {
    /// A whole message in the cell.
    Inline { payload: [u64; INLINE_BYTES / 8], len: usize },
    /// The next piece of a message of `total` bytes; `position` counts staging bytes since the ring was
    /// created.
    Staged { total: usize, position: u64, len: usize },
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
        let (kind, inline_len) = match content {
            Content::Inline { payload, len } => {
                for (word, value) in self.0[2..].iter().zip(payload).take(len.div_ceil(8)) {
                    word.store(*value, Relaxed);
                }
                (KIND_INLINE, *len as u64)
            }
            Content::Staged { total, position, len } => {
                self.0[2].store(*total as u64, Relaxed);
                self.0[3].store(*position, Relaxed);
                self.0[4].store(*len as u64, Relaxed);
                (KIND_STAGED, 0)
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
        self.0[0].store(u64::from(Self::stamp(index)) | kind << 32 | inline_len << 40, Release);
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
                let mut payload = [0; INLINE_BYTES / 8];
                for (value, word) in payload.iter_mut().zip(&self.0[2..]).take(len.div_ceil(8)) {
                    *value = word.load(Relaxed);
                }
                Ok(Content::Inline { payload, len })
            }
            KIND_STAGED => {
                Ok(Content::Staged { total: word(2) as usize, position: word(3), len: word(4) as usize })
            }
            KIND_DIRECT => Ok(Content::Direct { total: word(2) as usize, offset: word(3) }),
            KIND_PULL => Ok(Content::Pull { total: word(2) as usize, address: word(3) }),
            _ => Err(TransportError::Corrupt("kind")),
        }
    }
}

/// The receiver's cache line: its consumption counters.
#[repr(C, align(64))]
pub(super) struct ConsumerLine {
    /// Cells consumed since the ring was created.
    pub(super) cells: AtomicU64,
    /// Staging bytes consumed since the ring was created.
    pub(super) staging: AtomicU64,
}
