//! One rank's shared memory, which its peers map too.
//!
//! The layout is the same on every rank of a job, so an offset has the same meaning on all of them:
//!
//! ```text
//! | board | revoked | notes | ring from rank 0 lane 0 | ring from rank 0 lane 1 | ... | slab           |
//! ```
//!
//! Peers read registered memory in place, and other memory by system call. A rank whose call fails gives that
//! memory back to its owner while a late peer may still read it. So the rank sets the word `revoked` before
//! ([`Arena::revoke`]), and peers check the word after each read ([`Arena::is_revoked`]).
//!
//! The notes are words that the rank leaves for its peers before they map the arena; zero if it leaves none.
//!
//! Every rank's arena has a ring for every rank and lane that may send to it. Pages take up memory only once
//! they are used, so an arena can reserve addresses generously.
//!
//! # Safety
//! Addresses are derived from the mapping with offsets checked against its length. Every value that holds
//! such an address also holds the `Arc<Mapping>`.

use crate::{
    TransportError,
    memory::{Board, Mapping, Span, mapping::HUGE_PAGE_BYTES},
    ring::RingLayout,
    sync::{AtomicU64, fence},
};
use rustix::fd::{AsFd, OwnedFd};
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::Ordering::{Acquire, Relaxed, Release, SeqCst},
    },
};

/// Offsets of an arena's parts; equal on all ranks of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaLayout {
    /// Number of ranks of the job.
    pub ranks: u32,
    /// Number of lanes between each pair of ranks.
    pub lanes: u8,
    /// Layout of each ring.
    pub ring: RingLayout,
    /// Bytes of the slab.
    pub slab_bytes: usize,
}

impl ArenaLayout {
    const PAGE: usize = 64 * 1024;

    /// Offset of the word `revoked`, which has a cache line of its own.
    const REVOKED: usize = Board::BYTES;

    /// Offset of the notes, which have a cache line of their own.
    const NOTES: usize = Self::REVOKED + 64;

    /// Returns the bytes of the board, of the word `revoked`, and of the notes.
    fn board_bytes() -> usize {
        (Self::NOTES + 64).next_multiple_of(Self::PAGE)
    }

    fn slab_start(&self) -> usize {
        let rings = self.ranks as usize * usize::from(self.lanes) * self.ring.bytes();
        let unit = if self.slab_bytes < HUGE_PAGE_BYTES { Self::PAGE } else { HUGE_PAGE_BYTES };
        (Self::board_bytes() + rings).next_multiple_of(unit)
    }

    /// Returns the size of the whole arena in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.slab_start() + self.slab_bytes
    }

    /// Returns the offset of the ring that `source` sends to on `lane`.
    fn ring_start(&self, source: u32, lane: u8) -> usize {
        assert!(source < self.ranks && lane < self.lanes, "no ring from rank {source} on lane {lane}");
        let index = source as usize * usize::from(self.lanes) + usize::from(lane);
        Self::board_bytes() + index * self.ring.bytes()
    }
}

/// One rank's memory, mapped in this process: this rank's or a peer's.
#[derive(Clone, Debug)]
pub struct Arena {
    layout: ArenaLayout,
    mapping: Arc<Mapping>,
}

impl Arena {
    /// Number of words that a rank can leave for its peers.
    pub const NOTES: usize = 3;

    /// Creates an arena for ranks that are threads of this process.
    ///
    /// # Errors
    /// [`TransportError::Memory`] when the system refuses the memory.
    pub fn private(layout: ArenaLayout) -> Result<Arena, TransportError> {
        Ok(Arena { layout, mapping: Arc::new(Mapping::private(layout.bytes())?) })
    }

    /// Creates the arena of this process's rank; peers map it from the descriptor.
    ///
    /// # Errors
    /// [`TransportError::Memory`] when the system refuses the memory.
    pub fn shared(layout: ArenaLayout) -> Result<(Arena, OwnedFd), TransportError> {
        let (mapping, fd) = Mapping::shared(layout.bytes())?;
        Ok((Arena { layout, mapping: Arc::new(mapping) }, fd))
    }

    /// Creates a shared arena whose slab can be registered with a device.
    ///
    /// The slab crosses an address that is a multiple of `boundary` only if it is longer than `boundary`; in
    /// that case it begins at such an address.
    ///
    /// # Errors
    /// [`TransportError::Memory`] when the system refuses the memory.
    pub fn shared_for_device(layout: ArenaLayout, boundary: u64) -> Result<(Arena, OwnedFd), TransportError> {
        let (mapping, fd) = Mapping::shared_for_device(layout.bytes(), layout.slab_start(), boundary)?;
        Ok((Arena { layout, mapping: Arc::new(mapping) }, fd))
    }

