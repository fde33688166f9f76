//! Memory that the micro-benchmarks share.
//!
//! The benchmarks are in `benches/`, one file per subject: `cargo bench -p benches --bench reduce`.

use std::ptr;

/// A page-aligned buffer whose pages are already mapped, so that no benchmark measures first touches.
#[derive(Debug)]
pub struct Buffer {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Buffer {
    const PAGE: usize = 4096;

    /// Creates a buffer of `bytes` bytes, each of them `fill`.
    #[must_use]
    pub fn new(bytes: usize, fill: u8) -> Buffer {
        let memory = vec![fill; bytes + Buffer::PAGE];
        let start = memory.as_ptr().addr().wrapping_neg() % Buffer::PAGE;
        Buffer { memory, start, bytes }
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the buffer has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns a pointer to the first byte, for reading.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        ptr::from_ref(&self.memory[self.start])
    }

    /// Returns a pointer to the first byte, for writing.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        ptr::from_mut(&mut self.memory[self.start])
    }
}
