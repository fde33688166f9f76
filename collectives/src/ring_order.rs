//! The order of the ranks along a ring of cables, for plans around rings.
//!
//! [`RingOrder::of`] looks for a ring through all ranks along the pairs that a cable, a switch or a host
//! connects. All ranks know the same pairs, so all find the same ring. Like
//! [`SpanningTree`](crate::SpanningTree), an order has a fixed size, so that a [`Spec`](crate::Spec) stays
//! small.
//!
//! Not done here: the plans in an order, which `plan` makes from those for positions.

use crate::Hosts;
use std::fmt;
use topology::{Rank, Reach};

/// An order of up to [`RingOrder::MAX_RANKS`] ranks.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RingOrder {
    /// The rank at each position. Positions beyond the ranks have their own number.
    ranks: [u8; RingOrder::MAX_RANKS as usize],
}

/// The order of the ranks' numbers.
impl Default for RingOrder {
    fn default() -> RingOrder {
        RingOrder { ranks: std::array::from_fn(|position| position as u8) }
    }
}

impl RingOrder {
    /// Maximum number of ranks, that of [`SpanningTree`](crate::SpanningTree).
    pub const MAX_RANKS: u32 = 64;

    /// Most steps of the search for a ring. A ring of cables without further ones takes one step per rank;
    /// a search through many rings and dead ends gives up here.
    const MOST_STEPS: u32 = 20_000;

    /// Returns the order of these ranks. `None` if they are not all ranks, once each, or too many.
    #[must_use]
    pub fn new(ranks: &[Rank]) -> Option<RingOrder> {
        if ranks.len() > Self::MAX_RANKS as usize {
            return None;
        }
        let mut order = RingOrder::default();
        for (place, rank) in order.ranks.iter_mut().zip(ranks) {
            *place = u8::try_from(rank.0).ok()?;
        }
        order.fits(ranks.len() as u32).then_some(order)
    }

    /// Returns the order of a ring along the connections of `reach`, in which the ranks of a host follow
    /// each other if that is possible.
    ///
    /// `None` if the ranks' own order is a ring, as where every rank reaches every other one; if there is no
    /// ring, or none that the search finds; or if there are too many ranks.
    #[must_use]
    pub fn of(ranks: u32, reach: &Reach, hosts: Hosts) -> Option<RingOrder> {
        let is_ring = |rank: u32| reach.connects(Rank(rank), Rank(rank).ahead(1, ranks));
        if !(3..=Self::MAX_RANKS).contains(&ranks) || (0..ranks).all(is_ring) {
            return None;
        }
        let mut search = Search { ranks, reach, hosts, path: vec![Rank(0)], steps_left: Self::MOST_STEPS };
        if search.complete() { RingOrder::new(&search.path) } else { None }
    }

    /// Whether this is an order of `ranks` ranks.
    #[must_use]
    pub fn fits(self, ranks: u32) -> bool {
        let position = |rank: u32| self.position(Rank(rank));
        ranks <= Self::MAX_RANKS && (0..ranks).all(|rank| position(rank).is_some_and(|p| p.0 < ranks))
    }

    /// Returns the rank at a position.
    #[must_use]
    pub fn rank(self, position: Rank) -> Rank {
        self.ranks.get(position.index()).map_or(position, |rank| Rank((*rank).into()))
    }

    /// Returns the position of a rank; `None` if the order does not have it.
    #[must_use]
    pub fn position(self, rank: Rank) -> Option<Rank> {
        let position = self.ranks.iter().position(|one| u32::from(*one) == rank.0)?;
        Some(Rank(position as u32))
    }
}

impl fmt::Debug for RingOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Further ranks than these have their own numbers.
        let own = (0..self.ranks.len()).rev().find(|at| usize::from(self.ranks[*at]) != *at);
        f.debug_list().entries(&self.ranks[..own.map_or(0, |at| at + 1)]).finish()
    }
}

/// A search for a ring: a path that is extended by the first rank that may come next, and shortened where
/// none may.
struct Search<'r> {
    ranks: u32,
    reach: &'r Reach,
    hosts: Hosts,
    path: Vec<Rank>,
    steps_left: u32,
}

