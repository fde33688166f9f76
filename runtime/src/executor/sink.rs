//! Sinks of received messages: memory, or a reduction.
//!
//! # Safety
//! Kernels take addresses; here they come from spans, whose bytes are accessible, at offsets that are
//! multiples of the element size, because links cut messages at multiples of a cache line.

use crate::kernels::{Reducer, Threads};
use transport::{
    Sink,
    memory::{Span, SpanMut},
};

/// Copies a message to its destination.
pub(crate) struct CopySink<'a>(pub(crate) SpanMut<'a>);

impl Sink for CopySink<'_> {
    #[inline]
    fn write(&mut self, offset: usize, data: Span<'_>) {
        self.0.sub(offset, data.len()).copy_from(data);
    }

    #[inline]
    fn destination(&mut self) -> Option<SpanMut<'_>> {
        Some(self.0)
    }
}

/// The reduction of a step, and whether its result is complete.
#[derive(Clone, Copy)]
pub(crate) struct Combine<'r> {
    pub(crate) reducer: &'r Reducer,
    pub(crate) elem_bytes: usize,
    pub(crate) threads: Threads,
    /// `Some(ranks)` when the result is complete.
    pub(crate) last: Option<u32>,
}

impl Combine<'_> {
    /// Computes `dst = a ⊕ b`. All have the same length; `dst` equals `a` or `b`, or is disjoint from both.
    #[inline]
    pub(crate) fn apply(&self, dst: SpanMut<'_>, a: Span<'_>, b: Span<'_>) {
        assert!(dst.len() == a.len() && dst.len() == b.len(), "operands of different lengths");
        let count = dst.len() / self.elem_bytes;
        // SAFETY: the spans hold `count` accessible elements each. The plan's verifier admits only steps
        // whose destination equals an operand or is disjoint from both. A message's bytes are in no buffer of
        // this rank, but in the link's memory or a peer's.
        unsafe {
            self.reducer.reduce_parallel(
                self.threads,
                dst.as_mut_ptr(),
                a.as_ptr(),
                b.as_ptr(),
                count,
                self.last,
            );
        }
    }
}

/// Combines a message with a local operand.
pub(crate) struct ReduceSink<'a, 'r> {
    pub(crate) combine: Combine<'r>,
    pub(crate) local: Span<'a>,
    pub(crate) dst: SpanMut<'a>,
}

impl Sink for ReduceSink<'_, '_> {
    #[inline]
    fn write(&mut self, offset: usize, data: Span<'_>) {
        let len = data.len();
        self.combine.apply(self.dst.sub(offset, len), self.local.sub(offset, len), data);
    }

    fn destination(&mut self) -> Option<SpanMut<'_>> {
        None
    }
}

/// Takes a message without bytes, where there is nothing to combine.
pub(super) struct EmptySink;

impl Sink for EmptySink {
    fn write(&mut self, _offset: usize, data: Span<'_>) {
        debug_assert!(data.is_empty(), "bytes for a step that has none");
    }

    fn destination(&mut self) -> Option<SpanMut<'_>> {
        None
    }
}
