//! Elements per chunk.
//!
//! A schedule knows chunks; a call knows elements. A block of `count` elements is cut into chunks as evenly
//! as whole cache lines allow: chunks start on multiples of 64 bytes from the start of the block. All chunks
//! differ by at most one line, except the last one with elements. With few elements the last chunks are
//! empty.
//!
//! Ranks that agree on count, element size and number of chunks agree on the layout.

use crate::schedule::{ChunkRange, Schedule};
use thiserror::Error;

/// Granularity of chunks, in bytes.
pub(crate) const LINE: u64 = 64;

/// The error for a buffer that exceeds the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{blocks} blocks of {count} elements of {elem_size} bytes are more than 2^63 - 1 bytes")]
pub struct TooLarge {
    /// Elements of a block.
    pub count: u64,
    /// Bytes of an element.
    pub elem_size: usize,
    /// Blocks of the largest buffer.
    pub blocks: u32,
}

/// The elements of every chunk of a block. No operation overflows for chunks that the buffers have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    /// Elements of a block.
    count: u64,
    /// Chunks of a block; at least 1.
    chunks: u32,
    /// Elements that every chunk has at least.
    base: u64,
    /// Elements of a cache line. The first `longer` chunks have that many more.
    line: u64,
    /// Number of chunks that have one more line.
    longer: u32,
}

impl BlockLayout {
    /// Returns the layout of blocks of `count` elements of `elem_size` bytes in `chunks` chunks, for buffers
    /// of up to `blocks` blocks. 0 chunks count as one.
    ///
    /// # Errors
    /// [`TooLarge`] when such a buffer cannot exist.
    pub fn new(count: u64, elem_size: usize, chunks: u32, blocks: u32) -> Result<BlockLayout, TooLarge> {
        let size = (elem_size as u64).max(1);
        let bytes = u128::from(count) * u128::from(size) * u128::from(blocks.max(1));
        if bytes > i64::MAX as u128 {
            return Err(TooLarge { count, elem_size, blocks });
        }
        let chunks = chunks.max(1);
        let line = (LINE / size).max(1);
        let lines = count.div_ceil(line);
        let base = lines / u64::from(chunks) * line;
        let longer = (lines % u64::from(chunks)) as u32;
        Ok(BlockLayout { count, chunks, base, line, longer })
    }

    /// Returns the elements of a block.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the chunks of a block.
    #[must_use]
    pub const fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Returns the first element of a chunk within its block. `chunk` may be the number of chunks, for the
    /// end of the block.
    #[inline]
    #[must_use]
    pub fn start(&self, chunk: u32) -> u64 {
        let start = u64::from(chunk) * self.base + u64::from(chunk.min(self.longer)) * self.line;
        start.min(self.count)
    }

    /// Returns the elements of a chunk.
    #[inline]
    #[must_use]
    pub fn len(&self, chunk: u32) -> u64 {
        self.start(chunk + 1) - self.start(chunk)
    }

    /// Whether a block has no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the elements of the longest chunk, which is the first.
    #[must_use]
    pub fn longest(&self) -> u64 {
        self.len(0)
    }

    /// Returns the first element of a chunk within its buffer.
    #[inline]
    #[must_use]
    pub fn offset(&self, block: u32, chunk: u32) -> u64 {
        u64::from(block) * self.count + self.start(chunk)
    }

    /// Returns the first element of a range within its buffer, and the number of its elements.
    #[inline]
    #[must_use]
    pub fn range(&self, range: ChunkRange) -> (u64, u64) {
        let at = |chunk: u32| self.offset(chunk / self.chunks, chunk % self.chunks);
        let start = at(range.first);
        (start, at(range.first + range.len) - start)
    }
}

impl Schedule {
    /// Returns the layout of this schedule's chunks for blocks of `count` elements of `elem_size` bytes.
    ///
    /// # Errors
    /// [`TooLarge`] when the buffers of such a call cannot exist.
    pub fn layout(&self, count: u64, elem_size: usize) -> Result<BlockLayout, TooLarge> {
        let (collective, ranks) = (self.collective, self.ranks());
        let blocks =
            collective.input_blocks(ranks).max(collective.output_blocks(ranks)).max(self.scratch_blocks);
        BlockLayout::new(count, elem_size, self.chunks, blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Buffer;
    use proptest::prelude::*;

    #[test]
    fn few_elements_leave_the_last_chunks_empty() {
        let layout = BlockLayout::new(20, 4, 4, 1).expect("small");
        let lens: Vec<u64> = (0..4).map(|chunk| layout.len(chunk)).collect();
        assert_eq!(lens, [16, 4, 0, 0]);
        let layout = BlockLayout::new(0, 8, 3, 5).expect("small");
        assert_eq!((layout.start(0), layout.start(3), layout.offset(4, 2)), (0, 0, 0));
    }

    #[test]
    fn what_cannot_exist_is_refused() {
        assert!(BlockLayout::new(1 << 60, 8, 4, 1).is_err());
        assert!(BlockLayout::new((1 << 60) - 1, 8, 4, 1).is_ok());
        assert!(BlockLayout::new(1 << 60, 1, 4, 8).is_err());
        assert!(BlockLayout::new(u64::MAX, 8, 4, u32::MAX).is_err());
    }

    proptest! {
        #[test]
        fn chunks_tile_the_block_in_whole_lines(
            count in prop_oneof![0u64..5000, (1u64 << 31)..(1 << 33), (1u64 << 55)..(1 << 57)],
            size in prop::sample::select(vec![1usize, 2, 4, 8]),
            chunks in 1u32..5000,
        ) {
            let layout = BlockLayout::new(count, size, chunks, 4).expect("fits");
            let line = 64 / size as u64;
            prop_assert_eq!(layout.start(0), 0);
            prop_assert_eq!(layout.start(chunks), count);
            for chunk in 0..chunks {
                let (start, len) = (layout.start(chunk), layout.len(chunk));
                prop_assert!(start == count || start % line == 0);
                prop_assert!(len <= layout.longest());
                // Chunks are equal, except the one that the end of the block cuts short and the empty ones
                // after it.
                prop_assert!(start + len == count || len + line >= layout.longest());
            }
        }

        #[test]
        fn a_range_is_the_sum_of_its_chunks(
            count in 0u64..100_000, chunks in 1u32..20, first in 0u32..60, len in 1u32..60,
        ) {
            let layout = BlockLayout::new(count, 4, chunks, 10).expect("fits");
            let (start, total) = layout.range(ChunkRange { buffer: Buffer::Input, first, len });
            prop_assert_eq!(start, layout.offset(first / chunks, first % chunks));
            let sum: u64 = (first..first + len).map(|chunk| layout.len(chunk % chunks)).sum();
            prop_assert_eq!(total, sum);
        }
    }
}
