//! The order in which the contributions of ranks are combined, and its guarantees.
//!
//! Addition of floating-point numbers is not associative, so the order decides the bits. The order belongs to
//! the plan, never to chance: one plan gives the same bits in every run, and an `all_reduce` gives the same
//! bits on every rank. The class [`Numerics::Reproducible`] guarantees more: the order is a function of the
//! number of ranks alone, and the same for every algorithm, number of segments, transport and size.
//!
//! That order is a tree, here called the *canonical* one. Let `p` be the largest power of two up to `n`. The
//! first `2(n-p)` ranks are added in pairs of neighbors, which leaves `p` terms. These are added in pairs of
//! neighbors, and so on. On 6 ranks the sum is `((x0 + x1) + (x2 + x3)) + (x4 + x5)`, with `p = 4` terms
//! `x0+x1`, `x2+x3`, `x4`, `x5`. Recursive doubling and recursive halving compute exactly this tree. Its
//! rounding errors grow with log n, where those of a chain grow with n. Prefixes (`scan`) are added one by
//! one from rank 0 on.
//!
//! Operands may be swapped: all operations are bitwise commutative, except for the choice between two NaNs.
//!
//! The tree for numbers of ranks that are not powers of two is that of R. Thakur, R. Rabenseifner, W. Gropp:
//! "Optimization of collective communication operations in MPICH", International Journal of High Performance
//! Computing Applications 19(1), 2005.

use crate::UnknownName;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use topology::Rank;

/// A plan's guarantee about the order in which contributions are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Numerics {
    /// Any order that the plan fixes.
    #[default]
    Fast,
    /// The canonical order: the same bits on every rank and in every run, for every algorithm, size and
    /// transport, for the same number of ranks.
    Reproducible,
}

impl Numerics {
    /// Every class.
    pub const ALL: [Numerics; 2] = [Numerics::Fast, Numerics::Reproducible];

    /// Returns the name: `fast`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Numerics::Fast => "fast",
            Numerics::Reproducible => "reproducible",
        }
    }
}

impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Numerics {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Numerics, UnknownName> {
        let found = Numerics::ALL.into_iter().find(|class| class.name() == text.to_lowercase());
        found.ok_or_else(|| {
            UnknownName::new("numerics class", text, Numerics::ALL.into_iter().map(Numerics::name))
        })
    }
}

/// The terms of the canonical tree after the first ranks are added in pairs, and the ranks that hold them.
#[derive(Clone, Copy, Debug)]
pub struct Core {
    /// Number of terms: a power of two.
    pub terms: u32,
    /// Number of terms that are sums of two ranks. They come first.
    pub pairs: u32,
}

impl Core {
    /// Returns the terms for `ranks` ranks; at least 1.
    #[must_use]
    pub const fn of(ranks: u32) -> Core {
        let terms = 1 << ranks.ilog2();
        Core { terms, pairs: ranks - terms }
    }

    /// Returns the rank that represents a term: the lower rank of a pair.
    #[must_use]
    pub const fn representative(self, term: u32) -> Rank {
        Rank(if term < self.pairs { 2 * term } else { term + self.pairs })
    }

    /// Returns the term that a rank represents; `None` for the second rank of a pair, whose contribution the
    /// first rank adds.
    #[must_use]
    pub const fn term(self, rank: Rank) -> Option<u32> {
        match rank.0 {
            r if r >= 2 * self.pairs => Some(r - self.pairs),
            r if r.is_multiple_of(2) => Some(r / 2),
            _ => None,
        }
    }

    /// Returns the other rank of a rank's pair; `None` for a rank without a pair.
    #[must_use]
    pub const fn partner(self, rank: Rank) -> Option<Rank> {
        if rank.0 < 2 * self.pairs { Some(Rank(rank.0 ^ 1)) } else { None }
    }
}

/// A sum in canonical order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    /// One rank's contribution.
    Of(Rank),
    /// Two sums of neighbors: `terms` terms from `first` on.
    Terms {
        /// First term.
        first: u32,
        /// Number of terms: a power of two.
        terms: u32,
    },
}

