//! Broadcast down two binary trees at once, each with half of the data.
//!
//! Chunks: 2; chunk `t` goes down tree `t` on lane `t`. Ranks are counted from the root, which is at the top
//! of both trees. The others form an in-order binary tree, and the same tree mirrored or shifted by one: an
//! inner node of one is a leaf of the other (except one rank at most), so that every rank's link is busy in
//! both directions.
//!
//! Stages: at most 2·log2(n) + 1. Bytes sent per rank: at most 1 block. Cost when cut into many segments:
//! about Bβ, after 2·log2(n) messages to fill the pipeline.
//!
//! Wins for large blocks on many ranks, cut into segments: as little traffic as `chain`, and a short
//! pipeline.
//!
//! P. Sanders, J. Speck, J. L. Träff: "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
//! Parallel Computing 35(12), 2009.

use crate::builder::Builder;
use crate::plan::trees::{Node, stages_up};
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans a broadcast down two trees.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let (n, root) = (spec.ranks(), spec.root());
    let mut builder = Builder::new(spec, "double_tree", 2, 0);
    for rank in spec.planned_ranks() {
        for tree in 0..2 {
            let node = Node::below_one_root(tree, Rank(rank.behind(root.0, n).0), n);
            let (input, output) = (ChunkRange::input(tree), ChunkRange::output(tree));
            let (top, lane) = (stages_up(n), tree as u8);
            if let Some(parent) = node.parent {
                builder.stage(node.stage_from_parent(top));
                builder.recv(rank, root.ahead(parent.0, n), output, lane);
            }
            for (nth, child) in (0..).zip(&node.children) {
                builder.stage(node.stage_down(top, nth));
                let from = if rank == root { input } else { output };
                builder.send(rank, root.ahead(child.0, n), from, lane);
            }
            if rank == root {
                builder.stage(0);
                builder.copy(rank, input, output);
            }
        }
    }
    builder.finish()
}
