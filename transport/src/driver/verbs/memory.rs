//! The slab as devices see it: segments that are registered with every device, and where in them something lies.
//!
//! The slab is registered in segments, because a device maps only so much at a time, some refuse regions that cross a
//! 4 GiB line, and where registration may come late only those segments are registered that are used. Neighbouring
//! segments overlap by a piece, so every piece lies in one segment wherever it begins. No buffer crosses a 4 GiB line,
//! so that no piece does.
//!
//! # Safety
//! Addresses are those of the slab's part of a mapping, with offsets checked against its length; the mapping lives as long as
//! the [`Memory`], and regions are dropped before it. Or they are those of lent memory, which its owner keeps where it is
//! until it is taken back, when its regions end; places in it come from [`super::lent`] only.

use super::lent::LENT;
use crate::{
    TransportError,
    memory::{Mapping, Slab, Span},
    verbs::{Access, Domain, LocalRun, Region, RemoteRun},
};
use std::{collections::BTreeMap, sync::Arc};

/// Address lines that no region may cross on devices that keep 32 bits of addresses.
pub(in crate::driver) const LINE: usize = 1 << 32;

/// The slab, and how it is divided.
#[derive(Clone, Debug)]
pub(super) struct Memory(Arc<Division>);

#[derive(Debug)]
struct Division {
    _mapping: Arc<Mapping>,
    start: usize,
    len: usize,
    segment_bytes: usize,
    /// The largest run.
    overlap: usize,
}

/// Bytes of the slab, with the key of their segment on one device.
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
    /// Divides a slab; no run of it will be longer than `overlap`.
    pub(super) fn new(slab: &Slab, segment_bytes: usize, overlap: usize) -> Memory {
        let (mapping, start, len) = slab.extent();
        let (mapping, start) = (Arc::clone(mapping), start as usize);
        Memory(Arc::new(Division { _mapping: mapping, start, len, segment_bytes, overlap }))
    }

    /// Where in the slab this memory lies, if it does.
    #[inline]
    pub(super) fn locate(&self, start: *const u8, len: usize) -> Option<usize> {
        let at = (start as usize).wrapping_sub(self.0.start);
        (at <= self.0.len && len <= self.0.len - at).then_some(at)
    }

    /// The address of a place in the slab, or in lent memory.
    #[inline]
    pub(super) fn address(&self, offset: usize) -> *mut u8 {
        if offset & LENT != 0 {
            return (offset & !LENT) as *mut u8;
        }
        debug_assert!(offset <= self.0.len);
        (self.0.start + offset) as *mut u8
    }

    fn check(&self, offset: usize, len: usize) {
        if offset & LENT != 0 {
            return;
        }
        assert!(offset <= self.0.len && len <= self.0.len - offset, "{offset}+{len} is outside of the slab");
    }

    /// Bytes that a completed receive has put there.
    #[inline]
    pub(super) fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        self.check(offset, len);
        // SAFETY: inside of the mapping, which starts zeroed, or of lent memory. The receive that wrote here is complete and the next
        // one is posted only by who holds the endpoint's lock, as the caller does.
        unsafe { std::slice::from_raw_parts(self.address(offset), len) }
    }

    /// Bytes for the runtime to read.
    #[inline]
    pub(super) fn span(&self, offset: usize, len: usize) -> Span<'_> {
        self.check(offset, len);
        // SAFETY: inside of the mapping, which lives as long as `self`, or of lent memory.
        unsafe { Span::new(self.address(offset), len) }
    }

    /// Copies bytes to a place in the slab.
    #[inline]
    pub(super) fn put(&self, offset: usize, bytes: Span<'_>) {
        self.check(offset, bytes.len());
        // SAFETY: the target is inside of the mapping, the source as long as the span says. A device may be reading the
        // target only if its owner broke the protocol's rule of waiting for the acknowledgement, and these are bytes.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.address(offset), bytes.len()) };
    }

    /// How many segments there are.
    pub(super) fn segments(&self) -> usize {
        self.0.len.div_ceil(self.0.segment_bytes)
    }

    fn segment_of(&self, offset: usize) -> usize {
        offset / self.0.segment_bytes
    }

    /// Where a segment begins, and its length with the overlap; cut at a 4 GiB line.
    fn segment(&self, index: usize) -> (usize, usize) {
        let start = index * self.0.segment_bytes;
        let end = (start + self.0.segment_bytes + self.0.overlap).min(self.0.len);
        let address = self.0.start + start;
        let line = (address / LINE + 1) * LINE - self.0.start;
        (start, end.min(line) - start)
    }
}

/// The keys of the segments on one device.
#[derive(Debug)]
pub(super) struct Keys {
    domain: Domain,
    access: Access,
    regions: Vec<Option<Region>>,
    /// Of lent memory, by its first address: bytes of a segment, and the segments.
    lent: BTreeMap<usize, (usize, Vec<Region>)>,
    memory: Memory,
}

impl Keys {
    /// No segment is registered yet.
    pub(super) fn new(domain: Domain, access: Access, memory: Memory) -> Keys {
        let regions = std::iter::repeat_with(|| None).take(memory.segments()).collect();
        Keys { domain, access, regions, lent: BTreeMap::new(), memory }
    }

    /// Registers lent memory, in segments that overlap by a piece; false when the device refuses.
    #[cold]
    pub(super) fn learn(&mut self, start: usize, len: usize, segment_bytes: usize) -> bool {
        let mut regions = Vec::new();
        for from in (0..len).step_by(segment_bytes) {
            let run = (segment_bytes + self.memory.0.overlap).min(len - from);
            // SAFETY: its owner keeps it where it is until it is taken back, and `forget` is called.
            match unsafe { self.domain.register((start + from) as *mut u8, run, self.access) } {
                Ok(region) => regions.push(region),
                Err(_) => return false,
            }
        }
        self.lent.insert(start, (segment_bytes, regions));
        true
    }

    /// Ends the registration of lent memory, if it is registered.
    #[cold]
    pub(super) fn forget(&mut self, start: usize) {
        self.lent.remove(&start);
    }

    fn lent_region(&self, address: usize) -> &Region {
        let (start, (segment_bytes, regions)) =
            self.lent.range(..=address).next_back().expect("what is located is registered");
        &regions[(address - start) / segment_bytes]
    }

    /// Registers all segments: where a queue pair knows only those that came before it.
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
        if offset & LENT != 0 {
            return Ok(self.lent_region(offset & !LENT));
        }
        let index = self.memory.segment_of(offset);
        if self.regions[index].is_none() {
            self.register(index)?;
        }
        Ok(self.regions[index].as_ref().expect("registered above"))
    }

    /// A run for the device to work on.
    #[inline]
    pub(super) fn run(&mut self, offset: usize, len: usize) -> Result<Run, TransportError> {
        self.memory.check(offset, len);
        let start = self.memory.address(offset);
        let lkey = self.region(offset)?.lkey();
        Ok(Run(LocalRun { start, len: len as u32, lkey }))
    }

    /// The same place as peers address it.
    #[inline]
    pub(super) fn remote(&mut self, offset: usize) -> Result<RemoteRun, TransportError> {
        let address = self.memory.address(offset) as u64;
        Ok(RemoteRun { address, rkey: self.region(offset)?.rkey() })
    }
}
