//! The constants of calls of one kind and size: layouts of their blocks, and how their elements are combined.
//!
//! They are calculated once, and kept with the plan.

use super::{program::Run, protocols::Protocols, sink::Writes};
use crate::kernels::{Reducer, Threads, quantize::Packer};
use collectives::{BlockLayout, PackedLayout, schedule::Buffer, uneven::UnevenLayout};
use std::sync::Arc;
use transport::SizeClass;

/// Bytes of a buffer of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) buffer: Buffer,
    pub(super) offset: usize,
    pub(super) len: usize,
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

/// Values that are the same for all calls of one kind and size.
#[derive(Clone, Debug)]
pub(crate) struct CallConstants {
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
    /// Pieces of a message by which its size is counted for its protocol.
    pub(crate) segments: usize,
}

impl CallConstants {
    /// Returns the range in bytes of a run of chunks within its buffer.
    #[inline(always)]
    pub(super) fn range(&self, run: &Run) -> Range {
        let (offset, len) = if run.is_whole && self.uneven.is_none() {
            let block_bytes = self.layout.count() as usize * self.elem_bytes;
            (run.from.0 as usize * block_bytes, (run.to.0 - run.from.0) as usize * block_bytes)
        } else {
            self.bytes_of_chunks(run)
        };
        Range { buffer: run.buffer, offset, len }
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

    /// Returns the bytes by which the protocol of a message is chosen, of which a piece has `len`.
    #[inline]
    pub(super) fn counted(&self, len: usize) -> usize {
        len * self.segments
    }

    /// Returns the size class of a message of this many bytes.
    #[inline]
    pub(super) fn size_of(&self, protocols: &Protocols, message_bytes: usize) -> SizeClass {
        match self.sizing {
            Sizing::ByCall(size) => size,
            Sizing::ByMessage => protocols.size_class(message_bytes as u64),
        }
    }
}
