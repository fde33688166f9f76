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

use crate::builder::Builder;
use crate::plan::trees::{Node, stages_up};
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

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
    let node = Node::of(tree, rank, n);
    let output = ChunkRange::output(tree);
    let mut partial = ChunkRange::input(tree);
    for (nth, child) in (0..).zip(&node.children) {
        builder.stage(node.stage_up(nth));
        builder.recv_reduce(rank, *child, partial, output, tree as u8);
        partial = output;
    }
    match node.parent {
        Some(parent) => {
            builder.stage(node.stage_to_parent());
            builder.send(rank, parent, partial, tree as u8);
        }
        None => builder.mark_last(rank),
    }
}

fn go_down(builder: &mut Builder, rank: Rank, tree: u32, n: u32) {
    let node = Node::of(tree, rank, n);
    let output = ChunkRange::output(tree);
    // The way down is the way up mirrored: whoever is high in the tree comes first.
    let top = 2 * stages_up(n);
    if let Some(parent) = node.parent {
        builder.stage(node.stage_from_parent(top));
        builder.recv(rank, parent, output, tree as u8);
    }
    for (nth, child) in (0..).zip(&node.children) {
        builder.stage(node.stage_down(top, nth));
        builder.send(rank, *child, output, tree as u8);
    }
}
