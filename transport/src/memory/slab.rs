//! Allocator of registered memory, which peers read in place.
//!
//! Free ranges are kept by address and merged with their neighbors; an allocation takes the first range that
//! fits. Ranges are whole blocks of 64 KiB, so that no two buffers share a page on any platform.
//!
//! The slab of an arena keeps the pages of freed buffers, up to [`KEPT_BYTES`], and gives those of others
//! back to the system. New pages take ten times as long as a call on them, and results of calls come and go.
//! A slab over memory that is registered with a device ([`Slab::over`], [`Slab::for_device`]) keeps all of
//! them, since the device would go on using the old pages. Pages that were kept are zeroed when they are
//! handed out again.
//!
//! Buffers of [`HUGE_PAGE_BYTES`] and more begin at a multiple of it where there is room, and their new pages
//! are huge ones where the system can make them, see [`Mapping::make_huge`]: calls on large buffers in shared
//! memory take 0.8 to 0.9 of the time (8 to 128 MiB, two ranks in a virtual machine on an AMD EPYC).
//!
//! Linux places a page on the NUMA node of the thread that needs it first. New pages of a shared object are
//! made when a buffer is allocated, so on the node of the allocating thread; kept ones stay where they are.
//! Private pages are made by the first store or by the registration with a device. No other process touches
//! them before.
//!
//! # Safety
//! A [`Registered`] owns its range of the mapping: the allocator hands out disjoint ranges, and a range
//! returns only when its buffer is dropped. The mapping lives as long as any of its buffers.

use crate::{
    TransportError,
    memory::{Arena, Mapping, Span, SpanMut, blocks::Blocks, mapping::HUGE_PAGE_BYTES},
};
use rustix::{
    fd::{AsFd, OwnedFd},
    io,
};
use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Allocator of a range of a mapping. Clones share it.
#[derive(Clone, Debug)]
pub struct Slab(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    mapping: Arc<Mapping>,
    /// Address of the slab.
    start: *mut u8,
    /// Offset of the slab in the shared object.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "pages are reserved on Linux only"))]
    object_start: u64,
    /// The shared object, if there is one.
    object: Option<OwnedFd>,
    total: u64,
    /// Boundary in bytes. Only buffers longer than it contain an address that is a multiple of it.
    boundary: Option<u64>,
    blocks: Mutex<Blocks>,
}

/// Bytes of freed buffers whose pages the slab of an arena keeps.
const KEPT_BYTES: u64 = 64 << 20;

// SAFETY: `start` is an address within `mapping`, which is `Send + Sync`; the free list is behind a mutex.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// A buffer of registered memory, zero when new. Dropping it returns the memory to the slab, except in a
/// forked child, where the memory is still the parent's.
#[derive(Debug)]
pub struct Registered {
    slab: Arc<Shared>,
    offset: u64,
    len: usize,
}

impl Slab {
    /// Granularity of allocations in bytes.
    pub const BLOCK_BYTES: u64 = 64 * 1024;

    /// Creates the allocator of this rank's arena.
    ///
    /// `object` is the arena's descriptor, if it has one. The allocator then reserves pages when a buffer is
    /// allocated, so that exhausted memory is an error there and not a fault later.
    #[must_use]
    pub fn new(arena: &Arena, object: Option<OwnedFd>) -> Slab {
        let total = arena.layout().slab_bytes as u64 / Slab::BLOCK_BYTES * Slab::BLOCK_BYTES;
        Slab(Arc::new(Shared {
            mapping: Arc::clone(arena.mapping()),
            start: arena.slab(),
            object_start: arena.slab_start() as u64,
            object,
            total,
            boundary: None,
            blocks: Mutex::new(Blocks::new(total, KEPT_BYTES)),
        }))
    }

    /// Creates the allocator of a part of a mapping that is registered with a device.
    ///
    /// `range` is in bytes from the mapping's start. No buffer crosses an address that is a multiple of
    /// `boundary`, except that a buffer longer than `boundary` begins at such an address. Pages that were
    /// never part of a buffer stay untouched.
    ///
    /// # Panics
    /// If `range` is not inside the mapping or does not begin at a page.
    #[must_use]
    pub fn over(mapping: Arc<Mapping>, range: Range<usize>, boundary: Option<u64>) -> Slab {
        assert!(range.start <= range.end && range.end <= mapping.len(), "a slab within its mapping");
        let start = mapping.as_ptr().wrapping_add(range.start);
        assert!((start as u64).is_multiple_of(4096), "a slab of whole pages");
        let total = range.len() as u64 / Slab::BLOCK_BYTES * Slab::BLOCK_BYTES;
        Slab(Arc::new(Shared {
            mapping,
            start,
            object_start: 0,
            object: None,
            total,
            boundary,
            blocks: Mutex::new(Blocks::new(total, u64::MAX)),
        }))
    }

