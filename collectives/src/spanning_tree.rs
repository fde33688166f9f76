//! A spanning tree of the ranks, along which plans relay messages where cables form no ring.
//!
//! [`SpanningTree::of`] selects a tree from the pairs of ranks that a cable, a switch or a host connects. All
//! ranks know the same pairs, so all select the same tree. Like [`Hosts`], a tree has a fixed size, so that a
//! [`Spec`](crate::Spec) stays small.
//!
//! Not done here: the plans themselves, which are in `plan`, as `spanning_tree` of each collective.

use crate::Hosts;
use std::fmt;
use topology::{Rank, Reach};

/// A spanning tree of up to [`SpanningTree::MAX_RANKS`] ranks.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanningTree {
    /// The neighbor of each rank on the way to rank 0; that of rank 0 is rank 0.
    towards_zero: [u8; SpanningTree::MAX_RANKS as usize],
}

/// The line from rank 0 to the last rank, whatever their number.
impl Default for SpanningTree {
    fn default() -> SpanningTree {
        let mut towards_zero = [0; SpanningTree::MAX_RANKS as usize];
        (0..).zip(&mut towards_zero[1..]).for_each(|(before, neighbor)| *neighbor = before);
        SpanningTree { towards_zero }
    }
}

impl SpanningTree {
    /// Maximum number of ranks. The limit bounds the size of plans.
    pub const MAX_RANKS: u32 = 64;

    /// Returns the tree in which each rank has this neighbor on the way to rank 0; that of rank 0 itself is
    /// ignored. `None` if that is no tree, or it has too many ranks.
    #[must_use]
    pub fn new(towards_zero: &[Rank]) -> Option<SpanningTree> {
        let ranks = towards_zero.len() as u32;
        if ranks == 0 || ranks > Self::MAX_RANKS || towards_zero.iter().any(|neighbor| neighbor.0 >= ranks) {
            return None;
        }
        let mut tree = SpanningTree::default();
        for (place, neighbor) in tree.towards_zero.iter_mut().zip(towards_zero).skip(1) {
            *place = neighbor.0 as u8;
        }
        tree.fits(ranks).then_some(tree)
    }

    /// Returns a tree along the connections of `reach`, which enters each host once if the ranks of a host
    /// reach each other, and is shallow.
    ///
    /// `None` if every rank reaches every other one, if some have no connection, or if there are too many.
    #[must_use]
    pub fn of(ranks: u32, reach: &Reach, hosts: Hosts) -> Option<SpanningTree> {
        if ranks == 0 || ranks > Self::MAX_RANKS || reach.is_complete() {
            return None;
        }
        let host_of = |rank: u32| match hosts {
            Hosts::One => rank,
            _ => hosts.place(Rank(rank), ranks).0,
        };
        let growths = (0..ranks).filter_map(|root| Growth::from(root, ranks).complete(reach, &host_of));
        let (_, parents, root) = growths.min_by_key(|(depth, _, root)| (*depth, *root))?;
        let mut towards_zero = parents.clone();
        // Turns the path from rank 0 to the root around.
        let mut rank = 0;
        while rank != root {
            let parent = parents[rank as usize];
            towards_zero[parent as usize] = rank;
            rank = parent;
        }
        towards_zero[0] = 0;
        SpanningTree::new(&towards_zero.into_iter().map(Rank).collect::<Vec<_>>())
    }

    /// Whether this is a tree of `ranks` ranks.
    #[must_use]
    pub fn fits(self, ranks: u32) -> bool {
        let leads_to_zero = |rank: u32| {
            let steps = (0..ranks).try_fold(rank, |at, _| (at < ranks).then(|| self.towards_zero(at)));
            steps == Some(0)
        };
        ranks <= Self::MAX_RANKS && (0..ranks).all(leads_to_zero)
    }

    fn towards_zero(self, rank: u32) -> u32 {
        self.towards_zero[rank as usize].into()
    }

