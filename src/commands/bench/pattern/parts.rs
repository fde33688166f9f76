//! A rank's contribution to a sum, an average or a product of floats, as integers.
//!
//! `limit` is the integer up to which the type represents all integers; no partial sum exceeds it.

use super::Position;

/// Largest term of a sum when there are few ranks.
const MAX_TERM: u64 = 100;

/// Number of ranks with a power of two other than 1 at an index; keeps products in the range of f16.
const SCALING_RANKS: u64 = 8;

/// Returns an integer from `-max_term` to `max_term`.
pub(super) fn spread(bits: u64, max_term: u64) -> i64 {
    (bits % (2 * max_term + 1)) as i64 - max_term as i64
}

/// Returns the largest magnitude of a term, such that the sum over all ranks stays within the limit.
fn max_term(at: Position, limit: u64) -> u64 {
    (limit / u64::from(at.ranks)).min(MAX_TERM)
}

/// Returns a rank's term of a sum.
pub(super) fn term(at: Position, limit: u64) -> i64 {
    match max_term(at, limit) {
        0 if u64::from(at.rank) < limit => spread(at.hash(), 1),
        0 => 0,
        max_term => spread(at.hash(), max_term),
    }
}

/// Returns the sum of all terms.
pub(super) fn sum(at: Position, limit: u64) -> i64 {
    at.each_contributor().map(|at| term(at, limit)).sum()
}

/// Returns the average of all contributions.
pub(super) fn mean(at: Position, limit: u64) -> i64 {
    spread(at.shared(), max_term(at, limit))
}

/// Returns a rank's contribution to an average: the mean, plus an excess of opposite sign on two neighboring
/// ranks.
pub(super) fn share(at: Position, limit: u64) -> i64 {
    let mean = mean(at, limit);
    let max_excess = match max_term(at, limit) {
        0 => u64::from(u64::from(at.rank | 1) < limit),
        max_term => max_term - mean.unsigned_abs(),
    };
    let pair = Position { rank: at.rank & !1, ..at };
    let excess = spread(pair.hash(), max_excess);
    match at.rank % 2 {
        0 if at.rank + 1 == at.ranks => mean,
        0 => mean + excess,
        _ => mean - excess,
    }
}

/// A factor `odd * 2^exponent`, rotated by `quarters` quarter turns; real numbers have an even number of
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Factor {
    pub(super) quarters: u32,
    pub(super) exponent: i32,
    pub(super) odd: i32,
}

impl Factor {
    /// Returns the factor as a real number.
    pub(super) fn real(self) -> f64 {
        let magnitude = self.magnitude();
        if self.quarters % 4 == 2 { -magnitude } else { magnitude }
    }

    /// Returns the factor's magnitude.
    pub(super) fn magnitude(self) -> f64 {
        f64::from(self.odd) * f64::from(self.exponent).exp2()
    }
}

/// Returns a rank's factor; `turn` is 2 for real numbers and 1 for complex ones.
pub(super) fn factor(at: Position, turn: u32) -> Factor {
    let turn_index = (u64::from(at.rank) + at.index) % u64::from(at.ranks);
    let bits = at.hash();
    Factor {
        quarters: turn * (bits % 4) as u32,
        exponent: if turn_index < SCALING_RANKS { spread(bits >> 8, 1) as i32 } else { 0 },
        odd: if turn_index == 0 { 1 + 2 * (bits >> 32 & 1) as i32 } else { 1 },
    }
}

/// Returns the product of all factors.
pub(super) fn product(at: Position, turn: u32) -> Factor {
    let one = Factor { quarters: 0, exponent: 0, odd: 1 };
    at.each_contributor().map(|at| factor(at, turn)).fold(one, |a, b| Factor {
        quarters: (a.quarters + b.quarters) % 4,
        exponent: a.exponent + b.exponent,
        odd: a.odd * b.odd,
    })
}