impl Search<'_> {
    /// Returns the ranks that may come after the last one, those of its host first.
    fn candidates(&self, last: Rank) -> Vec<Rank> {
        let host = |rank: Rank| match self.hosts {
            Hosts::One => rank.0,
            _ => self.hosts.place(rank, self.ranks).0,
        };
        let is_next = |rank: &Rank| !self.path.contains(rank) && self.reach.connects(last, *rank);
        let mut candidates: Vec<Rank> = (0..self.ranks).map(Rank).filter(is_next).collect();
        candidates.sort_by_key(|rank| host(*rank) != host(last));
        candidates
    }

    /// Extends the path to a ring. Returns whether there is one.
    fn complete(&mut self) -> bool {
        let last = *self.path.last().expect("a path begins with rank 0");
        if self.path.len() as u32 == self.ranks {
            return self.reach.connects(last, self.path[0]);
        }
        for next in self.candidates(last) {
            if self.steps_left == 0 {
                return false;
            }
            self.steps_left -= 1;
            self.path.push(next);
            if self.complete() {
                return true;
            }
            self.path.pop();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(ranks: u32, pairs: &[(u32, u32)]) -> Reach {
        Reach::new(ranks, |a, b| pairs.contains(&(a.0, b.0)) || pairs.contains(&(b.0, a.0)))
    }

    fn order(ranks: u32, pairs: &[(u32, u32)]) -> Option<Vec<u32>> {
        let order = RingOrder::of(ranks, &reach(ranks, pairs), Hosts::One)?;
        Some((0..ranks).map(|position| order.rank(Rank(position)).0).collect())
    }

    #[test]
    fn a_ring_of_cables_is_found_in_whatever_order_its_ranks_are() {
        assert_eq!(order(5, &[(0, 2), (2, 4), (4, 1), (1, 3), (3, 0)]), Some(vec![0, 2, 4, 1, 3]));
        assert_eq!(order(4, &[(0, 2), (2, 1), (1, 3), (3, 0)]), Some(vec![0, 2, 1, 3]));
        // The first cable of rank 2 leads away from the ring.
        let chord = [(0, 2), (2, 1), (2, 4), (4, 1), (1, 3), (3, 0)];
        assert_eq!(order(5, &chord), Some(vec![0, 2, 4, 1, 3]));
    }

    #[test]
    fn ranks_in_the_order_of_a_ring_need_no_other_order() {
        assert_eq!(order(5, &[(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2)]), None);
        assert_eq!(RingOrder::of(5, &Reach::complete(), Hosts::One), None);
        assert_eq!((order(1, &[]), order(2, &[(0, 1)])), (None, None));
    }

    #[test]
    fn chains_stars_and_parts_have_no_ring() {
        assert_eq!(order(4, &[(0, 2), (2, 1), (1, 3)]), None);
        assert_eq!(order(4, &[(3, 0), (3, 1), (3, 2)]), None);
        assert_eq!(order(6, &[(0, 2), (2, 4), (4, 0), (1, 3), (3, 5), (5, 1)]), None);
    }

    #[test]
    fn the_search_for_a_ring_among_many_dead_ends_gives_up() {
        // Complete graphs of 20 ranks that meet at one rank, which no ring can pass twice.
        let reach = Reach::new(39, |a, b| (a.0 < 20 && b.0 < 20) || (a.0 >= 19 && b.0 >= 19));
        let reach = Reach::new(39, |a, b| reach.connects(a, b) && (a.0, b.0) != (0, 1));
        assert_eq!(RingOrder::of(39, &reach, Hosts::One), None);
    }

    #[test]
    fn ranks_of_a_host_follow_each_other() {
        // Hosts of two ranks in a ring: 0, 2, 1, 3.
        let cabled =
            |a: u32, b: u32| a == b || [(0, 2), (1, 2), (1, 3), (0, 3)].contains(&(a.min(b), a.max(b)));
        let reach = Reach::new(8, |a, b| cabled(a.0 / 2, b.0 / 2));
        let order = RingOrder::of(8, &reach, Hosts::Blocks(2)).expect("a ring");
        let hosts: Vec<u32> = (0..8).map(|position| order.rank(Rank(position)).0 / 2).collect();
        assert_eq!(hosts, [0, 0, 2, 2, 1, 1, 3, 3]);
    }

    #[test]
    fn an_order_has_every_rank_once() {
        let order = |ranks: &[u32]| RingOrder::new(&ranks.iter().copied().map(Rank).collect::<Vec<_>>());
        assert_eq!((order(&[0, 0]), order(&[0, 2]), order(&[300])), (None, None, None));
        assert_eq!(order(&[0, 1, 2]), Some(RingOrder::default()));
        assert_eq!(RingOrder::new(&[Rank(0); 65]), None);
        let turned = order(&[1, 2, 0]).expect("an order");
        assert!(turned.fits(3) && !turned.fits(2));
        assert_eq!((turned.rank(Rank(1)), turned.position(Rank(1))), (Rank(2), Some(Rank(0))));
        assert_eq!(format!("{turned:?}"), "[1, 2, 0]");
    }
}
