//! Sinks of received messages: memory, or a reduction.
//!
//! # Safety
//! Kernels take addresses; here they come from spans, whose bytes are accessible, at offsets that are
//! multiples of the element size, because links cut messages at multiples of a cache line.

use crate::{
    kernels::{Reducer, Threads},
    processors::Caches,
};
use transport::{
    Sink,
    memory::{Span, SpanMut},
};

/// How a result is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writes {
    /// Through the caches.
    Cached,
    /// Past them, to memory.
    Streamed,
}

impl Writes {
    /// Returns how a result is written that no step of its call reads: from `least` bytes on past the caches,
    /// where the processor has such stores.
    #[inline]
    pub(crate) fn of_result(len: usize, least: usize) -> Writes {
        if len >= least && SpanMut::CAN_STREAM { Writes::Streamed } else { Writes::Cached }
    }

    /// Returns the bytes of the shortest result that is streamed where no option says: half of the last level
    /// of caches, and none where that is not known.
    ///
    /// Such a result is not there any more when the caller reads it: the call has read as much, and other
    /// ranks use that level too. Storing it through the caches would first read its old bytes from memory.
    /// Two ranks on cores of an AMD EPYC (Zen 1, 8 MiB) take 3.9 ms instead of 5.3 for an `all_to_all` of 16
    /// MiB, and 0.51 instead of 1.16 for an `all_gather` of 4 MiB.
    pub(crate) fn streamed_from(caches: Option<&Caches>) -> usize {
        const LEAST: usize = 1 << 20;
        caches.map_or(usize::MAX, |caches| LEAST.max(caches.last / 2))
    }
}

/// Copies a message to its destination.
pub(crate) struct CopySink<'a> {
    dst: SpanMut<'a>,
    writes: Writes,
}

impl<'a> CopySink<'a> {
    #[inline]
    pub(crate) fn new(dst: SpanMut<'a>, writes: Writes) -> CopySink<'a> {
        CopySink { dst, writes }
    }
}

impl Sink for CopySink<'_> {
    #[inline]
    fn write(&mut self, offset: usize, data: Span<'_>) {
        let dst = self.dst.sub(offset, data.len());
        match self.writes {
            Writes::Cached => dst.copy_from(data),
            Writes::Streamed => dst.stream_from(data),
        }
    }

