//! The library's allocator: registered memory, which peers read in place.
//!
//! Free ranges are kept by address and joined with their neighbours; the first one that fits is taken. Ranges are
//! whole blocks of 64 KiB, so that no two buffers share a page on any platform. The pages of a freed
//! buffer go back to the system.
//!
//! # Safety
//! A [`Registered`] owns its range of the arena's mapping: the allocator hands out disjoint ranges, and the range
//! returns only when the buffer is dropped. The mapping lives as long as any buffer of it.

use crate::{
    TransportError,
    memory::{Arena, Mapping, Span, SpanMut},
};
use rustix::{
    fd::{AsFd, OwnedFd},
    io,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// The allocator of one arena's slab.
#[derive(Clone, Debug)]
pub struct Slab(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    mapping: Arc<Mapping>,
    /// The address of the slab.
    start: *mut u8,
    /// Where the slab is in the shared object.
    object_start: u64,
    /// The shared object, where there is one.
    object: Option<OwnedFd>,
    total: u64,
    /// Free ranges: offset -> length. Disjoint, not adjacent, whole blocks.
    free: Mutex<BTreeMap<u64, u64>>,
}

// SAFETY: `start` is an address within `mapping`, which is `Send + Sync`; the free list is behind a mutex.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Bytes of registered memory, zero when new; returned to the slab when dropped.
#[derive(Debug)]
pub struct Registered {
    slab: Arc<Shared>,
    offset: u64,
    len: usize,
}

impl Slab {
    /// Ranges are multiples of this many bytes.
    pub const BLOCK_BYTES: u64 = 64 * 1024;

    /// The allocator of our own arena. `object` is its descriptor where it has one: pages are then reserved when
    /// a buffer is made, so that running out of memory is an error there and not a fault later.
    #[must_use]
    pub fn new(arena: &Arena, object: Option<OwnedFd>) -> Slab {
        let total = arena.layout().slab_bytes as u64 / Slab::BLOCK_BYTES * Slab::BLOCK_BYTES;
        Slab(Arc::new(Shared {
            mapping: Arc::clone(arena.mapping()),
            start: arena.slab(),
            object_start: arena.slab_start() as u64,
            object,
            total,
            free: Mutex::new(BTreeMap::from([(0, total)])),
        }))
    }

    /// A buffer of `len` bytes, aligned to [`Slab::BLOCK_BYTES`], zeroed.
    ///
    /// # Errors
    /// [`TransportError::SlabFull`], or [`TransportError::Memory`] when the system has no memory left.
    pub fn allocate(&self, len: usize) -> Result<Registered, TransportError> {
        let blocks = (len as u64).max(1).checked_next_multiple_of(Slab::BLOCK_BYTES).unwrap_or(u64::MAX);
        let offset = self.0.take(blocks).ok_or_else(|| TransportError::SlabFull {
            wanted: blocks,
            free: self.0.free_bytes(),
            total: self.0.total,
        })?;
        let buffer = Registered { slab: Arc::clone(&self.0), offset, len };
        self.0.reserve(offset, blocks)?;
        Ok(buffer)
    }

    /// Bytes not handed out.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.0.free_bytes()
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, u64>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free_bytes(&self) -> u64 {
        self.lock().values().sum()
    }

    /// Takes `wanted` bytes from the first free range that has them.
    fn take(&self, wanted: u64) -> Option<u64> {
        let mut free = self.lock();
        let (offset, len) = free.iter().find(|(_, len)| **len >= wanted).map(|(o, l)| (*o, *l))?;
        free.remove(&offset);
        if len > wanted {
            free.insert(offset + wanted, len - wanted);
        }
        Some(offset)
    }

    fn give_back(&self, mut offset: u64, mut len: u64) {
        let mut free = self.lock();
        if let Some((&before, &before_len)) = free.range(..offset).next_back()
            && before + before_len == offset
        {
            free.remove(&before);
            (offset, len) = (before, before_len + len);
        }
        if let Some(after_len) = free.remove(&(offset + len)) {
            len += after_len;
        }
        free.insert(offset, len);
    }

    #[cfg(target_os = "linux")]
    fn reserve(&self, offset: u64, len: u64) -> Result<(), TransportError> {
        let Some(object) = &self.object else { return Ok(()) };
        let reserved = loop {
            let flags = rustix::fs::FallocateFlags::empty();
            match rustix::fs::fallocate(object.as_fd(), flags, self.object_start + offset, len) {
                Err(io::Errno::INTR) => {}
                other => break other,
            }
        };
        reserved.map_err(|e| TransportError::Memory {
            what: format!("reserving {len} bytes of registered memory"),
            source: e.into(),
            remedy: "free memory, or use smaller buffers".into(),
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn reserve(&self, _offset: u64, _len: u64) -> Result<(), TransportError> {
        let _: Option<io::Errno> =
            self.object.as_ref().and_then(|object| rustix::fs::fstat(object.as_fd()).err());
        Ok(())
    }

    /// Gives the pages back to the system; they read as zero afterwards.
    fn release(&self, offset: u64, len: u64) {
        #[cfg(target_os = "linux")]
        if let Some(object) = &self.object {
            let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            if rustix::fs::fallocate(object.as_fd(), flags, self.object_start + offset, len).is_ok() {
                return;
            }
        }
        // SAFETY: the range is `len` bytes of the slab that its owner has just given up; nobody else has it.
        unsafe {
            let start = self.start.add(offset as usize);
            #[cfg(target_os = "linux")]
            if self.object.is_none()
                && rustix::mm::madvise(start.cast(), len as usize, rustix::mm::Advice::LinuxDontNeed).is_ok()
            {
                return;
            }
            start.write_bytes(0, len as usize);
        }
    }
}

impl Registered {
    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Are there no bytes?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        debug_assert!(self.offset as usize + self.len <= self.slab.mapping.len());
        self.slab.start.wrapping_add(self.offset as usize)
    }

    /// The bytes, for reading.
    #[must_use]
    pub fn span(&self) -> Span<'_> {
        // SAFETY: the range belongs to this buffer and stays mapped while it lives.
        unsafe { Span::new(self.as_ptr(), self.len) }
    }

    /// The bytes, for reading and writing.
    #[must_use]
    pub fn span_mut(&mut self) -> SpanMut<'_> {
        // SAFETY: as for `span`; the exclusive borrow keeps references away.
        unsafe { SpanMut::new(self.as_ptr(), self.len) }
    }

    /// The bytes as a slice.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the range belongs to this buffer, is initialised (pages start zeroed), and only its owner
        // writes to it: peers read registered memory and never write it.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }

    /// The bytes as a slice.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as for `as_slice`, and the borrow is exclusive. Peers read only while an operation is under
        // way, which holds this borrow.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len) }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let len = (self.len as u64).max(1).next_multiple_of(Slab::BLOCK_BYTES);
        self.slab.release(self.offset, len);
        self.slab.give_back(self.offset, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{memory::ArenaLayout, ring::RingLayout};

    fn slab(blocks: usize) -> Slab {
        let layout = ArenaLayout {
            ranks: 1,
            lanes: 1,
            ring: RingLayout::default(),
            slab_bytes: blocks * Slab::BLOCK_BYTES as usize,
        };
        let (arena, fd) = Arena::shared(layout).expect("memory for a test");
        Slab::new(&arena, Some(fd))
    }

    #[test]
    fn freed_neighbours_join_and_read_as_zero() {
        let slab = slab(4);
        let mut held: Vec<_> = (0..4).map(|_| slab.allocate(60_000).expect("one block each")).collect();
        assert_eq!(slab.free_bytes(), 0);
        held[1].as_mut_slice().fill(7);
        held.remove(1);
        held.remove(1);
        let joined = slab.allocate(2 * Slab::BLOCK_BYTES as usize).expect("two neighbours were freed");
        assert!(joined.as_slice().iter().all(|byte| *byte == 0));
        drop(joined);
        drop(held);
        assert_eq!(slab.free_bytes(), 4 * Slab::BLOCK_BYTES);
        slab.allocate(4 * Slab::BLOCK_BYTES as usize).expect("all of it is one range again");
    }

    #[test]
    fn a_full_slab_is_an_error_that_says_how_much_is_free() {
        let slab = slab(2);
        let _one = slab.allocate(1).expect("one block");
        let error = slab.allocate(100_000).expect_err("two blocks are not free");
        assert!(error.to_string().contains("TBCCL_SLAB_BYTES"), "{error}");
        slab.allocate(usize::MAX).expect_err("no overflow");
    }

    #[test]
    fn registered_memory_is_found_and_other_memory_is_not() {
        let layout = ArenaLayout { ranks: 2, lanes: 1, ring: RingLayout::default(), slab_bytes: 1 << 20 };
        let arena = Arena::private(layout).expect("memory for a test");
        let slab = Slab::new(&arena, None);
        let first = slab.allocate(10).expect("room");
        let buffer = slab.allocate(10).expect("room");
        assert_eq!(arena.locate(first.as_ptr(), 10), Some(0));
        assert_eq!(arena.locate(buffer.as_ptr(), 10), Some(Slab::BLOCK_BYTES));
        assert_eq!(arena.locate(buffer.as_ptr(), 1 << 20), None);
        let foreign = [0u8; 4];
        assert_eq!(arena.locate(foreign.as_ptr(), 4), None);
    }
}
