//! Pseudo-random numbers (splitmix64), the same on every machine.

/// Returns a pseudo-random number of a seed and an index.
#[must_use]
pub fn mix(seed: u64, index: usize) -> u64 {
    finalize(seed ^ (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn finalize(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// A generator of pseudo-random numbers with a seed.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        finalize(self.0)
    }

    /// Returns a number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }

    /// Whether an event happens whose probability is `part` of `whole`.
    pub fn happens(&mut self, part: u64, whole: u64) -> bool {
        self.below(whole) < part
    }

    /// Returns one of the items, of which there is at least one.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }

    /// Puts items into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at as u64 + 1) as usize);
        }
    }
}