    /// Returns the tree of `ranks` ranks as seen from a root.
    pub(crate) fn rooted(self, ranks: u32, root: Rank) -> Rooted {
        let mut parents: Vec<u32> = (0..ranks).map(|rank| self.towards_zero(rank)).collect();
        let (mut rank, mut parent) = (root.0, root.0);
        loop {
            let next = std::mem::replace(&mut parents[rank as usize], parent);
            if rank == 0 {
                break;
            }
            (parent, rank) = (rank, next);
        }
        let mut order = vec![root.0];
        let mut depths = vec![0; ranks as usize];
        let mut at = 0;
        while let Some(&parent) = order.get(at) {
            let is_child = |rank: &u32| *rank != root.0 && parents[*rank as usize] == parent;
            for child in (0..ranks).filter(is_child) {
                depths[child as usize] = depths[parent as usize] + 1;
                order.push(child);
            }
            at += 1;
        }
        Rooted { root, parents, order, depths }
    }

    /// Returns the rank from which the furthest rank is nearest, the lowest of several.
    pub(crate) fn center(self, ranks: u32) -> Rank {
        let depth = |root: &Rank| self.rooted(ranks, *root).depth();
        (0..ranks).map(Rank).min_by_key(depth).unwrap_or(Rank(0))
    }
}

impl fmt::Debug for SpanningTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Further ranks than this continue the line of the default.
        let line = SpanningTree::default().towards_zero;
        let own = (0..line.len()).rev().find(|at| self.towards_zero[*at] != line[*at]).unwrap_or(0);
        f.debug_list().entries(&self.towards_zero[1..=own.max(1)]).finish()
    }
}

/// A tree as seen from its root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rooted {
    root: Rank,
    /// The neighbor of each rank on the way to the root; that of the root is the root.
    parents: Vec<u32>,
    /// The ranks by their distance from the root.
    order: Vec<u32>,
    /// Messages from the root to each rank.
    depths: Vec<u32>,
}

impl Rooted {
    /// Returns the ranks by their distance from the root, which is the first.
    pub(crate) fn outwards(&self) -> impl DoubleEndedIterator<Item = Rank> + ExactSizeIterator {
        self.order.iter().copied().map(Rank)
    }

    /// Returns the neighbor of a rank on the way to the root; `None` for the root.
    pub(crate) fn parent(&self, rank: Rank) -> Option<Rank> {
        (rank != self.root).then(|| Rank(self.parents[rank.index()]))
    }

    /// Returns the distance from the root, in messages.
    pub(crate) fn depth_of(&self, rank: Rank) -> u32 {
        self.depths[rank.index()]
    }

    /// Returns the distance of the furthest rank.
    pub(crate) fn depth(&self) -> u32 {
        self.depths.iter().copied().max().unwrap_or(0)
    }

    /// Returns the ranks from `rank` to the root, both included.
    pub(crate) fn way_in(&self, rank: Rank) -> Vec<Rank> {
        std::iter::successors(Some(rank), |at| self.parent(*at)).collect()
    }
}

/// A tree that grows from a root.
struct Growth {
    root: u32,
    ranks: u32,
    parents: Vec<Option<u32>>,
    depths: Vec<u32>,
    /// Ranks of the tree, in the order in which they were added.
    order: Vec<u32>,
}

impl Growth {
    fn from(root: u32, ranks: u32) -> Growth {
        let mut parents = vec![None; ranks as usize];
        parents[root as usize] = Some(root);
        Growth { root, ranks, parents, depths: vec![0; ranks as usize], order: vec![root] }
    }

    /// Grows to all ranks. Returns depth, neighbors on the way to the root, and root.
    fn complete(mut self, reach: &Reach, host_of: &impl Fn(u32) -> u32) -> Option<(u32, Vec<u32>, u32)> {
        // Every host is entered once, then ranks that are connected to no rank of their own host.
        self.grow(reach, |growth, from, to| {
            let host = host_of(to);
            host_of(from) == host || !growth.order.iter().any(|rank| host_of(*rank) == host)
        });
        self.grow(reach, |_, _, _| true);
        let depth = self.depths.iter().copied().max()?;
        Some((depth, self.parents.into_iter().collect::<Option<Vec<u32>>>()?, self.root))
    }

