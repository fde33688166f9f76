//! All-reduce up and down two binary trees at once, each with half of the data.
//!
//! Chunks: 2; chunk `t` uses tree `t` on lane `t`. A rank adds the partial sums of its children to its own
//! contribution and sends the sum to its parent; the root's sum returns down the same tree. The trees are
//! complementary: an inner node of one is a leaf of the other (except one rank if n is odd), so the two
//! halves together use every rank's link in both directions.
//!
//! Tree 0 is the in-order binary tree on ranks 1 to n-1, in which odd ranks are leaves, under rank 0 as root.
//! Tree 1 is its mirror image for even n; for odd n it is the same tree shifted by one rank.
//!
//! Stages: at most 4·log2(n), counting the messages of two children one after the other. Bytes sent per rank:
//! at most 2 times the block (an inner node sends half of it up and two halves down, a leaf half of it up),
//! and 2(n-1)/n on average. Cost when cut into many segments: about 2Bβ, after at most 4·log2(n) messages to
//! fill the pipeline.
//!
//! Wins for medium and large blocks on many ranks, where a ring has too many stages; it needs segments to
//! form a pipeline. Each half is summed in one fixed tree, so every rank gets the same bits.
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
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let mut builder = Builder::new(spec, "double_binary_tree", if n == 1 { 1 } else { 2 }, 0);
    if n == 1 {
        builder.copy(Rank(0), ChunkRange::input(0), ChunkRange::output(0));
        return builder.finish();
    }
    for rank in spec.planned_ranks() {
        for tree in 0..2 {
            reduce_up(&mut builder, rank, tree, n);
        }
        for tree in 0..2 {
            broadcast_down(&mut builder, rank, tree, n);
        }
    }
    builder.finish()
}

fn reduce_up(builder: &mut Builder, rank: Rank, tree: u32, n: u32) {
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

fn broadcast_down(builder: &mut Builder, rank: Rank, tree: u32, n: u32) {
    let node = Node::of(tree, rank, n);
    let output = ChunkRange::output(tree);
    // The broadcast mirrors the reduction: nodes high in the tree come first.
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