    /// Creates the allocator of the first `bytes` of this rank's slab, for memory that is registered with a
    /// device and mapped by peers.
    ///
    /// `boundary` has the same meaning as for [`Slab::over`], and `object` as for [`Slab::new`].
    #[must_use]
    pub fn for_device(arena: &Arena, object: OwnedFd, bytes: u64, boundary: u64) -> Slab {
        let total = bytes.min(arena.layout().slab_bytes as u64) / Slab::BLOCK_BYTES * Slab::BLOCK_BYTES;
        Slab(Arc::new(Shared {
            mapping: Arc::clone(arena.mapping()),
            start: arena.slab(),
            object_start: arena.slab_start() as u64,
            object: Some(object),
            total,
            boundary: Some(boundary),
            blocks: Mutex::new(Blocks::new(total, u64::MAX)),
        }))
    }

    /// Creates the allocator of the whole slab of this rank's arena after its device is closed.
    ///
    /// `former` is the allocator that was made for the device; all of its buffers must have been dropped.
    #[must_use]
    pub fn replacing(former: &Slab, arena: &Arena, object: OwnedFd) -> Slab {
        let slab = Slab::new(arena, Some(object));
        slab.0.lock().keep_all_of(&mut former.0.lock());
        slab
    }

    /// Whether the slab lies in this arena.
    #[must_use]
    pub fn is_in(&self, arena: &Arena) -> bool {
        Arc::ptr_eq(&self.0.mapping, arena.mapping())
    }

    /// Returns the slab's mapping, start address and length in bytes.
    pub(crate) fn extent(&self) -> (&Arc<Mapping>, *mut u8, usize) {
        (&self.0.mapping, self.0.start, self.0.total as usize)
    }

    /// Returns the offset in the slab of memory that lies completely in it, which makes it registered memory.
    #[must_use]
    #[inline]
    pub fn locate(&self, start: *const u8, len: usize) -> Option<u64> {
        let from = self.0.start as usize;
        let to = from + self.0.total as usize;
        let at = start as usize;
        (at >= from && at <= to && len <= to - at).then(|| (at - from) as u64)
    }

    /// Allocates a buffer of `len` zeroed bytes, aligned to [`Slab::BLOCK_BYTES`].
    ///
    /// # Errors
    /// [`TransportError::SlabFull`], [`TransportError::Memory`] when the system has no memory left, or
    /// [`TransportError::Forked`] in a forked child.
    pub fn allocate(&self, len: usize) -> Result<Registered, TransportError> {
        if !self.0.mapping.origin().is_here() {
            return Err(TransportError::Forked);
        }
        let blocks = (len as u64).max(1).checked_next_multiple_of(Slab::BLOCK_BYTES).unwrap_or(u64::MAX);
        let (offset, stale) = self.0.take(blocks).ok_or_else(|| TransportError::SlabFull {
            wanted: blocks,
            free: self.0.free_bytes(),
            total: self.0.total,
        })?;
        if stale.iter().map(|range| range.end - range.start).sum::<u64>() < blocks {
            self.0.make_huge(offset, blocks);
            self.0.reserve(offset, blocks).inspect_err(|_| self.0.discard(offset, blocks))?;
        }
        self.0.zero(&stale, offset + len as u64);
        Ok(Registered { slab: Arc::clone(&self.0), offset, len })
    }