impl Sum {
    /// Returns the whole sum over `ranks` ranks.
    #[must_use]
    pub const fn whole(ranks: u32) -> Sum {
        if ranks == 1 { Sum::Of(Rank(0)) } else { Sum::Terms { first: 0, terms: Core::of(ranks).terms } }
    }

    /// Returns the two operands; `None` for a rank's contribution.
    #[must_use]
    pub const fn operands(self, ranks: u32) -> Option<[Sum; 2]> {
        let core = Core::of(ranks);
        let Sum::Terms { first, terms } = self else { return None };
        Some(match terms {
            1 => {
                let Rank(representative) = core.representative(first);
                [Sum::Of(Rank(representative)), Sum::Of(Rank(representative + 1))]
            }
            _ => {
                let half = terms / 2;
                [core.part(first, half), core.part(first + half, half)]
            }
        })
    }

    /// Returns the ranks whose contributions the sum holds: the first rank, and their number.
    #[must_use]
    pub const fn ranks(self, ranks: u32) -> (Rank, u32) {
        let core = Core::of(ranks);
        match self {
            Sum::Of(rank) => (rank, 1),
            Sum::Terms { first, terms } => {
                let end =
                    if first + terms == core.terms { ranks } else { core.representative(first + terms).0 };
                (core.representative(first), end - core.representative(first).0)
            }
        }
    }
}

impl Core {
    /// Returns the sum of `terms` terms from `first` on; a single term that is a rank's contribution becomes
    /// that contribution.
    const fn part(self, first: u32, terms: u32) -> Sum {
        if terms == 1 && first >= self.pairs {
            Sum::Of(self.representative(first))
        } else {
            Sum::Terms { first, terms }
        }
    }
}

/// Evaluates the canonical sum: `leaf` returns a rank's contribution, `join` adds two sums.
pub fn fold<T>(ranks: u32, leaf: &mut impl FnMut(Rank) -> T, join: &mut impl FnMut(T, T) -> T) -> T {
    fold_part(Sum::whole(ranks), ranks, leaf, join)
}

fn fold_part<T>(
    sum: Sum,
    ranks: u32,
    leaf: &mut impl FnMut(Rank) -> T,
    join: &mut impl FnMut(T, T) -> T,
) -> T {
    match (sum, sum.operands(ranks)) {
        (_, Some([a, b])) => {
            let a = fold_part(a, ranks, leaf, join);
            let b = fold_part(b, ranks, leaf, join);
            join(a, b)
        }
        (Sum::Of(rank), None) => leaf(rank),
        (Sum::Terms { .. }, None) => unreachable!("a sum of terms has operands"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(ranks: u32) -> String {
        fold(ranks, &mut |rank| rank.to_string(), &mut |a, b| format!("({a} {b})"))
    }

    #[test]
    fn neighbours_are_added_first() {
        assert_eq!(text(1), "0");
        assert_eq!(text(2), "(0 1)");
        assert_eq!(text(3), "((0 1) 2)");
        assert_eq!(text(4), "((0 1) (2 3))");
        assert_eq!(text(6), "(((0 1) (2 3)) (4 5))");
        assert_eq!(text(7), "(((0 1) (2 3)) ((4 5) 6))");
    }

    #[test]
    fn every_rank_is_in_it_once_in_order() {
        for ranks in 1..200 {
            let leaves = fold(ranks, &mut |rank| vec![rank.0], &mut |a, b| [a, b].concat());
            assert!(leaves.into_iter().eq(0..ranks), "{ranks} ranks");
            let core = Core::of(ranks);
            for term in 0..core.terms {
                assert_eq!(core.term(core.representative(term)), Some(term), "{ranks} ranks, term {term}");
            }
            let mut whole = vec![Sum::whole(ranks)];
            while let Some(sum) = whole.pop() {
                let Some(parts) = sum.operands(ranks) else { continue };
                let [(a, some), (b, more)] = parts.map(|part| part.ranks(ranks));
                assert_eq!((a, some + more), sum.ranks(ranks));
                assert_eq!(b.0, a.0 + some);
                whole.extend(parts);
            }
        }
    }

    #[test]
    fn names_are_read_back() {
        for class in Numerics::ALL {
            assert_eq!(class.name().parse(), Ok(class));
        }
        assert!("exact".parse::<Numerics>().is_err());
    }
}
