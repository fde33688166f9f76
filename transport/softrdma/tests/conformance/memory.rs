//! Memory to register: whole anonymous pages, which programs can share with peers.
//!
//! # Safety
//! The pages exist until the object is dropped, registrations keep it alive, and every access is checked
//! against their number. Peers write to the pages at any time, so all accesses are volatile, through raw
//! pointers.

use std::{
    ffi::c_void,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Acquire},
    },
};
use verbs_sys::Sge;

pub(crate) const PAGE: usize = 4096;

/// Zeroed anonymous pages.
#[derive(Debug)]
pub(crate) struct Memory {
    start: *mut u8,
    len: usize,
}

// SAFETY: all accesses are raw and volatile, and race no worse than a peer's.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn new(len: usize) -> Arc<Memory> {
        Memory::map(0, len, 0).expect("memory for a test")
    }

    /// Maps pages at an unused address; returns `None` if something is mapped there.
    pub(crate) fn at(address: u64, len: usize) -> Option<Arc<Memory>> {
        Memory::map(address, len, libc::MAP_FIXED_NOREPLACE)
    }

    fn map(address: u64, len: usize, flags: i32) -> Option<Arc<Memory>> {
        let len = len.next_multiple_of(PAGE);
        let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: maps new pages, which replace none.
        let start = unsafe { libc::mmap(address as *mut c_void, len, rights, flags, -1, 0) };
        (start != libc::MAP_FAILED).then(|| Arc::new(Memory { start: start.cast(), len }))
    }

    pub(crate) fn address(&self) -> u64 {
        self.start as u64
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes that are resident in memory.
    pub(crate) fn resident(&self) -> usize {
        let mut pages = vec![0u8; self.len / PAGE];
        // SAFETY: the vector has a byte for each page, or for each part of a larger page of the system.
        assert_eq!(unsafe { libc::mincore(self.start.cast(), self.len, pages.as_mut_ptr()) }, 0);
        pages.iter().filter(|&&page| page & 1 != 0).count() * PAGE
    }

    /// Whether all pages are shared with other processes.
    pub(crate) fn is_shared(&self) -> bool {
        let list = std::fs::read_to_string("/proc/self/maps").expect("a list");
        let is_over = |line: &&str| {
            let (start, end) =
                line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
            let number = |text| u64::from_str_radix(text, 16).expect("a number");
            number(start) < self.address() + self.len as u64 && number(end) > self.address()
        };
        list.lines().filter(is_over).all(|line| line.contains(" rw-s "))
    }

    fn byte(&self, index: usize) -> *mut u8 {
        assert!(index < self.len);
        self.start.wrapping_add(index)
    }

    pub(crate) fn get(&self, index: usize) -> u8 {
        // SAFETY: within the pages.
        unsafe { ptr::read_volatile(self.byte(index)) }
    }

    pub(crate) fn set(&self, index: usize, value: u8) {
        // SAFETY: within the pages.
        unsafe { ptr::write_volatile(self.byte(index), value) }
    }

    pub(crate) fn fill(&self, start: usize, len: usize, value: u8) {
        if len > 0 {
            let _ = self.byte(start + len - 1);
            // SAFETY: within the pages, checked.
            unsafe { ptr::write_bytes(self.start.wrapping_add(start), value, len) };
        }
    }

    /// Writes bytes that differ from their neighbors and between seeds.
    pub(crate) fn pattern(&self, start: usize, len: usize, seed: u8) {
        (0..len).for_each(|at| self.set(start + at, seed.wrapping_add((at * 7) as u8)));
    }

    /// Whether the bytes are those of [`Memory::pattern`].
    pub(crate) fn has_pattern(&self, start: usize, len: usize, seed: u8) -> bool {
        (0..len).all(|at| self.get(start + at) == seed.wrapping_add((at * 7) as u8))
    }

    pub(crate) fn has_only(&self, start: usize, len: usize, value: u8) -> bool {
        (start..start + len).all(|at| self.get(at) == value)
    }

    pub(crate) fn word(&self, start: usize) -> u64 {
        u64::from_ne_bytes(std::array::from_fn(|at| self.get(start + at)))
    }

    /// Reads an aligned word of 8 bytes atomically, before all later reads.
    pub(crate) fn aligned_word(&self, start: usize) -> u64 {
        assert!(start.is_multiple_of(8) && start + 8 <= self.len);
        // SAFETY: within the pages, and aligned.
        let word = unsafe { AtomicU64::from_ptr(self.byte(start).cast()) };
        word.load(Acquire)
    }

    pub(crate) fn set_word(&self, start: usize, value: u64) {
        value.to_ne_bytes().iter().enumerate().for_each(|(at, byte)| self.set(start + at, *byte));
    }

    /// Returns a scatter/gather element.
    pub(crate) fn sge(&self, start: usize, len: usize, lkey: u32) -> Sge {
        Sge { addr: self.address() + start as u64, length: len as u32, lkey }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the pages belong to this object, and no other reference remains.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}
