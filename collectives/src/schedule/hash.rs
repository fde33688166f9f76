//! A stable hash of a schedule, by which ranks check that they hold the same one.
//!
//! It is the 64-bit xxh3 hash of these bytes; all numbers are 32 bits, little-endian, unless noted:
//!
//! ```text
//! schedule  = 3 collective root in_place chunks scratch_blocks lanes packing name ranks program...
//! packing   = codec blocks                      codec 0 and no blocks where nothing is packed
//! name      = length byte...                    the algorithm's, UTF-8
//! program   = steps step...
//! step      = kind lane operands dependencies index...
//! operands  = send 0:        peer range         recv 1:   peer range
//!             recv_reduce 2: peer range(dst) range(local) last
//!             copy 3:        range(dst) range(src)
//!             reduce 4:      range(dst) range(a) range(b) last
//!             encode 5:      range(dst) range(src)
//!             decode 6:      range(dst) range(src)
//!             decode_reduce 7: range(dst) range(local) range(src) last
//!             send 8:        peer range step       that follows a step
//! range     = buffer first len                  input 0, output 1, scratch 2, packed 3
//! ```
//!
//! Ranks that differ in `in_place` hold different schedules, though with the same messages; they compare the
//! hashes of the plan out of place.
//!
//! The leading 3 is the version of this encoding; the collective is its index in [`Collective::ALL`].

use super::{Action, Buffer, ChunkRange, InPlace, Schedule, Step};
use crate::Collective;
use xxhash_rust::xxh3::Xxh3;

const VERSION: u32 = 3;

impl Schedule {
    /// Returns a number that is equal for equal schedules, on every machine and in every run.
    #[must_use]
    pub fn stable_hash(&self) -> u64 {
        let mut bytes = Encoder(Xxh3::new());
        let collective = Collective::ALL.iter().position(|c| *c == self.collective);
        bytes.numbers([VERSION, collective.unwrap_or_default() as u32, self.root.0]);
        let in_place = u32::from(self.in_place == InPlace::Yes);
        bytes.numbers([in_place, self.chunks, self.scratch_blocks, u32::from(self.lanes)]);
        let packing = self.packing.map(|packing| [packing.codec.code().into(), packing.blocks]);
        bytes.numbers(packing.unwrap_or_default());
        bytes.numbers([self.algorithm.len() as u32]);
        bytes.0.update(self.algorithm.as_bytes());
        bytes.numbers([self.ranks()]);
        for program in &self.programs {
            bytes.numbers([program.steps.len() as u32]);
            program.steps.iter().for_each(|step| bytes.step(step));
        }
        bytes.0.digest()
    }
}

struct Encoder(Xxh3);

impl Encoder {
    fn numbers<const N: usize>(&mut self, numbers: [u32; N]) {
        for number in numbers {
            self.0.update(&number.to_le_bytes());
        }
    }

    fn ranges<const N: usize>(&mut self, ranges: [ChunkRange; N]) {
        for ChunkRange { buffer, first, len } in ranges {
            let buffer = match buffer {
                Buffer::Input => 0,
                Buffer::Output => 1,
                Buffer::Scratch => 2,
                Buffer::Packed => 3,
            };
            self.numbers([buffer, first, len]);
        }
    }

    fn step(&mut self, step: &Step) {
        let lane = u32::from(step.lane);
        match step.action {
            Action::Send { peer, src } => {
                self.numbers([if step.follows.is_some() { 8 } else { 0 }, lane, peer.0]);
                self.ranges([src]);
                step.follows.iter().for_each(|followed| self.numbers([*followed]));
            }
            Action::Recv { peer, dst } => {
                self.numbers([1, lane, peer.0]);
                self.ranges([dst]);
            }
            Action::RecvReduce { peer, local, dst, last } => {
                self.numbers([2, lane, peer.0]);
                self.ranges([dst, local]);
                self.numbers([u32::from(last)]);
            }
            Action::Copy { src, dst } => {
                self.numbers([3, lane]);
                self.ranges([dst, src]);
            }
            Action::Reduce { a, b, dst, last } => {
                self.numbers([4, lane]);
                self.ranges([dst, a, b]);
                self.numbers([u32::from(last)]);
            }
            Action::Encode { src, dst } => {
                self.numbers([5, lane]);
                self.ranges([dst, src]);
            }
            Action::Decode { src, dst } => {
                self.numbers([6, lane]);
                self.ranges([dst, src]);
            }
            Action::DecodeReduce { local, src, dst, last } => {
                self.numbers([7, lane]);
                self.ranges([dst, local, src]);
                self.numbers([u32::from(last)]);
            }
        }
        self.numbers([step.after.len() as u32]);
        step.after.iter().for_each(|before| self.numbers([*before]));
    }
}
