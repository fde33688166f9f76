//! What the micro-benchmarks share: memory to work on.
//!
//! The benchmarks themselves are in `benches/`, one file per subject: `cargo bench -p benches --bench reduce`.

use std::ptr;

/// Bytes that start on a page and have been written, so that no benchmark pays for first touches.
#[derive(Debug)]
pub struct Buffer {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Buffer {
    const PAGE: usize = 4096;

    /// So many bytes, each of them `fill`.
    #[must_use]
    pub fn new(bytes: usize, fill: u8) -> Buffer {
        let memory = vec![fill; bytes + Buffer::PAGE];
        let start = memory.as_ptr().addr().wrapping_neg() % Buffer::PAGE;
        Buffer { memory, start, bytes }
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The first byte, to read from.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        ptr::from_ref(&self.memory[self.start])
    }

    /// The first byte, to write to.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        ptr::from_mut(&mut self.memory[self.start])
    }
}
