//! A rank's contribution to a sum, an average or a product of floats, as integers.
//!
//! `limit` is the largest integer up to which the type holds all; no partial sum exceeds it.

use super::At;

/// The largest term of a sum, where ranks are few.
const MOST: u64 = 100;

/// Ranks that have a power of two other than 1 at an index; keeps products in the range of f16.
const SCALING_RANKS: u64 = 8;

/// An integer from `-most` to `most`.
pub(super) fn spread(bits: u64, most: u64) -> i64 {
    (bits % (2 * most + 1)) as i64 - most as i64
}

/// The largest magnitude of a term, such that all ranks' terms together stay within the limit.
fn most(at: At, limit: u64) -> u64 {
    (limit / u64::from(at.ranks)).min(MOST)
}

/// A term of a sum.
pub(super) fn term(at: At, limit: u64) -> i64 {
    match most(at, limit) {
        0 if u64::from(at.rank) < limit => spread(at.hash(), 1),
        0 => 0,
        most => spread(at.hash(), most),
    }
}

/// The sum of all terms.
pub(super) fn sum(at: At, limit: u64) -> i64 {
    at.on_every_rank().map(|at| term(at, limit)).sum()
}

/// Returns the average of all contributions.
pub(super) fn mean(at: At, limit: u64) -> i64 {
    spread(at.shared(), most(at, limit))
}

/// A share of an average: the mean, and something that two neighbours have with opposite signs.
pub(super) fn share(at: At, limit: u64) -> i64 {
    let mean = mean(at, limit);
    let room = match most(at, limit) {
        0 => u64::from(u64::from(at.rank | 1) < limit),
        most => most - mean.unsigned_abs(),
    };
    let pair = At { rank: at.rank & !1, ..at };
    let excess = spread(pair.hash(), room);
    match at.rank % 2 {
        0 if at.rank + 1 == at.ranks => mean,
        0 => mean + excess,
        _ => mean - excess,
    }
}

/// A factor: `quarter` turns of `odd * 2^exponent`. A real number has an even number of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Factor {
    pub(super) quarters: u32,
    pub(super) exponent: i32,
    pub(super) odd: i32,
}

impl Factor {
    /// The factor's magnitude, with the sign of a real number.
    pub(super) fn real(self) -> f64 {
        let magnitude = self.magnitude();
        if self.quarters % 4 == 2 { -magnitude } else { magnitude }
    }

    /// The factor's magnitude.
    pub(super) fn magnitude(self) -> f64 {
        f64::from(self.odd) * f64::from(self.exponent).exp2()
    }
}

/// A rank's factor; `turn` is 2 for real numbers, 1 for complex ones.
pub(super) fn factor(at: At, turn: u32) -> Factor {
    let place = (u64::from(at.rank) + at.index) % u64::from(at.ranks);
    let bits = at.hash();
    Factor {
        quarters: turn * (bits % 4) as u32,
        exponent: if place < SCALING_RANKS { spread(bits >> 8, 1) as i32 } else { 0 },
        odd: if place == 0 { 1 + 2 * (bits >> 32 & 1) as i32 } else { 1 },
    }
}

/// The product of all factors.
pub(super) fn product(at: At, turn: u32) -> Factor {
    let one = Factor { quarters: 0, exponent: 0, odd: 1 };
    at.on_every_rank().map(|at| factor(at, turn)).fold(one, |a, b| Factor {
        quarters: (a.quarters + b.quarters) % 4,
        exponent: a.exponent + b.exponent,
        odd: a.odd * b.odd,
    })
}
