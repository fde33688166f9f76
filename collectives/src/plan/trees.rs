//! Arithmetic of trees over the positions of ranks, counted from the root of a collective. This module adds
//! no steps.
//!
//! * The binomial tree in which a subtree is one contiguous run of positions.
//! * The k-nomial tree, in which every position that has the data sends it to `radix - 1` others in turn.
//! * Two complementary binary trees: an inner node of one is a leaf of the other.

use std::ops::Range;
use topology::Rank;

/// Returns the positions of the subtree of `place` among `n`: as many from `place` on as its lowest set bit
/// says.
pub(super) fn subtree(place: u32, n: u32) -> Range<u32> {
    let reach = if place == 0 { n } else { 1 << place.trailing_zeros() };
    place..place.saturating_add(reach).min(n)
}

/// Returns the parent of a position in the binomial tree. The root has none.
pub(super) fn parent_of(place: u32) -> u32 {
    place & (place - 1)
}

/// Returns the distances to the children of a position in the binomial tree, nearest first, as exponents of
/// 2.
pub(super) fn children_of(place: u32, n: u32) -> impl DoubleEndedIterator<Item = u32> {
    let count = subtree(place, n).len() as u32;
    0..count.next_power_of_two().ilog2()
}

/// Returns the blocks of the largest subtree below the root if it has more than one: the scratch that a rank
/// needs to relay the blocks of others.
pub(super) fn max_relayed_blocks(n: u32) -> u32 {
    let children = children_of(0, n).map(|bit| subtree(1 << bit, n).len() as u32);
    children.max().filter(|most| *most > 1).unwrap_or(0)
}

/// Splits a run of positions into runs of ranks: two where ranks wrap around to 0. Every message is cut
/// there, so that a part never waits behind two messages of one FIFO.
pub(super) fn runs(root: Rank, places: Range<u32>, n: u32) -> impl Iterator<Item = Range<u32>> {
    let wrap = (n - root.0).clamp(places.start, places.end);
    [places.start..wrap, wrap..places.end].into_iter().filter(|run| !run.is_empty())
}

/// Returns the parent of a position in the k-nomial tree and the stage of the message from there; `None` for
/// the root.
pub(super) fn knomial_parent(place: u32, radix: u32) -> Option<(u32, u32)> {
    let level = place.checked_ilog(radix)?;
    let unit = radix.pow(level);
    Some((place % unit, level * (radix - 1) + place / unit - 1))
}

/// Returns the children of a position in the k-nomial tree, nearest first, each with the stage of its
/// message.
pub(super) fn knomial_children(
    place: u32,
    radix: u32,
    n: u32,
) -> impl DoubleEndedIterator<Item = (u32, u32)> {
    let first = place.checked_ilog(radix).map_or(0, |level| level + 1);
    let levels = n.next_power_of_two().ilog2() + 1;
    (first..levels).flat_map(move |level| {
        (1..radix).filter_map(move |digit| {
            let child = u64::from(place) + u64::from(digit) * u64::from(radix).pow(level);
            (child < u64::from(n)).then_some((child as u32, level * (radix - 1) + digit - 1))
        })
    })
}

/// Returns a number above all stages of a k-nomial tree.
pub(super) fn knomial_stages(radix: u32, n: u32) -> u32 {
    (n.next_power_of_two().ilog2() + 1) * (radix - 1)
}

/// The neighbors of a rank in a binary tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) parent: Option<Rank>,
    pub(super) children: Vec<Rank>,
    /// The height above the leaves; a parent is higher than its children.
    pub(super) height: u32,
    pub(super) parent_height: u32,
    /// The index of this node among its parent's children.
    pub(super) nth: u32,
}

/// A map from ranks to the nodes of a tree, or back.
type Relabel = fn(Rank, u32) -> Rank;

impl Node {
    /// Returns the neighbors of `rank` in tree 0 or 1, whose roots may differ: for collectives that go up and
    /// down again.
    pub(super) fn of(tree: u32, rank: Rank, n: u32) -> Node {
        let (to_tree, from_tree): (Relabel, Relabel) = match (tree, n % 2) {
            (0, _) => (|rank, _| rank, |rank, _| rank),
            (_, 0) => (|rank, n| Rank(n - 1 - rank.0), |rank, n| Rank(n - 1 - rank.0)),
            _ => (|rank, n| rank.behind(1, n), |rank, n| rank.ahead(1, n)),
        };
        Node::relabeled(rank, n, to_tree, from_tree)
    }

    /// Returns the neighbors of `rank` in tree 0 or 1 with rank 0 at the top of both: for collectives that go
    /// one way.
    pub(super) fn below_one_root(tree: u32, rank: Rank, n: u32) -> Node {
        // The second tree permutes the ranks from 1 on: mirrored, or shifted by one, so that odd ranks become
        // even.
        let (to_tree, from_tree): (Relabel, Relabel) = match (tree, n % 2) {
            (0, _) => (|rank, _| rank, |rank, _| rank),
            (_, 1) => (|rank, n| Rank((n - rank.0) % n), |rank, n| Rank((n - rank.0) % n)),
            _ => (
                |rank, n| if rank.0 < 2 { Rank(rank.0 * (n - 1)) } else { Rank(rank.0 - 1) },
                |rank, n| if rank.0 == n - 1 { Rank(1) } else { Rank((rank.0 + 1) * rank.0.min(1)) },
            ),
        };
        Node::relabeled(rank, n, to_tree, from_tree)
    }

