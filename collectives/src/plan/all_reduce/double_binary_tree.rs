//! All-reduce up and down two binary trees at once, each with half of the data.
//!
//! Chunks: 2; chunk `t` goes over tree `t` on lane `t`. A rank adds its children's partial results to its own
//! contribution and sends the sum to its parent; the root's sum comes down the same way. The trees are
//! complementary: who is an inner node of one is a leaf of the other (but for one rank when n is odd), so
//! both halves together keep every rank's link busy in both directions.
//!
//! Tree 0 is the in-order binary tree on ranks 1 to n-1, in which odd ranks are leaves, under rank 0 as root.
//! Tree 1 is its mirror image for even n; for odd n it is the same tree moved on by one rank.
//!
//! Stages: at most 4·log2(n), counting the messages of two children one after the other. Bytes sent per rank:
//! at most 2 times the block (as inner node half of it up and two halves down, as leaf half of it up), and
//! 2(n-1)/n on average. Cost when cut into many segments: about 2Bβ, after at most 4·log2(n) messages to fill
//! the pipeline.
//!
//! Wins for medium and large blocks on many ranks, where a ring has too many stages; it needs segments to
//! stream. The sum of each half has one shape, so every rank gets the same bits.
//!
//! P. Sanders, J. Speck, J. L. Träff: "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
//! Parallel Computing 35(12), 2009.

use crate::schedule::{Builder, ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// The neighbours of a rank in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    parent: Option<Rank>,
    children: Vec<Rank>,
    /// Above the leaves; a parent's is greater than its children's.
    height: u32,
    parent_height: u32,
    /// Which child of its parent it is.
    nth: u32,
}

/// Plans an all-reduce over two trees.
///
/// # Errors
/// None: a [`Spec`] always makes sense here.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let mut builder = Builder::new(spec, "double_binary_tree", if n == 1 { 1 } else { 2 }, 0);
    if n == 1 {
        builder.copy(Rank(0), ChunkRange::input(0), ChunkRange::output(0));
        return builder.finish();
    }
    for rank in spec.planned_ranks() {
        for tree in 0..2 {
            go_up(&mut builder, rank, tree, n);
        }
        for tree in 0..2 {
            go_down(&mut builder, rank, tree, n);
        }
    }
    builder.finish()
}

fn go_up(builder: &mut Builder, rank: Rank, tree: u32, n: u32) {
    let node = node(tree, rank, n);
    let output = ChunkRange::output(tree);
    let mut partial = ChunkRange::input(tree);
    for (nth, child) in (0..).zip(&node.children) {
        builder.stage(2 * node.height + nth);
        builder.recv_reduce(rank, *child, partial, output, tree as u8);
        partial = output;
    }
    match node.parent {
        Some(parent) => {
            builder.stage(2 * node.parent_height + node.nth);
            builder.send(rank, parent, partial, tree as u8);
        }
        None => builder.mark_last(rank),
    }
}

fn go_down(builder: &mut Builder, rank: Rank, tree: u32, n: u32) {
    let node = node(tree, rank, n);
    let output = ChunkRange::output(tree);
    // The way down is the way up mirrored: whoever is high in the tree comes first.
    let top = 2 * (n.ilog2() + 2);
    let below = |height: u32| 2 * top - 2 * height;
    if let Some(parent) = node.parent {
        builder.stage(below(node.parent_height) + node.nth);
        builder.recv(rank, parent, output, tree as u8);
    }
    for (nth, child) in (0..).zip(&node.children) {
        builder.stage(below(node.height) + nth);
        builder.send(rank, *child, output, tree as u8);
    }
}

/// From the number of a rank to the number of its place in a tree, or back.
type Relabel = fn(Rank, u32) -> Rank;

/// The neighbours of `rank` in tree 0 or 1.
fn node(tree: u32, rank: Rank, n: u32) -> Node {
    let (there, back): (Relabel, Relabel) = match (tree, n % 2) {
        (0, _) => (|rank, _| rank, |rank, _| rank),
        (_, 0) => (|rank, n| Rank(n - 1 - rank.0), |rank, n| Rank(n - 1 - rank.0)),
        _ => (|rank, n| rank.behind(1, n), |rank, n| rank.ahead(1, n)),
    };
    let node = in_order(there(rank, n), n);
    Node {
        parent: node.parent.map(|parent| back(parent, n)),
        children: node.children.into_iter().map(|child| back(child, n)).collect(),
        ..node
    }
}

/// The neighbours of `rank` in the in-order binary tree on 1 to n-1, with 0 above its root.
///
/// The height of a rank is the number of zero bits at its low end; the ranks below it are those within
/// 2^height of it. Where a subtree's root would lie beyond n-1, the next lower one on its left takes its
/// place.
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

/// The height of a place in the in-order tree: that of rank 0 is above all.
fn height(rank: Rank, n: u32) -> u32 {
    if rank.0 == 0 { n.ilog2() + 1 } else { rank.0.trailing_zeros() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_and_children_agree_and_every_rank_hangs_below_one_root() {
        for n in 1..200 {
            for tree in 0..2 {
                let nodes: Vec<Node> = (0..n).map(|rank| node(tree, Rank(rank), n)).collect();
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
    fn at_most_one_rank_is_an_inner_node_of_both_trees() {
        for n in 2..200 {
            let inner = |tree, rank| !node(tree, Rank(rank), n).children.is_empty();
            let both = (0..n).filter(|rank| inner(0, *rank) && inner(1, *rank)).count();
            assert!(both <= (n % 2) as usize, "n {n}: {both}");
        }
    }
}
