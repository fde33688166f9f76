//! Memory to register: whole pages of its own, as programs that can share them with peers allocate it.
//!
//! # Safety
//! The pages are there until the object is dropped, registrations keep it alive, and every access is checked against
//! their number. Peers write to them at any time, so they are only accessed through raw pointers, volatile.

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

/// Anonymous pages, zeroed.
#[derive(Debug)]
pub(crate) struct Memory {
    start: *mut u8,
    len: usize,
}

// SAFETY: only raw volatile accesses, which race no worse than a peer's do.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn new(len: usize) -> Arc<Memory> {
        Memory::map(0, len, 0).expect("memory for a test")
    }

    /// At an address where nothing is yet; `None` when something is.
    pub(crate) fn at(address: u64, len: usize) -> Option<Arc<Memory>> {
        Memory::map(address, len, libc::MAP_FIXED_NOREPLACE)
    }

    fn map(address: u64, len: usize, flags: i32) -> Option<Arc<Memory>> {
        let len = len.next_multiple_of(PAGE);
        let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new pages, which replace none.
        let start = unsafe { libc::mmap(address as *mut c_void, len, rights, flags, -1, 0) };
        (start != libc::MAP_FAILED).then(|| Arc::new(Memory { start: start.cast(), len }))
    }

    pub(crate) fn address(&self) -> u64 {
        self.start as u64
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of it that are in memory.
    pub(crate) fn resident(&self) -> usize {
        let mut pages = vec![0u8; self.len / PAGE];
        // SAFETY: a byte for each of our pages, or of what the system's larger ones have in their place.
        assert_eq!(unsafe { libc::mincore(self.start.cast(), self.len, pages.as_mut_ptr()) }, 0);
        pages.iter().filter(|&&page| page & 1 != 0).count() * PAGE
    }

    /// Is all of it shared with others?
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

    /// Writes bytes that differ from their neighbours and between seeds.
    pub(crate) fn pattern(&self, start: usize, len: usize, seed: u8) {
        (0..len).for_each(|at| self.set(start + at, seed.wrapping_add((at * 7) as u8)));
    }

    /// Are these the bytes of [`Memory::pattern`]?
    pub(crate) fn has_pattern(&self, start: usize, len: usize, seed: u8) -> bool {
        (0..len).all(|at| self.get(start + at) == seed.wrapping_add((at * 7) as u8))
    }

    pub(crate) fn has_only(&self, start: usize, len: usize, value: u8) -> bool {
        (start..start + len).all(|at| self.get(at) == value)
    }

    pub(crate) fn word(&self, start: usize) -> u64 {
        u64::from_ne_bytes(std::array::from_fn(|at| self.get(start + at)))
    }

    /// A word at a multiple of 8 bytes, read at once, and before whatever is read later.
    pub(crate) fn aligned_word(&self, start: usize) -> u64 {
        assert!(start.is_multiple_of(8) && start + 8 <= self.len);
        // SAFETY: within the pages, and aligned.
        let word = unsafe { AtomicU64::from_ptr(self.byte(start).cast()) };
        word.load(Acquire)
    }

    pub(crate) fn set_word(&self, start: usize, value: u64) {
        value.to_ne_bytes().iter().enumerate().for_each(|(at, byte)| self.set(start + at, *byte));
    }

    /// A run of it, for a request.
    pub(crate) fn sge(&self, start: usize, len: usize, lkey: u32) -> Sge {
        Sge { addr: self.address() + start as u64, length: len as u32, lkey }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our pages, which nobody can name any more.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}
