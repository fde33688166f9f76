//! Which ranks can send to each other without help.

use crate::Rank;

/// The pairs of ranks that a cable or a switch connects. Symmetric, and equal on all ranks, since plans
/// depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reach {
    /// The pairs that nothing connects, the lower rank first, ascending.
    gaps: Vec<(Rank, Rank)>,
}

impl Reach {
    /// Returns the reach in which every rank reaches every other one.
    #[must_use]
    pub fn complete() -> Reach {
        Reach::default()
    }

    /// Returns the reach of `ranks` ranks; `connected` is asked for each pair, with the lower rank first.
    #[must_use]
    pub fn new(ranks: u32, mut connected: impl FnMut(Rank, Rank) -> bool) -> Reach {
        let pairs = (0..ranks).flat_map(|a| (a + 1..ranks).map(move |b| (Rank(a), Rank(b))));
        Reach { gaps: pairs.filter(|(a, b)| !connected(*a, *b)).collect() }
    }

    /// Whether every rank reaches every other one.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.gaps.is_empty()
    }

    /// Whether two ranks can send to each other.
    #[must_use]
    pub fn connects(&self, a: Rank, b: Rank) -> bool {
        self.gaps.binary_search(&(a.min(b), a.max(b))).is_err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_connects_neighbours_in_both_directions() {
        let ring = Reach::new(5, |a, b| b == a.ahead(1, 5) || a == b.ahead(1, 5));
        assert!(!ring.is_complete());
        for a in 0..5 {
            for b in 0..5 {
                let distance = Rank(a).behind(b, 5).0;
                assert_eq!(ring.connects(Rank(a), Rank(b)), [0, 1, 4].contains(&distance), "{a} {b}");
            }
        }
    }

    #[test]
    fn a_mesh_has_no_gaps() {
        assert!(
            Reach::new(4, |_, _| true) == Reach::complete() && Reach::complete().connects(Rank(0), Rank(9))
        );
    }
}
