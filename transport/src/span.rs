//! Ranges of bytes in any memory, by address.
//!
//! A collective works on memory that may alias (in-place calls) and that a peer may read at the same time, so
//! references to slices would promise too much. Spans promise only that the bytes can be accessed.
//!
//! # Safety
//! The caller of [`Span::new`] or [`SpanMut::new`] promises that all bytes stay readable (and writable) for
//! the span's lifetime. For a span made from a slice, the borrow gives the promise. Sub-spans are checked
//! against the length. Everything else here is safe because of that promise.

use crate::streaming::Stream;
use std::{marker::PhantomData, ptr};

/// Bytes that may be read during `'a`; others may write them meanwhile, in the order of the schedule.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    start: *const u8,
    len: usize,
    lives: PhantomData<&'a ()>,
}

/// Bytes that may be read and written during `'a`; others may read them meanwhile, in the order of the
/// schedule.
#[derive(Clone, Copy, Debug)]
pub struct SpanMut<'a> {
    start: *mut u8,
    len: usize,
    lives: PhantomData<&'a ()>,
}

// SAFETY: a span is an address and a length. The promise made when the span was created allows access to the
// bytes from every thread.
unsafe impl Send for Span<'_> {}
// SAFETY: as for `Span`.
unsafe impl Send for SpanMut<'_> {}

/// Ends a use of bytes outside of a span. It takes its arguments in registers, where those of a formatting
/// macro are stored before the check.
#[cold]
#[inline(never)]
fn outside(span: usize, offset: usize, len: usize) -> ! {
    panic!("span of {span} bytes: {offset}+{len}");
}

impl<'a> Span<'a> {
    /// Returns the span of `len` bytes from `start` on.
    ///
    /// # Safety
    /// The bytes must stay readable during `'a` (`start` may be anything when `len` is 0).
    #[must_use]
    pub unsafe fn new(start: *const u8, len: usize) -> Span<'a> {
        Span { start, len, lives: PhantomData }
    }

    /// Returns an empty span.
    #[must_use]
    pub fn empty() -> Span<'a> {
        Span { start: ptr::dangling(), len: 0, lives: PhantomData }
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn as_ptr(self) -> *const u8 {
        self.start
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether the span has no bytes.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns the `len` bytes from `offset` on.
    ///
    /// # Panics
    /// If these bytes are not all inside the span.
    #[must_use]
    #[inline]
    pub fn sub(self, offset: usize, len: usize) -> Span<'a> {
        if offset > self.len || len > self.len - offset {
            outside(self.len, offset, len);
        }
        Span { start: self.start.wrapping_add(offset), len, lives: PhantomData }
    }
}

impl<'a> SpanMut<'a> {
    /// Whether [`SpanMut::stream_from`] goes past the caches on this processor.
    pub const CAN_STREAM: bool = Stream::GOES_PAST;

    /// Returns the span of `len` bytes from `start` on.
    ///
    /// # Safety
    /// The bytes must stay readable and writable during `'a` (`start` may be anything when `len` is 0), and
    /// no reference to any of them may be used during `'a`.
    #[must_use]
    pub unsafe fn new(start: *mut u8, len: usize) -> SpanMut<'a> {
        SpanMut { start, len, lives: PhantomData }
    }

    /// Returns an empty span.
    #[must_use]
    pub fn empty() -> SpanMut<'a> {
        SpanMut { start: ptr::dangling_mut(), len: 0, lives: PhantomData }
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn as_mut_ptr(self) -> *mut u8 {
        self.start
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether the span has no bytes.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns the same bytes, for reading.
    #[must_use]
    pub fn as_span(self) -> Span<'a> {
        Span { start: self.start, len: self.len, lives: PhantomData }
    }

    /// Returns the `len` bytes from `offset` on.
    ///
    /// # Panics
    /// If these bytes are not all inside the span.
    #[must_use]
    #[inline]
    pub fn sub(self, offset: usize, len: usize) -> SpanMut<'a> {
        if offset > self.len || len > self.len - offset {
            outside(self.len, offset, len);
        }
        SpanMut { start: self.start.wrapping_add(offset), len, lives: PhantomData }
    }

    /// Copies `src` to this span.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub fn copy_from(self, src: Span<'_>) {
        assert_eq!(self.len, src.len, "copy between spans of different lengths");
        // SAFETY: both spans hold `len` accessible bytes; `copy` allows overlap.
        unsafe { ptr::copy(src.start, self.start, self.len) };
    }

    /// Copies `src` to this span, past the caches where the processor can and the two do not overlap.
    ///
    /// It is faster for a span that is too long to stay in the caches, and slower if the bytes are read soon.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn stream_from(self, src: Span<'_>) {
        assert_eq!(self.len, src.len, "copy between spans of different lengths");
        let apart = (self.start as usize).abs_diff(src.start as usize);
        if apart < self.len {
            self.copy_from(src);
        } else {
            // SAFETY: both spans hold `len` accessible bytes, and do not overlap, as compared above.
            unsafe { Stream::begin().copy(self.start, src.start, self.len) };
        }
    }
}

impl<'a> From<&'a [u8]> for Span<'a> {
    fn from(bytes: &'a [u8]) -> Span<'a> {
        Span { start: bytes.as_ptr(), len: bytes.len(), lives: PhantomData }
    }
}

impl<'a> From<&'a mut [u8]> for SpanMut<'a> {
    fn from(bytes: &'a mut [u8]) -> SpanMut<'a> {
        SpanMut { start: bytes.as_mut_ptr(), len: bytes.len(), lives: PhantomData }
    }
}