    /// Adds all ranks that can be added, the nearest first, along connections that `may_add` allows.
    fn grow(&mut self, reach: &Reach, may_add: impl Fn(&Growth, u32, u32) -> bool) {
        let mut at = 0;
        while let Some(&from) = self.order.get(at) {
            for to in 0..self.ranks {
                let is_free = self.parents[to as usize].is_none();
                if is_free && reach.connects(Rank(from), Rank(to)) && may_add(self, from, to) {
                    self.parents[to as usize] = Some(from);
                    self.depths[to as usize] = self.depths[from as usize] + 1;
                    self.order.push(to);
                }
            }
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(ranks: u32, pairs: &[(u32, u32)]) -> Reach {
        Reach::new(ranks, |a, b| pairs.contains(&(a.0, b.0)) || pairs.contains(&(b.0, a.0)))
    }

    /// Returns the neighbors of ranks on the way to rank 0, if there is a tree.
    fn tree(ranks: u32, pairs: &[(u32, u32)]) -> Option<Vec<u32>> {
        let tree = SpanningTree::of(ranks, &reach(ranks, pairs), Hosts::One)?;
        assert!(tree.fits(ranks));
        Some((0..ranks).map(|rank| tree.towards_zero(rank)).collect())
    }

    #[test]
    fn a_chain_is_a_tree_in_whatever_order_its_ranks_are() {
        assert_eq!(tree(3, &[(0, 1), (1, 2)]), Some(vec![0, 0, 1]));
        assert_eq!(tree(4, &[(2, 0), (0, 3), (3, 1)]), Some(vec![0, 3, 0, 0]));
        // A ring of five without the cable between 1 and 2.
        assert_eq!(tree(5, &[(0, 1), (2, 3), (3, 4), (4, 0)]), Some(vec![0, 0, 3, 4, 0]));
    }

    #[test]
    fn ranks_out_of_reach_have_no_tree() {
        assert_eq!(tree(3, &[(0, 1)]), None);
        assert_eq!(tree(2, &[]), None);
        let line = |ranks| reach(ranks, &(1..ranks).map(|rank| (rank - 1, rank)).collect::<Vec<_>>());
        assert!(SpanningTree::of(64, &line(64), Hosts::One).is_some());
        assert_eq!(SpanningTree::of(65, &line(65), Hosts::One), None);
    }

    #[test]
    fn ranks_that_all_reach_each_other_need_no_tree() {
        assert_eq!(SpanningTree::of(4, &Reach::complete(), Hosts::One), None);
        assert_eq!(tree(1, &[]), None);
    }

    #[test]
    fn the_tree_of_a_ring_leaves_the_cable_out_that_is_furthest_from_its_root() {
        let ring = tree(5, &[(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]);
        assert_eq!(ring, Some(vec![0, 0, 1, 4, 0]));
    }

    #[test]
    fn a_tree_enters_each_host_once() {
        // Three hosts of two ranks in a chain.
        let ranks = 6;
        let reach = Reach::new(ranks, |a, b| (a.0 / 2).abs_diff(b.0 / 2) < 2);
        for (hosts, expected) in
            [(Hosts::Blocks(2), vec![0, 0, 0, 2, 2, 4]), (Hosts::One, vec![0, 2, 0, 2, 2, 2])]
        {
            let tree = SpanningTree::of(ranks, &reach, hosts).expect("connected");
            assert_eq!((0..ranks).map(|rank| tree.towards_zero(rank)).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn a_circle_and_a_rank_that_does_not_exist_make_no_tree() {
        let tree =
            |parents: &[u32]| SpanningTree::new(&parents.iter().copied().map(Rank).collect::<Vec<_>>());
        assert_eq!(tree(&[0, 2, 1]), None);
        assert_eq!(tree(&[0, 3, 1]), None);
        assert_eq!(tree(&[]), None);
        assert_eq!(tree(&[0, 0, 1]), Some(SpanningTree::default()).filter(|line| line.fits(3)));
    }

    #[test]
    fn a_tree_is_seen_from_any_root() {
        let line = SpanningTree::default();
        let rooted = line.rooted(5, Rank(3));
        assert_eq!(rooted.outwards().map(|rank| rank.0).collect::<Vec<_>>(), [3, 2, 4, 1, 0]);
        assert_eq!(rooted.way_in(Rank(1)), [Rank(1), Rank(2), Rank(3)]);
        assert_eq!((rooted.depth(), rooted.depth_of(Rank(4)), rooted.parent(Rank(3))), (3, 1, None));
        assert_eq!((line.center(5), line.center(4), line.center(1)), (Rank(2), Rank(1), Rank(0)));
    }
}
