//! The memory of one call, by the chunks of its plan.

use super::{program::Run, sink::Writes};
use crate::kernels::{Reducer, Threads, quantize::Packer};
use collectives::{BlockLayout, PackedLayout, schedule::Buffer, uneven::UnevenLayout};
use std::sync::Arc;
use transport::{
    Capabilities, Protocol, SizeClass,
    memory::{Span, SpanMut},
};

/// Size thresholds of protocols.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protocols {
    /// Messages of at least this many bytes from unregistered memory are pulled where possible.
    pub(crate) pull_min_bytes: usize,
    /// The same for calls that combine nothing, and in which ranks send before they wait; `pull_min_bytes`
    /// at most. Calibration measures those. Where data moves one way, a receiver reads one piece while the
    /// sender stages the next one, which makes up for the further copy.
    pub(crate) gather_pull_min_bytes: usize,
    /// Operations of at least this many bytes move registered memory without copying it.
    pub(crate) direct_min_bytes: u64,
    /// Smallest message of such an operation from memory into which the operation combines.
    pub(crate) combined_direct_min_bytes: usize,
    /// Smallest result that is written past the caches.
    pub(crate) stream_min_bytes: usize,
}

impl Protocols {
    /// Returns thresholds that are the same for all memory and all calls. Results stay in the caches.
    pub(crate) const fn with_minima(pull_min_bytes: usize, direct_min_bytes: u64) -> Protocols {
        let (gather_pull_min_bytes, combined_direct_min_bytes) = (pull_min_bytes, 0);
        let stream_min_bytes = usize::MAX;
        Protocols {
            pull_min_bytes,
            gather_pull_min_bytes,
            direct_min_bytes,
            combined_direct_min_bytes,
            stream_min_bytes,
        }
    }

    /// Returns how a result of `len` bytes is written that no step of its call reads.
    #[inline]
    pub(crate) fn writes_of(&self, len: usize) -> Writes {
        Writes::of_result(len, self.stream_min_bytes)
    }

    /// Returns the size class of an operation: `Bulk` if it is worth the set-up of transfers without copies.
    #[inline]
    pub(crate) fn size_class(&self, operation_bytes: u64) -> SizeClass {
        if operation_bytes >= self.direct_min_bytes { SizeClass::Bulk } else { SizeClass::Small }
    }

    /// Returns the protocol of a message, by the link's capabilities, the operation's size, and the
    /// message's memory: whether its ranks exchange and combine nothing (`gathered`), whether its call
    /// combines messages into this memory (`combined`), and whether it is registered.
    #[inline]
    pub(super) fn choose<'c>(
        &self,
        capabilities: impl FnOnce() -> &'c Capabilities,
        (size, message_bytes): (SizeClass, usize),
        gathered: bool,
        combined: impl FnOnce() -> bool,
        registered: impl FnOnce() -> bool,
    ) -> Protocol {
        // Most messages are of this kind; nothing else need be known about them.
        if size == SizeClass::Small && message_bytes < self.gather_pull_min_bytes {
            return Protocol::Copy;
        }
        // The lines of a combined message are in the caches of this rank's core alone.
        let capabilities = capabilities();
        let may_be_direct = || message_bytes >= self.combined_direct_min_bytes || !combined();
        if capabilities.direct && size == SizeClass::Bulk && may_be_direct() && registered() {
            return Protocol::Direct;
        }
        let pull_min_bytes = if gathered { self.gather_pull_min_bytes } else { self.pull_min_bytes };
        if capabilities.pull && message_bytes >= pull_min_bytes { Protocol::Pull } else { Protocol::Copy }
    }
}

/// The rule for the size class of a call's messages, the same at both ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sizing {
    /// All ranks know how much the call moves.
    ByCall(SizeClass),
    /// Only the two ends of a message know its length.
    ByMessage,
}

/// The packed chunks of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packed {
    pub(crate) packer: Packer,
    pub(crate) layout: PackedLayout,
    /// Offset of the packed chunks in the call's scratch memory, behind its chunks: a multiple of a cache
    /// line.
    pub(crate) start: usize,
}

