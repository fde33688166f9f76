//! Slab as devices see it: segments that are registered with every device, and offsets in them.
//!
//! The slab is registered in segments, because a device maps a limited number of bytes at a time, and some
//! devices refuse regions that cross a 4 GiB line. With late registration, only segments in use are
//! registered. Adjacent segments overlap by a piece, so every piece lies in one segment regardless of its
//! offset. No buffer crosses a 4 GiB line, so no piece does.
//!
//! # Safety
//! Addresses in the slab lie in its part of a mapping, with offsets checked against its length. The mapping
//! lives as long as the [`Memory`], and regions are dropped before it. Addresses in user memory belong to an
//! owner who keeps the memory in place until it is taken back, which ends its regions. Offsets in user memory
//! come from [`super::lent`] only.

use super::checksum;
use crate::{
    TransportError,
    memory::{Mapping, Slab, Span},
    verbs::{Access, Domain, LocalRun, Region, RemoteRun},
};
use std::{collections::BTreeMap, sync::Arc};

/// Bytes between the address boundaries that no region may cross, on devices that keep 32 bits of addresses.
pub(in crate::driver) const LINE: usize = 1 << 32;

/// Bit that marks an offset as one in user memory.
pub(super) const USER_MEMORY_BIT: usize = 1 << (usize::BITS - 1);

/// Slab, divided into segments.
#[derive(Clone, Debug)]
pub(super) struct Memory(Arc<Segmentation>);

#[derive(Debug)]
struct Segmentation {
    _mapping: Arc<Mapping>,
    start: usize,
    len: usize,
    segment_bytes: usize,
    /// Base-2 logarithm of `segment_bytes`.
    segment_shift: u32,
    /// Maximum bytes of a run, by which adjacent segments overlap.
    overlap: usize,
}

/// Bytes of the slab or of user memory, with the key of their segment on one device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run(LocalRun);

impl Run {
    #[inline]
    pub(super) fn local(self) -> LocalRun {
        self.0
    }

    #[inline]
    pub(super) fn len(self) -> usize {
        self.0.len as usize
    }
}

impl Memory {
    /// Divides a slab into segments. No run may be longer than `overlap`.
    pub(super) fn new(slab: &Slab, segment_bytes: usize, overlap: usize) -> Memory {
        let (mapping, start, len) = slab.extent();
        let (mapping, start) = (Arc::clone(mapping), start as usize);
        assert!(segment_bytes.is_power_of_two(), "segments of {segment_bytes} bytes");
        let segment_shift = segment_bytes.trailing_zeros();
        Memory(Arc::new(Segmentation {
            _mapping: mapping,
            start,
            len,
            segment_bytes,
            segment_shift,
            overlap,
        }))
    }

    /// Returns the offset of memory that lies completely in the slab.
    #[inline]
    pub(super) fn locate(&self, start: *const u8, len: usize) -> Option<usize> {
        let offset = (start as usize).wrapping_sub(self.0.start);
        (offset <= self.0.len && len <= self.0.len - offset).then_some(offset)
    }

    /// Returns the address of an offset in the slab or in user memory.
    #[inline]
    pub(super) fn address(&self, offset: usize) -> *mut u8 {
        if offset & USER_MEMORY_BIT != 0 {
            return (offset & !USER_MEMORY_BIT) as *mut u8;
        }
        debug_assert!(offset <= self.0.len);
        (self.0.start + offset) as *mut u8
    }

    #[inline]
    fn check(&self, offset: usize, len: usize) {
        if offset & USER_MEMORY_BIT != 0 {
            return;
        }
        assert!(offset <= self.0.len && len <= self.0.len - offset, "{offset}+{len} is outside of the slab");
    }

