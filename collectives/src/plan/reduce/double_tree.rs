//! Reduce up two binary trees at once, each with half of the data.
//!
//! Chunks: 2; chunk `t` goes up tree `t` on lane `t`. The trees are those of the broadcast of this name: the
//! root is at the top of both, and an inner node of one is a leaf of the other (except one rank at most). A
//! rank adds the sums of its children to its own contribution.
//!
//! Stages: at most 2·log2(n) + 1. Bytes sent per rank: 1 block, the root none. Cost when cut into many
//! segments: about B(β + γ), after 2·log2(n) messages to fill the pipeline.
//!
//! Wins for large blocks on many ranks, cut into segments. The order of additions depends on the root, and is
//! not the canonical one.
//!
//! P. Sanders, J. Speck, J. L. Träff: "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
//! Parallel Computing 35(12), 2009.

use crate::builder::Builder;
use crate::plan::trees::Node;
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans a reduce up two trees.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, root) = (spec.ranks(), spec.root());
    let mut builder = Builder::new(spec, "double_tree", 2, u32::from(n > 2));
    for rank in spec.planned_ranks() {
        for tree in 0..2 {
            let node = Node::below_one_root(tree, Rank(rank.behind(root.0, n).0), n);
            let result = if rank == root { ChunkRange::output(tree) } else { ChunkRange::scratch(tree) };
            let mut sum = ChunkRange::input(tree);
            if n == 1 {
                builder.copy(rank, sum, result);
            }
            for (nth, child) in (0..).zip(&node.children) {
                builder.stage(node.stage_up(nth));
                builder.recv_reduce(rank, root.ahead(child.0, n), sum, result, tree as u8);
                sum = result;
            }
            match node.parent {
                Some(parent) => {
                    builder.stage(node.stage_to_parent());
                    builder.send(rank, root.ahead(parent.0, n), sum, tree as u8);
                }
                None if n > 1 => builder.mark_last(rank),
                None => {}
            }
        }
    }
    builder.finish()
}