    /// Returns the number of bytes in buffers.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.0.total - self.0.free_bytes()
    }

    /// Returns the address of the slab, which tells slabs of a process apart.
    #[must_use]
    pub fn address(&self) -> usize {
        self.0.start as usize
    }

    /// Returns the number of free bytes.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.0.free_bytes()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free_bytes(&self) -> u64 {
        self.lock().free_bytes()
    }

    /// Takes `wanted` bytes from the first free range that has room for them. Returns their offset, and the
    /// ranges among them whose pages are not zero.
    fn take(&self, wanted: u64) -> Option<(u64, Vec<Range<u64>>)> {
        let mut blocks = self.lock();
        let aligned = |at| self.next_start(self.next_huge_page(at), wanted);
        let found = if wanted < HUGE_PAGE_BYTES as u64 { None } else { blocks.take(wanted, aligned) };
        found.or_else(|| blocks.take(wanted, |at| self.next_start(at, wanted)))
    }

    /// Returns the first offset at or after `at` where a huge page may begin.
    fn next_huge_page(&self, at: u64) -> u64 {
        let start = self.start as u64;
        (start + at).next_multiple_of(HUGE_PAGE_BYTES as u64) - start
    }

    /// Makes huge pages for a taken range, as far as it consists of them and the system can.
    fn make_huge(&self, offset: u64, len: u64) {
        let in_mapping = self.start as usize - self.mapping.as_ptr() as usize;
        let first = self.next_huge_page(offset);
        let pages = (offset + len).saturating_sub(first) as usize / HUGE_PAGE_BYTES;
        if pages > 0 {
            let start = in_mapping + first as usize;
            self.mapping.make_huge(start..start + pages * HUGE_PAGE_BYTES, self.object.is_some());
        }
    }

    /// Zeroes the parts of ranges below `end`.
    fn zero(&self, ranges: &[Range<u64>], end: u64) {
        for range in ranges.iter().filter(|range| range.start < end) {
            let bytes = range.end.min(end) - range.start;
            // SAFETY: the range is part of a buffer that was just taken from the free list; no other code
            // uses it.
            unsafe { self.start.add(range.start as usize).write_bytes(0, bytes as usize) };
        }
    }

    /// Returns the first offset at or after `at` where a buffer of `wanted` bytes may begin.
    fn next_start(&self, at: u64, wanted: u64) -> u64 {
        let Some(boundary) = self.boundary else { return at };
        let base = self.start as u64;
        let to_boundary = (base + at).next_multiple_of(boundary) - (base + at);
        if to_boundary == 0 || wanted <= to_boundary { at } else { at + to_boundary }
    }

    /// Takes the range of a freed buffer back.
    fn give(&self, offset: u64, len: u64) {
        if !self.lock().keep(offset, len) {
            self.discard(offset, len);
        }
    }

    /// Makes a taken range free, without its pages.
    fn discard(&self, offset: u64, len: u64) {
        self.release(offset, len);
        self.lock().forget(offset, len);
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

    /// Returns the pages to the system; they read as zero afterwards.
    fn release(&self, offset: u64, len: u64) {
        #[cfg(target_os = "linux")]
        if let Some(object) = &self.object {
            let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            if rustix::fs::fallocate(object.as_fd(), flags, self.object_start + offset, len).is_ok() {
                return;
            }
        }
        // SAFETY: the range is `len` bytes of the slab that its owner has just given up; no other code uses
        // it.
        unsafe {
            let start = self.start.add(offset as usize);
            #[cfg(all(target_os = "linux", not(miri)))]
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
    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        debug_assert!(self.offset as usize + self.len <= self.slab.mapping.len());
        self.slab.start.wrapping_add(self.offset as usize)
    }

    /// Returns the bytes for reading.
    #[must_use]
    pub fn span(&self) -> Span<'_> {
        // SAFETY: the range belongs to this buffer and stays mapped while it lives.
        unsafe { Span::new(self.as_ptr(), self.len) }
    }

    /// Returns the bytes for reading and writing.
    #[must_use]
    pub fn span_mut(&mut self) -> SpanMut<'_> {
        // SAFETY: as for `span`; the exclusive borrow rules out references.
        unsafe { SpanMut::new(self.as_ptr(), self.len) }
    }

    /// Returns the bytes as a slice.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the range belongs to this buffer, is initialized (pages start zeroed), and only its owner
        // writes to it: peers read registered memory and never write it.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }

    /// Returns the bytes as a mutable slice.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as for `as_slice`, and the borrow is exclusive. Peers read only while an operation is in
        // progress, which holds this borrow.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len) }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if !self.slab.mapping.origin().is_here() {
            return;
        }
        let len = (self.len as u64).max(1).next_multiple_of(Slab::BLOCK_BYTES);
        self.slab.give(self.offset, len);
    }
}

#[cfg(test)]
mod tests;