    fn relabeled(rank: Rank, n: u32, to_tree: Relabel, from_tree: Relabel) -> Node {
        let node = in_order(to_tree(rank, n), n);
        Node {
            parent: node.parent.map(|parent| from_tree(parent, n)),
            children: node.children.into_iter().map(|child| from_tree(child, n)).collect(),
            ..node
        }
    }

    /// Returns the stage of the message from the `nth` child on the way up.
    pub(super) const fn stage_up(&self, nth: u32) -> u32 {
        2 * self.height + nth
    }

    /// Returns the stage of the message to the parent on the way up.
    pub(super) const fn stage_to_parent(&self) -> u32 {
        2 * self.parent_height + self.nth
    }

    /// Returns the stage of the message to the `nth` child on the way down, where `top` is the stage at
    /// height 0, counted backwards.
    pub(super) const fn stage_down(&self, top: u32, nth: u32) -> u32 {
        top - 2 * self.height + nth
    }

    /// Returns the stage of the message from the parent on the way down.
    pub(super) const fn stage_from_parent(&self, top: u32) -> u32 {
        top - 2 * self.parent_height + self.nth
    }
}

/// Returns a number above all stages on the way up.
pub(super) const fn stages_up(n: u32) -> u32 {
    2 * (n.ilog2() + 2)
}

/// Returns the neighbors of `rank` in the in-order binary tree on 1 to n-1, with 0 above its root.
///
/// The height of a rank is its number of trailing zero bits; its subtree has the ranks within 2^height of it.
/// Where the root of a subtree would exceed n-1, the next lower one on its left replaces it.
fn in_order(rank: Rank, n: u32) -> Node {
    let height = height(rank, n);
    if rank.0 == 0 {
        let top = (n > 1).then(|| Rank(1 << (n - 1).ilog2()));
        return Node { parent: None, children: top.into_iter().collect(), height, parent_height: 0, nth: 0 };
    }
    let reach = 1 << rank.0.trailing_zeros();
    let parent = Rank((rank.0 ^ reach) | reach << 1);
    let parent = if parent.0 < n { parent } else { Rank(rank.0 ^ reach) };
    let left = (reach > 1).then(|| Rank(rank.0 - reach / 2));
    let halves = std::iter::successors(Some(reach / 2), |half| Some(half / 2)).take_while(|half| *half > 0);
    let right = halves.map(|half| Rank(rank.0 + half)).find(|child| child.0 < n);
    let nth = u32::from(rank > parent && parent.0 > 0);
    let parent_height = self::height(parent, n);
    let children = left.into_iter().chain(right).collect();
    Node { parent: Some(parent), children, height, parent_height, nth }
}

/// Returns the height of a rank in the in-order tree. Rank 0 is above all others.
fn height(rank: Rank, n: u32) -> u32 {
    if rank.0 == 0 { n.ilog2() + 1 } else { rank.0.trailing_zeros() }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Tree = fn(u32, Rank, u32) -> Node;

    #[test]
    fn parents_and_children_agree_and_every_rank_hangs_below_one_root() {
        for n in 1..200 {
            for (tree, of) in
                [(0, Node::of as Tree), (1, Node::of), (0, Node::below_one_root), (1, Node::below_one_root)]
            {
                let nodes: Vec<Node> = (0..n).map(|rank| of(tree, Rank(rank), n)).collect();
                assert_eq!(nodes.iter().filter(|node| node.parent.is_none()).count(), 1);
                for (rank, node) in nodes.iter().enumerate() {
                    for child in &node.children {
                        assert_eq!(nodes[child.index()].parent, Some(Rank(rank as u32)), "n {n} tree {tree}");
                    }
                }
                let children: usize = nodes.iter().map(|node| node.children.len()).sum();
                assert_eq!(children as u32, n - 1, "n {n} tree {tree}");
            }
        }
    }

    #[test]
    fn at_most_one_rank_below_the_root_is_an_inner_node_of_both_trees() {
        for n in 2..200 {
            for (of, from) in [(Node::of as Tree, 0), (Node::below_one_root, 1)] {
                let inner = |tree, rank| !of(tree, Rank(rank), n).children.is_empty();
                let both = (from..n).filter(|rank| inner(0, *rank) && inner(1, *rank)).count();
                assert!(both <= 1, "n {n}: {both}");
            }
            assert!(Node::below_one_root(1, Rank(0), n).parent.is_none());
        }
    }

    #[test]
    fn subtrees_are_runs_that_tile_the_places() {
        for n in 1..70 {
            for place in 0..n {
                let mut end = place + 1;
                for bit in children_of(place, n) {
                    let child = place + (1 << bit);
                    assert_eq!((parent_of(child), subtree(child, n).start), (place, end), "{n} {place}");
                    end = subtree(child, n).end;
                }
                assert_eq!(end, subtree(place, n).end, "{n} {place}");
            }
        }
    }

    #[test]
    fn a_k_nomial_tree_tells_every_place_once() {
        for radix in [2, 4, 8] {
            for n in 1..150 {
                let mut told = vec![0; n as usize];
                for place in 0..n {
                    for (child, stage) in knomial_children(place, radix, n) {
                        assert_eq!(knomial_parent(child, radix), Some((place, stage)), "{n} {place} {child}");
                        assert!(stage < knomial_stages(radix, n));
                        assert!(knomial_parent(place, radix).is_none_or(|(_, earlier)| earlier < stage));
                        told[child as usize] += 1;
                    }
                }
                assert!(told[1..].iter().all(|times| *times == 1) && told[0] == 0, "{radix} {n}: {told:?}");
            }
        }
    }
}
