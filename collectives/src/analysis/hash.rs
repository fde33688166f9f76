//! Hashing of small keys: one multiplication per number. Keys come from schedules, not from adversaries, and
//! nothing depends on the order of a map.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map for keys of a few numbers.
pub(crate) type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<Multiplying>>;

/// The golden ratio, as a fraction of 2^64: D. E. Knuth's multiplicative hashing.
const RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

/// The state of a hash.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Multiplying(u64);

impl Hasher for Multiplying {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(RATIO);
    }

    fn finish(&self) -> u64 {
        // A map takes buckets from the low bits, and the high ones are mixed best.
        self.0 ^ self.0 >> 32
    }
}