/// The memory of one call, and the other inputs of its messages.
#[derive(Clone, Debug)]
pub(crate) struct Binding<'a> {
    /// Digest of the call, which its messages carry.
    pub(crate) digest: u64,
    pub(crate) input: Span<'a>,
    pub(crate) output: SpanMut<'a>,
    pub(crate) scratch: SpanMut<'a>,
    pub(crate) layout: BlockLayout,
    /// Layout of blocks of unequal lengths, which replaces `layout`.
    pub(crate) uneven: Option<Arc<UnevenLayout>>,
    /// The packing of messages, if any.
    pub(crate) packed: Option<Packed>,
    pub(crate) elem_bytes: usize,
    /// The function that combines elements, if they are combined.
    pub(crate) reducer: Option<Reducer>,
    /// The divisor of an average.
    pub(crate) ranks: u32,
    pub(crate) threads: Threads,
    /// How the parts of the output are written that no step reads.
    pub(crate) results: Writes,
    /// Derived from the bytes of the call, which are equal on all ranks, not from buffers, which differ.
    pub(crate) sizing: Sizing,
    /// Whether this is a collective that combines nothing: a broadcast, or a gathering of blocks.
    pub(crate) gathers: bool,
    /// Whether sends are complete only when they are matched, because nothing else shows this rank that its
    /// peers are in the same call.
    pub(crate) confirmed: bool,
}

impl<'a> Binding<'a> {
    /// Returns the offset and length in bytes of a run of chunks within its buffer.
    #[inline(always)]
    fn bytes(&self, run: &Run) -> (usize, usize) {
        // All runs of a small call are whole.
        if run.is_whole && self.uneven.is_none() {
            let block_bytes = self.layout.count() as usize * self.elem_bytes;
            return (run.from.0 as usize * block_bytes, (run.to.0 - run.from.0) as usize * block_bytes);
        }
        self.bytes_of_chunks(run)
    }

    #[inline(never)]
    fn bytes_of_chunks(&self, run: &Run) -> (usize, usize) {
        if let Some(packed) = self.packed.as_ref().filter(|_| run.buffer == Buffer::Packed) {
            return self.packed_bytes(packed, run);
        }
        if let Some(uneven) = &self.uneven {
            return self.uneven_bytes(uneven, run);
        }
        let from = self.layout.offset(run.from.0, run.from.1);
        let to = self.layout.offset(run.to.0, run.to.1);
        (from as usize * self.elem_bytes, (to - from) as usize * self.elem_bytes)
    }

    /// Returns the same for a packed chunk, which is a run of its own.
    fn packed_bytes(&self, packed: &Packed, run: &Run) -> (usize, usize) {
        let (block, chunk) = run.from;
        let len = packed.layout.codec.packed_bytes(self.layout.len(chunk));
        (packed.start + packed.layout.offset(block, chunk) as usize, len as usize)
    }

    #[cold]
    fn uneven_bytes(&self, layout: &UnevenLayout, run: &Run) -> (usize, usize) {
        let from = layout.offset(run.buffer, run.from.0, run.from.1);
        let to = layout.offset(run.buffer, run.to.0, run.to.1);
        (from as usize * self.elem_bytes, (to - from) as usize * self.elem_bytes)
    }

    /// Whether the call combines messages into memory of this buffer.
    pub(super) fn combines_into(&self, buffer: Buffer) -> bool {
        let in_place = || {
            let offset = (self.output.as_mut_ptr() as usize).wrapping_sub(self.input.as_ptr() as usize);
            offset < self.input.len()
        };
        !self.gathers && (buffer != Buffer::Input || in_place())
    }

    /// Returns the size class of a message of this many bytes.
    #[inline]
    pub(super) fn size_of(&self, protocols: &Protocols, message_bytes: usize) -> SizeClass {
        match self.sizing {
            Sizing::ByCall(size) => size,
            Sizing::ByMessage => protocols.size_class(message_bytes as u64),
        }
    }

    /// Returns the bytes of a run, for reading.
    // Always inlined, as `target`: a small call binds five runs, and a function call takes as long as that.
    #[inline(always)]
    pub(super) fn source(&self, run: &Run) -> Span<'a> {
        let (offset, len) = self.bytes(run);
        match run.buffer {
            Buffer::Input => self.input.sub(offset, len),
            Buffer::Output => self.output.as_span().sub(offset, len),
            Buffer::Scratch | Buffer::Packed => self.scratch.as_span().sub(offset, len),
        }
    }

    /// Returns the bytes of a run, for writing.
    #[inline(always)]
    pub(super) fn target(&self, run: &Run) -> SpanMut<'a> {
        let (offset, len) = self.bytes(run);
        match run.buffer {
            Buffer::Output => self.output.sub(offset, len),
            Buffer::Scratch | Buffer::Packed => self.scratch.sub(offset, len),
            Buffer::Input => unreachable!("the verifier admits no step that writes input"),
        }
    }
}
