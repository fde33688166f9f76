//! Copies past the caches, to memory: for bytes that this core does not read again soon.
//!
//! A store through the caches first fetches the line from memory, or from another core. A store past them
//! (non-temporal) waits for nobody and fetches nothing. Only `x86_64` has such stores here; elsewhere these
//! are plain copies.
//!
//! # Safety
//! [`Stream::copy`] writes to memory of its caller.

/// A stream of copies. Stores that follow its end come after all of them.
#[derive(Debug)]
pub(crate) struct Stream(());

impl Stream {
    /// Whether copies go past the caches on this processor.
    pub(crate) const GOES_PAST: bool = cfg!(all(target_arch = "x86_64", not(miri)));
    /// Bytes of the parts that are stored at a time.
    const PART: usize = 16;
    /// Bytes of a cache line.
    const LINE: usize = 64;

    /// Begins a stream.
    #[inline]
    pub(crate) fn begin() -> Stream {
        Stream(())
    }

    /// Copies `len` bytes.
    ///
    /// # Safety
    /// `source` must be readable and `target` writable for `len` bytes, and they must not overlap.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    pub(crate) unsafe fn copy(&mut self, target: *mut u8, source: *const u8, len: usize) {
        use std::{
            arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128},
            ptr,
        };
        let head = target.align_offset(Self::LINE).min(len);
        let whole = (len - head) - (len - head) % Self::LINE;
        let end = head + whole;
        // SAFETY: all accesses are inside the `len` bytes that the caller vouches for. `target + head` is
        // aligned to a line, and so are the parts behind it to 16 bytes. The instructions are part of every
        // x86_64 processor.
        unsafe {
            ptr::copy_nonoverlapping(source, target, head);
            for at in (head..end).step_by(Self::PART) {
                let part = _mm_loadu_si128(source.add(at).cast::<__m128i>());
                _mm_stream_si128(target.add(at).cast::<__m128i>(), part);
            }
            ptr::copy_nonoverlapping(source.add(end), target.add(end), len - end);
        }
    }

    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    pub(crate) unsafe fn copy(&mut self, target: *mut u8, source: *const u8, len: usize) {
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { std::ptr::copy_nonoverlapping(source, target, len) };
    }
}

impl Drop for Stream {
    #[inline]
    fn drop(&mut self) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the fence orders the stores of the stream, which are not ordered otherwise, before all
        // later ones. Every x86_64 processor has it.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streamed_bytes_are_those_of_the_source_and_no_others_are_written() {
        let source: Vec<u8> = (0..40_000u32).map(|i| (i % 251) as u8).collect();
        for len in [0, 1, 15, 63, 64, 65, 127, 1024, 4095, 4096, 32_768, 39_900] {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (8, 63), (5, 65)] {
                let mut target = vec![0xee_u8; 40_200];
                // SAFETY: both are longer than `len` from their offsets on, and are vectors of their own.
                unsafe {
                    let mut stream = Stream::begin();
                    stream.copy(target.as_mut_ptr().add(to), source.as_ptr().add(from), len);
                }
                assert_eq!(target[to..to + len], source[from..from + len]);
                assert!(target[..to].iter().chain(&target[to + len..]).all(|byte| *byte == 0xee));
            }
        }
    }
}
