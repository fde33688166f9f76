//! Inputs whose result has the same bits under any order of combination, and that result.
//!
//! The number of wrong elements is therefore a count, not an estimate. Sums are of integers so small that no
//! partial sum needs rounding in the element type. Products are of powers of two, whose partial products stay
//! in range, and one odd factor. Averages divide evenly. Every rank affects the result at some index.
//!
//! Expected results are computed here, without the kernels. Values repeat after [`PERIOD`] elements, a prime,
//! so that data at a wrong offset differs, and a comparison is as fast as one of bytes.

mod boolean;
mod complex;
mod float;
mod integer;
mod parts;
#[cfg(test)]
mod tests;

use tbccl::{Element, ReduceOp, element::bytes_of};

/// Elements after which values repeat.
pub(super) const PERIOD: usize = 8191;

/// An element type with patterns.
pub(in crate::commands) trait Value: Element + PartialEq + Default {
    /// Returns a rank's element at an index, for a reduction or for copying.
    fn input(op: Option<ReduceOp>, at: Position) -> Self;

    /// Returns the reduction of the inputs of the first `at.contributors` ranks.
    fn reduced(op: ReduceOp, at: Position) -> Self;

    /// Returns any value that differs from `self`.
    fn different(self) -> Self;
}

/// A position in the inputs of a job.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) struct Position {
    pub(super) rank: u32,
    pub(super) ranks: u32,
    /// Number of ranks, from rank 0 on, whose inputs are reduced.
    pub(super) contributors: u32,
    pub(super) index: u64,
    /// Seed, which differs between verifications.
    pub(super) seed: u64,
}

impl Position {
    /// Returns random bits of the rank and the index.
    fn hash(self) -> u64 {
        mix(self.shared() ^ (u64::from(self.rank) + 1).wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    /// Returns random bits of the index that all ranks share.
    fn shared(self) -> u64 {
        mix(self.index.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ mix(self.seed))
    }

    /// Returns the same position with independent random bits.
    fn second(self) -> Position {
        Position { seed: !self.seed, ..self }
    }

    /// Returns the position on every contributing rank.
    fn each_contributor(self) -> impl Iterator<Item = Position> {
        (0..self.contributors).map(move |rank| Position { rank, ..self })
    }

    /// Whether this rank alone decides the element, for reductions in which a single rank can fix the result.
    fn is_decisive(self) -> bool {
        mix(self.shared()) % u64::from(self.ranks) == u64::from(self.rank)
    }
}

/// Finalizer of SplitMix64.
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
        let value = |index| T::input(op, Position { rank, ranks, contributors: ranks, index, seed });
        Table((0..len.min(PERIOD) as u64).map(value).collect())
    }

    /// Returns the reduction of the inputs of the first `contributors` ranks.
    pub(super) fn reduced(op: ReduceOp, contributors: u32, ranks: u32, seed: u64, len: usize) -> Table<T> {
        let value = |index| T::reduced(op, Position { rank: 0, ranks, contributors, index, seed });
        Table((0..len.min(PERIOD) as u64).map(value).collect())
    }

    /// Returns a pattern that differs at every element.
    pub(super) fn poison(&self) -> Table<T> {
        Table(self.0.iter().map(|value| value.different()).collect())
    }

    /// Writes the pattern, beginning at index `from`.
    pub(super) fn write(&self, to: &mut [T], from: usize) {
        let mut done = 0;
        while done < to.len() {
            let run = self.run(from + done, to.len() - done);
            to[done..done + run.len()].copy_from_slice(run);
            done += run.len();
        }
    }

    /// Returns the elements of one period.
    pub(super) fn period(&self) -> &[T] {
        &self.0
    }

    /// Counts the elements that differ from the pattern beginning at index `from`.
    pub(super) fn count_wrong(&self, actual: &[T], from: usize) -> u64 {
        let (mut done, mut wrong) = (0, 0);
        while done < actual.len() {
            let run = self.run(from + done, actual.len() - done);
            let actual = &actual[done..done + run.len()];
            // Bytes are usually equal; zeros of either sign are equal elements with different bytes.
            if bytes_of(actual) != bytes_of(run) {
                wrong +=
                    actual.iter().zip(run).filter(|(actual, expected)| actual != expected).count() as u64;
            }
            done += run.len();
        }
        wrong
    }

    /// Returns the pattern from `index` on, up to `max_len` elements or the end of the period.
    fn run(&self, index: usize, max_len: usize) -> &[T] {
        let rest = &self.0[index % self.0.len()..];
        &rest[..max_len.min(rest.len())]
    }
}
