//! The layout of packed chunks in memory.

use crate::codec::LINE;
use crate::{BlockLayout, Codec, Packing};

/// The positions of packed chunks. Each has room for the longest chunk of a block, so none depends on those
/// before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedLayout {
    /// Codec of the chunks.
    pub codec: Codec,
    chunks: u64,
    /// Bytes from one chunk to the next.
    stride: u64,
    blocks: u64,
}

impl PackedLayout {
    /// Returns the layout of packed chunks whose elements have the layout `layout`.
    #[must_use]
    pub fn new(packing: Packing, layout: &BlockLayout) -> PackedLayout {
        let Packing { codec, blocks } = packing;
        let stride = codec.packed_bytes(layout.longest()).next_multiple_of(LINE);
        PackedLayout { codec, chunks: layout.chunks().into(), stride, blocks: blocks.into() }
    }

    /// Returns the bytes of all chunks; `None` when they exceed the address space.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        let bytes = self.stride.checked_mul(self.chunks)?.checked_mul(self.blocks)?;
        Some(bytes).filter(|bytes| i64::try_from(*bytes).is_ok())
    }

    /// Returns the first byte of a packed chunk.
    #[inline]
    #[must_use]
    pub const fn offset(&self, block: u32, chunk: u32) -> u64 {
        (block as u64 * self.chunks + chunk as u64) * self.stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_chunks_do_not_overlap() {
        let layout = BlockLayout::new(1000, 4, 3, 1).expect("small");
        let packed = PackedLayout::new(Packing { codec: Codec::Bf16, blocks: 2 }, &layout);
        let mut end = 0;
        for (block, chunk) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
            assert!(packed.offset(block, chunk) >= end);
            end = packed.offset(block, chunk) + packed.codec.packed_bytes(layout.len(chunk));
        }
        assert!(packed.bytes() >= Some(end));
        let huge = BlockLayout::new(1 << 60, 4, 1, 1).expect("it may exist");
        assert_eq!(PackedLayout::new(Packing { codec: Codec::Bf16, blocks: 9 }, &huge).bytes(), None);
    }
}
