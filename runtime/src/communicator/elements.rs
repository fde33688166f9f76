//! Elements at an address: the arguments of calls, whether made from a slice or from an address.
//!
//! # Safety
//! Elements are made from slices, whose borrow they hold, or from addresses by functions whose callers
//! guarantee the validity of the memory. Bytes from another process are made valid elements
//! ([`settle_output`]) before the borrow ends.

use crate::{
    Element,
    element::{bytes_of, bytes_of_mut, settle_as},
};
use collectives::DType;
use transport::memory::{Span, SpanMut};

/// Elements that are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elements<'m> {
    pub(super) dtype: DType,
    pub(super) count: usize,
    /// Bytes of the `count` elements.
    pub(super) bytes: Span<'m>,
}

/// Elements that are written; they may be read too.
#[derive(Clone, Copy, Debug)]
pub(super) struct ElementsMut<'m> {
    pub(super) dtype: DType,
    pub(super) count: usize,
    /// Bytes of the `count` elements.
    pub(super) bytes: SpanMut<'m>,
}

impl Elements<'_> {
    /// No elements.
    pub(super) fn none(dtype: DType) -> Self {
        Elements { dtype, count: 0, bytes: Span::empty() }
    }
}

impl ElementsMut<'_> {
    /// No elements.
    pub(super) fn none(dtype: DType) -> Self {
        ElementsMut { dtype, count: 0, bytes: SpanMut::empty() }
    }
}

impl<'m, T: Element> From<&'m [T]> for Elements<'m> {
    #[inline]
    fn from(elements: &'m [T]) -> Elements<'m> {
        Elements { dtype: T::DTYPE, count: elements.len(), bytes: Span::from(bytes_of(elements)) }
    }
}

impl<'m, T: Element> From<&'m mut [T]> for ElementsMut<'m> {
    #[inline]
    fn from(elements: &'m mut [T]) -> ElementsMut<'m> {
        let count = elements.len();
        let bytes = bytes_of_mut(elements);
        // SAFETY: the bytes are those of the slice, which is borrowed exclusively for the span's lifetime.
        let bytes = unsafe { SpanMut::new(bytes.cast(), bytes.len()) };
        ElementsMut { dtype: T::DTYPE, count, bytes }
    }
}

/// Turns the bytes that a call wrote into valid elements, whether or not the call succeeded.
#[inline]
pub(super) fn settle_output(dtype: DType, output: SpanMut<'_>) {
    if dtype != DType::Bool || output.is_empty() {
        return;
    }
    let bytes = std::ptr::slice_from_raw_parts_mut(output.as_mut_ptr(), output.len());
    // SAFETY: the span is the output of a request for elements of this type, which holds the exclusive use of
    // it; a bool may have any address.
    unsafe { settle_as(dtype, bytes) };
}

/// Turns an output into valid elements when the call ends, with success, an error or a panic.
pub(super) struct SettleOnDrop<'m> {
    pub(super) dtype: DType,
    pub(super) output: SpanMut<'m>,
}

impl Drop for SettleOnDrop<'_> {
    #[inline]
    fn drop(&mut self) {
        settle_output(self.dtype, self.output);
    }
}