    /// Maps the arena of another process from its descriptor.
    ///
    /// # Errors
    /// [`TransportError::Memory`] when it can't be mapped.
    pub fn of_peer(layout: ArenaLayout, fd: impl AsFd) -> Result<Arena, TransportError> {
        Ok(Arena { layout, mapping: Arc::new(Mapping::from_descriptor(fd, layout.bytes())?) })
    }

    /// Returns the offsets of the arena's parts.
    #[must_use]
    pub fn layout(&self) -> &ArenaLayout {
        &self.layout
    }

    /// Returns the board, which this arena's rank writes and its peers read.
    #[must_use]
    pub fn board(&self) -> Board {
        Board::new(Arc::clone(&self.mapping))
    }

    /// Tells peers that this rank gives the memory of its messages back to its owner.
    ///
    /// Called by the arena's rank before that memory changes; there is no way back. A peer that reads bytes
    /// written after this call sees the revocation after the read.
    pub(crate) fn revoke(&self) {
        self.revoked().store(1, Relaxed);
        // Sequentially consistent: it also orders the store before non-temporal stores of the owner.
        fence(SeqCst);
    }

    /// Whether the arena's rank may have given the memory of its messages back before the latest read.
    ///
    /// Bytes of that memory that were read before this returned `false` are those that the rank sent.
    #[inline]
    pub(crate) fn is_revoked(&self) -> bool {
        fence(Acquire);
        self.revoked().load(Relaxed) != 0
    }

    fn revoked(&self) -> &AtomicU64 {
        // SAFETY: the word lies behind the board and before the rings, within the mapping, which is aligned
        // to pages and lives as long as `self`. It starts zeroed, and every process accesses it as an atomic.
        unsafe { &*self.mapping.as_ptr().add(ArenaLayout::REVOKED).cast() }
    }

    /// Leaves notes for the peers, before they map the arena.
    pub fn leave_notes(&self, notes: [u64; Arena::NOTES]) {
        for (word, note) in self.notes().iter().zip(notes) {
            word.store(note, Release);
        }
    }

    /// Returns the notes that the arena's rank has left; zeros if none.
    #[must_use]
    pub fn read_notes(&self) -> [u64; Arena::NOTES] {
        self.notes().each_ref().map(|word| word.load(Acquire))
    }

    fn notes(&self) -> &[AtomicU64; Arena::NOTES] {
        // SAFETY: the words lie behind `revoked` and before the rings, within the mapping, which is aligned
        // to pages and lives as long as `self`. They start zeroed, and every process accesses them as
        // atomics.
        unsafe { &*self.mapping.as_ptr().add(ArenaLayout::NOTES).cast() }
    }

    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Returns the address of the ring that `source` sends to on `lane`.
    pub(crate) fn ring(&self, source: u32, lane: u8) -> *mut u8 {
        self.mapping.as_ptr().wrapping_add(self.layout.ring_start(source, lane))
    }

    /// Returns the address of the slab.
    pub(crate) fn slab(&self) -> *mut u8 {
        self.mapping.as_ptr().wrapping_add(self.layout.slab_start())
    }

    /// Returns the offset of the slab in the shared object.
    pub(crate) fn slab_start(&self) -> usize {
        self.layout.slab_start()
    }

    /// Returns `len` bytes of the slab from `offset` on.
    ///
    /// # Errors
    /// [`TransportError::Corrupt`] when these bytes are not all inside the slab.
    pub(crate) fn slab_span(&self, offset: u64, len: usize) -> Result<Span<'_>, TransportError> {
        let size = self.layout.slab_bytes;
        if offset > size as u64 || len > size - offset as usize {
            return Err(TransportError::Corrupt("place in the slab"));
        }
        // SAFETY: the bytes are inside of the slab, checked above, which stays mapped while `self` lives.
        Ok(unsafe { Span::new(self.slab().add(offset as usize), len) })
    }

    /// Returns the offset in the slab of memory that lies completely in it, which makes it registered memory.
    #[must_use]
    #[inline]
    pub fn locate(&self, start: *const u8, len: usize) -> Option<u64> {
        let slab = self.slab() as usize;
        let Range { start: from, end: to } = slab..slab + self.layout.slab_bytes;
        let at = start as usize;
        (at >= from && at <= to && len <= to - at).then(|| (at - from) as u64)
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn peers_read_the_notes_that_a_rank_has_left_and_zeros_where_it_left_none() {
        let layout = ArenaLayout { ranks: 2, lanes: 1, ring: RingLayout::default(), slab_bytes: 1 << 16 };
        let (ours, object) = Arena::shared(layout).expect("memory");
        let theirs = Arena::of_peer(layout, &object).expect("mapped");
        assert_eq!(theirs.read_notes(), [0, 0, 0]);
        ours.leave_notes([7, u64::MAX, 8]);
        assert_eq!(theirs.read_notes(), [7, u64::MAX, 8]);
        assert!(!theirs.is_revoked(), "they are words of their own");
        ours.revoke();
        assert_eq!(theirs.read_notes(), [7, u64::MAX, 8]);
    }
}
