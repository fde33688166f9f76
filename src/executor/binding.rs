//! The memory of one call, by the chunks of its plan.

use super::program::Run;
use crate::kernels::{Reducer, Threads};
use collectives::{BlockLayout, schedule::Buffer};
use transport::{
    Capabilities, Protocol, Size,
    memory::{Span, SpanMut},
};

/// Sizes from which on protocols are used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protocols {
    /// Messages of at least this many bytes from foreign memory are pulled where possible.
    pub(crate) pull_min_bytes: usize,
    /// Operations of at least this many bytes move registered memory without copying it.
    pub(crate) direct_min_bytes: u64,
}

impl Protocols {
    /// Whether an operation of so many bytes is worth setting up transfers without copies for.
    #[inline]
    pub(crate) fn size(&self, operation_bytes: u64) -> Size {
        if operation_bytes >= self.direct_min_bytes { Size::Bulk } else { Size::Small }
    }

    /// How a message travels: by the link's capabilities, the operation's size, and the message's memory.
    #[inline]
    pub(super) fn choose(
        &self,
        capabilities: &Capabilities,
        size: Size,
        message_bytes: usize,
        registered: impl FnOnce() -> bool,
    ) -> Protocol {
        if capabilities.direct && size == Size::Bulk && registered() {
            Protocol::Direct
        } else if capabilities.pull && message_bytes >= self.pull_min_bytes {
            Protocol::Pull
        } else {
            Protocol::Copy
        }
    }
}

/// The memory of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Binding<'a> {
    pub(crate) input: Span<'a>,
    pub(crate) output: SpanMut<'a>,
    pub(crate) scratch: SpanMut<'a>,
    pub(crate) layout: BlockLayout,
    pub(crate) elem_bytes: usize,
    /// How elements are combined, where they are.
    pub(crate) reducer: Option<Reducer>,
    /// What an average divides by.
    pub(crate) ranks: u32,
    pub(crate) threads: Threads,
    /// Follows from the bytes of the call, which are the same on all ranks, and not from buffers, which are not.
    pub(crate) size: Size,
    /// Sends are complete only when they are matched: this rank hears of its peers by nothing else.
    pub(crate) confirmed: bool,
}

impl<'a> Binding<'a> {
    /// Where a run of chunks is within its buffer: offset and length in bytes.
    #[inline]
    fn bytes(&self, run: &Run) -> (usize, usize) {
        let from = self.layout.offset(run.from.0, run.from.1);
        let to = self.layout.offset(run.to.0, run.to.1);
        (from as usize * self.elem_bytes, (to - from) as usize * self.elem_bytes)
    }

    /// The bytes of a run, for reading.
    #[inline]
    pub(super) fn source(&self, run: &Run) -> Span<'a> {
        let (offset, len) = self.bytes(run);
        match run.buffer {
            Buffer::Input => self.input.sub(offset, len),
            Buffer::Output => self.output.as_span().sub(offset, len),
            Buffer::Scratch => self.scratch.as_span().sub(offset, len),
        }
    }

    /// The bytes of a run, for writing.
    #[inline]
    pub(super) fn target(&self, run: &Run) -> SpanMut<'a> {
        let (offset, len) = self.bytes(run);
        match run.buffer {
            Buffer::Output => self.output.sub(offset, len),
            Buffer::Scratch => self.scratch.sub(offset, len),
            Buffer::Input => unreachable!("the verifier admits no step that writes input"),
        }
    }
}
