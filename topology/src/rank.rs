//! The number of a participant.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Most ranks that a communicator can have.
pub const MAX_RANKS: u32 = 4096;

/// The number of a participant in a communicator, `0..size`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(pub u32);

impl Rank {
    /// The rank as an index into per-rank tables.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The rank `distance` places further round a circle of `size` ranks.
    #[must_use]
    pub fn ahead(self, distance: u32, size: u32) -> Rank {
        Rank(((u64::from(self.0) + u64::from(distance)) % u64::from(size)) as u32)
    }

    /// The rank `distance` places back round a circle of `size` ranks.
    #[must_use]
    pub fn behind(self, distance: u32, size: u32) -> Rank {
        self.ahead(size - distance % size, size)
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<u32> for Rank {
    fn from(rank: u32) -> Rank {
        Rank(rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ahead_and_behind_are_inverse_round_the_circle() {
        for size in 1..9 {
            for rank in 0..size {
                for distance in 0..2 * size {
                    assert_eq!(Rank(rank).ahead(distance, size).behind(distance, size), Rank(rank));
                }
            }
        }
        assert_eq!(Rank(3).ahead(1, 4), Rank(0));
        assert_eq!(Rank(0).behind(1, 4), Rank(3));
    }
}
