//! Inputs whose result is the same to the bit under any order of combination, and that result.
//!
//! The number of wrong elements is then a count, not an estimate. Sums are of integers so small that no
//! partial sum needs rounding in the element type; products are of powers of two whose partial products stay
//! in range, and one odd factor; averages divide evenly. Every rank's part matters at some index.
//!
//! Expected results are computed here, without the kernels. Values repeat after [`PERIOD`] elements, a prime,
//! so that data at a wrong place differs, and comparing is as quick as comparing bytes.

mod complex;
mod float;
mod integer;
mod parts;
#[cfg(test)]
mod tests;
mod truth;

use tbccl::{Element, ReduceOp, element::bytes_of};

/// Elements after which values repeat.
pub(super) const PERIOD: usize = 8191;

/// An element type that has patterns.
pub(in crate::commands) trait Value: Element + PartialEq + Default {
    /// Returns a rank's element at an index, for an operation, or for copying.
    fn input(op: Option<ReduceOp>, at: At) -> Self;

    /// Returns the combination of the inputs of the first ranks, as many as `at` says.
    fn reduced(op: ReduceOp, at: At) -> Self;

    /// Anything but this.
    fn other_than(self) -> Self;
}

/// A place in the inputs of a job.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) struct At {
    pub(super) rank: u32,
    pub(super) ranks: u32,
    /// How many of the first ranks are combined.
    pub(super) among: u32,
    pub(super) index: u64,
    /// Differs between verifications.
    pub(super) seed: u64,
}

impl At {
    /// Random bits that belong to the rank and the index.
    fn hash(self) -> u64 {
        mix(self.shared() ^ (u64::from(self.rank) + 1).wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    /// Random bits that all ranks have in common.
    fn shared(self) -> u64 {
        mix(self.index.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ mix(self.seed))
    }

    /// The same place with other random bits.
    fn again(self) -> At {
        At { seed: !self.seed, ..self }
    }

    /// The place on every rank that is combined.
    fn on_every_rank(self) -> impl Iterator<Item = At> {
        (0..self.among).map(move |rank| At { rank, ..self })
    }

    /// Whether this rank alone decides the element, for operations in which most ranks must hold back.
    fn decides(self) -> bool {
        mix(self.shared()) % u64::from(self.ranks) == u64::from(self.rank)
    }
}

/// The finaliser of SplitMix64.
fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// One period of a pattern.
#[derive(Debug)]
pub(super) struct Table<T>(Vec<T>);

impl<T: Value> Table<T> {
    /// Returns the input of `rank`, for a buffer of `len` elements.
    pub(super) fn input(op: Option<ReduceOp>, rank: u32, ranks: u32, seed: u64, len: usize) -> Table<T> {
        let value = |index| T::input(op, At { rank, ranks, among: ranks, index, seed });
        Table((0..len.min(PERIOD) as u64).map(value).collect())
    }

    /// Returns the combination of the inputs of the first `among` ranks.
    pub(super) fn reduced(op: ReduceOp, among: u32, ranks: u32, seed: u64, len: usize) -> Table<T> {
        let value = |index| T::reduced(op, At { rank: 0, ranks, among, index, seed });
        Table((0..len.min(PERIOD) as u64).map(value).collect())
    }

    /// A pattern that is wrong everywhere.
    pub(super) fn poison(&self) -> Table<T> {
        Table(self.0.iter().map(|value| value.other_than()).collect())
    }

    /// Writes the pattern from index `from` on.
    pub(super) fn write(&self, to: &mut [T], from: usize) {
        let mut done = 0;
        while done < to.len() {
            let part = self.part(from + done, to.len() - done);
            to[done..done + part.len()].copy_from_slice(part);
            done += part.len();
        }
    }

    /// The elements of one period.
    pub(super) fn period(&self) -> &[T] {
        &self.0
    }

    /// How many elements differ from the pattern from index `from` on.
    pub(super) fn count_wrong(&self, found: &[T], from: usize) -> u64 {
        let (mut done, mut wrong) = (0, 0);
        while done < found.len() {
            let part = self.part(from + done, found.len() - done);
            let found = &found[done..done + part.len()];
            // Equal bytes are the rule; zeros of either sign are equal too.
            if bytes_of(found) != bytes_of(part) {
                wrong += found.iter().zip(part).filter(|(found, wanted)| found != wanted).count() as u64;
            }
            done += part.len();
        }
        wrong
    }

    /// The pattern from an index on, `most` elements or to the end of the period.
    fn part(&self, index: usize, most: usize) -> &[T] {
        let rest = &self.0[index % self.0.len()..];
        &rest[..most.min(rest.len())]
    }
}