    #[inline]
    fn destination(&mut self) -> Option<SpanMut<'_>> {
        Some(self.dst)
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
    /// Computes `dst = a ⊕ b` as [`Combine::apply`], where `b` has two parts.
    #[inline(always)]
    pub(super) fn apply_parts(
        &self,
        (dst, writes): (SpanMut<'_>, Writes),
        a: Span<'_>,
        [first, second]: [Span<'_>; 2],
    ) {
        let len = first.len();
        self.apply_by(writes, dst.sub(0, len), a.sub(0, len), first);
        if !second.is_empty() {
            self.apply(dst.sub(len, second.len()), a.sub(len, second.len()), second);
        }
    }

    /// Computes `dst = a ⊕ b` as [`Combine::apply`], and writes it in this way.
    #[inline]
    pub(crate) fn apply_by(&self, writes: Writes, dst: SpanMut<'_>, a: Span<'_>, b: Span<'_>) {
        match writes {
            Writes::Streamed if !self.threads.split(dst.len()) => self.apply_streamed(dst, a, b),
            _ => self.apply(dst, a, b),
        }
    }

    /// Computes the result block by block in memory that stays in a core's cache.
    #[cold]
    fn apply_streamed(&self, dst: SpanMut<'_>, a: Span<'_>, b: Span<'_>) {
        let mut block = Block([0; Block::BYTES]);
        for at in (0..dst.len()).step_by(Block::BYTES) {
            let len = Block::BYTES.min(dst.len() - at);
            let place = SpanMut::from(&mut block.0[..len]);
            self.apply(place, a.sub(at, len), b.sub(at, len));
            dst.sub(at, len).stream_from(place.as_span());
        }
    }

    /// Computes `dst = a ⊕ b`. All have the same length; `dst` equals `a` or `b`, or is disjoint from both.
    #[inline]
    pub(crate) fn apply(&self, dst: SpanMut<'_>, a: Span<'_>, b: Span<'_>) {
        assert!(dst.len() == a.len() && dst.len() == b.len(), "operands of different lengths");
        // Elements have a power of two of bytes, and a shift takes less time than a division.
        let count = dst.len() >> self.elem_bytes.trailing_zeros();
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

/// Copies a brief message, which has two parts, to its destination.
#[inline(always)]
pub(super) fn copy_parts(dst: SpanMut<'_>, writes: Writes, [first, second]: [Span<'_>; 2]) {
    let mut sink = CopySink::new(dst, writes);
    sink.write(0, first);
    if !second.is_empty() {
        sink.write(first.len(), second);
    }
}

/// A part of a result, which is computed at a time: whole elements of every type.
#[repr(align(64))]
struct Block([u8; Block::BYTES]);

impl Block {
    const BYTES: usize = 8192;
}

/// Combines a message with a local operand.
pub(crate) struct ReduceSink<'a, 'r> {
    pub(crate) combine: Combine<'r>,
    pub(crate) writes: Writes,
    pub(crate) local: Span<'a>,
    pub(crate) dst: SpanMut<'a>,
}

impl Sink for ReduceSink<'_, '_> {
    #[inline]
    fn write(&mut self, offset: usize, data: Span<'_>) {
        let len = data.len();
        let (dst, local) = (self.dst.sub(offset, len), self.local.sub(offset, len));
        self.combine.apply_by(self.writes, dst, local, data);
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

#[cfg(test)]
mod tests {
    use super::*;
    use collectives::{DType, ReduceOp};

    #[test]
    fn results_that_do_not_stay_in_the_caches_are_streamed() {
        let least = Writes::streamed_from(Some(&Caches { own: 1 << 19, last: 8 << 20 }));
        let long = if SpanMut::CAN_STREAM { Writes::Streamed } else { Writes::Cached };
        assert_eq!(Writes::of_result(4 << 20, least), long);
        assert_eq!(Writes::of_result((4 << 20) - 1, least), Writes::Cached);
        let unknown = Writes::streamed_from(None);
        assert_eq!(Writes::of_result(1 << 40, unknown), Writes::Cached, "the caches are not known");
        assert_eq!(Writes::streamed_from(Some(&Caches { own: 1 << 18, last: 1 << 18 })), 1 << 20);
    }

    #[test]
    fn a_streamed_message_is_the_one_that_was_sent() {
        let message: Vec<u8> = (0..100_000u32).map(|i| (i % 253) as u8).collect();
        let mut result = vec![0; message.len() + 3];
        let mut sink = CopySink::new(SpanMut::from(&mut result[3..]), Writes::Streamed);
        for (at, piece) in message.chunks(32 << 10).enumerate() {
            sink.write(at * (32 << 10), Span::from(piece));
        }
        assert_eq!(result[3..], message);
    }

    #[test]
    fn a_streamed_reduction_is_the_same_as_a_cached_one_also_in_place_and_at_the_last_step() {
        let reducer = Reducer::new(DType::F32, ReduceOp::Avg).unwrap();
        let bytes = |factor: f32| -> Vec<u8> {
            (0..50_001u32).flat_map(|i| (i as f32 * factor).to_ne_bytes()).collect()
        };
        for (last, in_place) in [(None, false), (Some(3), false), (Some(3), true)] {
            let reduced = |writes| {
                let (mut local, message) = (bytes(0.25), bytes(-1.5));
                let mut output = vec![0; local.len()];
                let own = SpanMut::from(&mut local[..]);
                let dst = if in_place { own } else { SpanMut::from(&mut output[..]) };
                let combine = Combine { reducer: &reducer, elem_bytes: 4, threads: Threads::ONE, last };
                ReduceSink { combine, writes, local: own.as_span(), dst }.write(0, Span::from(&message[..]));
                if in_place { local } else { output }
            };
            let cached = reduced(Writes::Cached);
            assert!(cached.iter().any(|byte| *byte != 0));
            assert_eq!(reduced(Writes::Streamed), cached);
        }
    }
}