    /// Returns bytes that a completed receive has written.
    #[inline]
    pub(super) fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        self.check(offset, len);
        // SAFETY: the bytes lie in the mapping, which starts zeroed, or in user memory. The receive that
        // wrote them is complete. The next receive is posted only by a holder of the endpoint's lock, and the
        // caller holds it.
        unsafe { std::slice::from_raw_parts(self.address(offset), len) }
    }

    /// Reads a value at an offset, which need not be aligned.
    #[inline]
    pub(super) fn read<T: bytemuck::Pod>(&self, offset: usize) -> T {
        bytemuck::pod_read_unaligned(self.bytes(offset, size_of::<T>()))
    }

    /// Returns bytes for the runtime to read.
    #[inline]
    pub(super) fn span(&self, offset: usize, len: usize) -> Span<'_> {
        self.check(offset, len);
        // SAFETY: the bytes lie in the mapping, which lives as long as `self`, or in user memory.
        unsafe { Span::new(self.address(offset), len) }
    }

    /// Writes a message to an offset in the slab: the words of a header, one by one, and its payload behind
    /// them.
    #[inline(always)]
    pub(super) fn put_message<const WORDS: usize>(
        &self,
        offset: usize,
        header: [u64; WORDS],
        payload: Span<'_>,
    ) {
        self.check(offset, size_of_val(&header) + payload.len());
        let start = self.address(offset);
        for (index, word) in header.into_iter().enumerate() {
            // SAFETY: as for `put`; the check covers the header and the payload.
            unsafe { start.add(index * size_of::<u64>()).cast::<u64>().write_unaligned(word) };
        }
        // SAFETY: likewise.
        unsafe { std::ptr::copy(payload.as_ptr(), start.add(size_of_val(&header)), payload.len()) };
    }

    /// Copies bytes to an offset in the slab.
    #[inline]
    pub(super) fn put(&self, offset: usize, bytes: Span<'_>) {
        self.check(offset, bytes.len());
        // SAFETY: the target lies in the mapping, and the source is as long as its span states. A device can
        // read the target at the same time only if the target's owner violated the protocol's rule to wait
        // for the acknowledgement, and the data are plain bytes.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.address(offset), bytes.len()) };
    }

    /// Copies bytes to an offset in the slab, and returns the checksum of what was written.
    #[inline]
    pub(super) fn put_summed(&self, offset: usize, bytes: Span<'_>) -> u32 {
        self.check(offset, bytes.len());
        // SAFETY: as for `put`.
        unsafe { checksum::copy(bytes, self.address(offset)) }
    }

    /// Writes a value to an offset in the slab, which need not be aligned.
    #[inline]
    pub(super) fn write<T: bytemuck::Pod>(&self, offset: usize, value: T) {
        self.check(offset, size_of::<T>());
        // SAFETY: as for `put`.
        unsafe { self.address(offset).cast::<T>().write_unaligned(value) };
    }

    /// Returns the number of segments.
    pub(super) fn segments(&self) -> usize {
        self.0.len.div_ceil(self.0.segment_bytes)
    }

    #[inline]
    fn segment_of(&self, offset: usize) -> usize {
        offset >> self.0.segment_shift
    }

    /// Returns the offset of a segment, and its length with the overlap. A 4 GiB line ends the segment.
    fn segment(&self, index: usize) -> (usize, usize) {
        let start = index * self.0.segment_bytes;
        let end = (start + self.0.segment_bytes + self.0.overlap).min(self.0.len);
        let address = self.0.start + start;
        let line = (address / LINE + 1) * LINE - self.0.start;
        (start, end.min(line) - start)
    }
}

/// Regions and keys of all memory on one device.
#[derive(Debug)]
pub(super) struct DeviceKeys {
    domain: Domain,
    access: Access,
    regions: Vec<Option<Region>>,
    /// Regions of user memory by its first address, with the bytes of a segment.
    user_regions: BTreeMap<usize, (usize, Vec<Region>)>,
    memory: Memory,
}

impl DeviceKeys {
    /// Creates the keys of a device, with no segment registered.
    pub(super) fn new(domain: Domain, access: Access, memory: Memory) -> DeviceKeys {
        let regions = std::iter::repeat_with(|| None).take(memory.segments()).collect();
        DeviceKeys { domain, access, regions, user_regions: BTreeMap::new(), memory }
    }

    /// Registers user memory in segments that overlap by a piece. Returns false if the device refuses.
    #[cold]
    pub(super) fn register_user_memory(&mut self, start: usize, len: usize, segment_bytes: usize) -> bool {
        let mut regions = Vec::new();
        for from in (0..len).step_by(segment_bytes) {
            let run = (segment_bytes + self.memory.0.overlap).min(len - from);
            // SAFETY: the owner keeps the memory in place until it is taken back, which calls `deregister`.
            match unsafe { self.domain.register((start + from) as *mut u8, run, self.access) } {
                Ok(region) => regions.push(region),
                Err(_) => return false,
            }
        }
        self.user_regions.insert(start, (segment_bytes, regions));
        true
    }

    /// Ends the registration of user memory, if it is registered.
    #[cold]
    pub(super) fn deregister(&mut self, start: usize) {
        self.user_regions.remove(&start);
    }

    fn user_region(&self, address: usize) -> &Region {
        let (start, (segment_bytes, regions)) =
            self.user_regions.range(..=address).next_back().expect("located memory is registered");
        &regions[(address - start) / segment_bytes]
    }

    /// Registers all segments.
    ///
    /// Needed on devices where a connected queue pair can't use memory that is registered later.
    pub(super) fn register_all(&mut self) -> Result<(), TransportError> {
        (0..self.regions.len()).try_for_each(|index| self.register(index).map(drop))
    }

    #[cold]
    fn register(&mut self, index: usize) -> Result<&Region, TransportError> {
        let (offset, len) = self.memory.segment(index);
        // SAFETY: the slab stays mapped while `memory` lives, which is dropped after the regions.
        let region = unsafe { self.domain.register(self.memory.address(offset), len, self.access) }?;
        Ok(self.regions[index].insert(region))
    }

    #[inline]
    fn region(&mut self, offset: usize) -> Result<&Region, TransportError> {
        if offset & USER_MEMORY_BIT != 0 {
            return Ok(self.user_region(offset & !USER_MEMORY_BIT));
        }
        let index = self.memory.segment_of(offset);
        if self.regions[index].is_none() {
            self.register(index)?;
        }
        Ok(self.regions[index].as_ref().expect("registered above"))
    }

    /// Returns a run for the device to work on. Registers the segment if it is not registered yet.
    #[inline(always)]
    pub(super) fn run(&mut self, offset: usize, len: usize) -> Result<Run, TransportError> {
        self.memory.check(offset, len);
        let start = self.memory.address(offset);
        let lkey = self.region(offset)?.lkey();
        Ok(Run(LocalRun { start, len: len as u32, lkey }))
    }

    /// Returns the address and key of an offset, for use by peers.
    #[inline]
    pub(super) fn remote(&mut self, offset: usize) -> Result<RemoteRun, TransportError> {
        let address = self.memory.address(offset) as u64;
        Ok(RemoteRun { address, rkey: self.region(offset)?.rkey() })
    }
}
