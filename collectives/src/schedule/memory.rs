//! The memory of a rank, and the chunks of its buffers that are the same memory.

use super::{Buffer, ChunkRange, InPlace, Schedule};
use crate::Overlap;
use std::ops::Range;
use topology::Rank;

/// The memory of one rank as a row of cells, one per chunk; buffers that alias share cells.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    /// The first cell of input, output, scratch and packed memory.
    base: [u64; 4],
    /// The number of chunks of each.
    len: [u64; 4],
}

impl Memory {
    /// Returns the memory of `rank` in `schedule`; only the schedule's shape is read, not its steps.
    pub(crate) fn new(schedule: &Schedule, ranks: u32, rank: Rank) -> Memory {
        let chunks = u64::from(schedule.chunks);
        let (input, output) = schedule.collective.blocks_of(ranks, rank == schedule.root);
        let (input, output) = (u64::from(input) * chunks, u64::from(output) * chunks);
        let own_block = u64::from(rank.0) * chunks;
        let [input_at, output_at] = match (schedule.in_place, schedule.collective.shape().in_place) {
            (InPlace::No, _) => [0, input],
            (InPlace::Yes, Overlap::SendInRecv) if output > 0 => [own_block, 0],
            (InPlace::Yes, Overlap::RecvInSend) if input > 0 => [0, own_block],
            (InPlace::Yes, _) => [0, 0],
        };
        let scratch_at = (input_at + input).max(output_at + output);
        let scratch = u64::from(schedule.scratch_blocks) * chunks;
        let packed = u64::from(schedule.packing.map_or(0, |packing| packing.blocks)) * chunks;
        let base = [input_at, output_at, scratch_at, scratch_at + scratch];
        Memory { base, len: [input, output, scratch, packed] }
    }

    /// Returns the number of chunks of a buffer.
    pub(crate) fn chunks(&self, buffer: Buffer) -> u64 {
        self.len[index(buffer)]
    }

    /// Returns the number of cells.
    pub(crate) fn cells(&self) -> usize {
        (self.base[3] + self.len[3]) as usize
    }

    /// Returns the cells of a range that lies within its buffer.
    pub(crate) fn span(&self, range: ChunkRange) -> Range<usize> {
        let start = (self.base[index(range.buffer)] + u64::from(range.first)) as usize;
        start..start + range.len as usize
    }

    /// Returns the cells of a whole buffer.
    pub(crate) fn whole(&self, buffer: Buffer) -> Range<usize> {
        let start = self.base[index(buffer)];
        start as usize..(start + self.len[index(buffer)]) as usize
    }

    /// Whether the range lies within its buffer.
    pub(crate) fn holds(&self, range: ChunkRange) -> bool {
        u64::from(range.first) + u64::from(range.len) <= self.chunks(range.buffer)
    }

    /// Whether two ranges share a cell.
    pub(crate) fn overlap(&self, a: ChunkRange, b: ChunkRange) -> bool {
        let (a, b) = (self.span(a), self.span(b));
        a.start < b.end && b.start < a.end
    }
}

const fn index(buffer: Buffer) -> usize {
    match buffer {
        Buffer::Input => 0,
        Buffer::Output => 1,
        Buffer::Scratch => 2,
        Buffer::Packed => 3,
    }
}
