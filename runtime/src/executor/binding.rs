//! The memory of one call, by the chunks of its plan.

use super::{
    constants::{CallConstants, Range},
    program::Run,
    sized::SizedStraight,
};
use collectives::schedule::Buffer;
use transport::memory::{Span, SpanMut};

/// The memory of one call, and the other inputs of its messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Binding<'a> {
    pub(crate) constants: &'a CallConstants,
    /// The byte ranges of a straight program; `None` where the program is another one, or runs as others do.
    pub(crate) straight: Option<&'a SizedStraight>,
    /// Digest of the call, which its messages carry.
    pub(crate) digest: u64,
    pub(crate) input: Span<'a>,
    pub(crate) output: SpanMut<'a>,
    pub(crate) scratch: SpanMut<'a>,
    /// Whether sends are complete only when they are matched, because nothing else shows this rank that its
    /// peers are in the same call.
    pub(crate) confirmed: bool,
}

impl<'a> Binding<'a> {
    /// Whether the call combines messages into memory of this buffer.
    pub(super) fn combines_into(&self, buffer: Buffer) -> bool {
        let in_place = || {
            let offset = (self.output.as_mut_ptr() as usize).wrapping_sub(self.input.as_ptr() as usize);
            offset < self.input.len()
        };
        !self.constants.gathers && (buffer != Buffer::Input || in_place())
    }

    /// Returns the bytes of a run, for reading.
    #[inline]
    pub(super) fn source(&self, run: &Run) -> Span<'a> {
        self.source_range(&self.constants.range(run))
    }

    /// Returns the bytes of a run, for writing.
    #[inline]
    pub(super) fn target(&self, run: &Run) -> SpanMut<'a> {
        self.target_range(&self.constants.range(run))
    }

    /// Returns the bytes of a range, for reading.
    #[inline(always)]
    pub(super) fn source_range(&self, &Range { buffer, offset, len }: &Range) -> Span<'a> {
        match buffer {
            Buffer::Input => self.input.sub(offset, len),
            Buffer::Output => self.output.as_span().sub(offset, len),
            Buffer::Scratch | Buffer::Packed => self.scratch.as_span().sub(offset, len),
        }
    }

    /// Returns the bytes of a range, for writing.
    #[inline(always)]
    pub(super) fn target_range(&self, &Range { buffer, offset, len }: &Range) -> SpanMut<'a> {
        match buffer {
            Buffer::Output => self.output.sub(offset, len),
            Buffer::Scratch | Buffer::Packed => self.scratch.sub(offset, len),
            Buffer::Input => unreachable!("the verifier admits no step that writes input"),
        }
    }
}
