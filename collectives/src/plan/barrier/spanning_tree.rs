//! Barrier along a spanning tree of the ranks.
//!
//! Chunks: 1. A rank that has a message from each of its neighbors that are further from the center sends one
//! towards the center, which then knows that all ranks have entered; messages return along the same tree.
//!
//! As in [`dissemination`](super::dissemination), tokens record which ranks have entered: each token is a
//! reduction of earlier ones, and the last block of scratch stands for all ranks.
//!
//! Stages: twice the distance of the furthest rank from the center. Bytes: none. Cost on a line of n ranks:
//! n·α.
//!
//! For cables that form no ring; the tree is selected by [`crate::SpanningTree`].

use crate::plan::hops::{Hops, Landing};
use crate::schedule::{ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// Plans a barrier along a spanning tree.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let center = spec.tree().center(n);
    let tree = spec.tree().rooted(n, center);
    let children =
        |rank: Rank| tree.outwards().filter(|other| tree.parent(*other) == Some(rank)).count() as u32;
    let most = tree.outwards().map(children).max().unwrap_or(0);
    let all = ChunkRange::scratch(if n > 1 { most + 1 } else { 0 });
    let mut hops = Hops::new(spec, if n > 1 { most + 2 } else { 1 });
    let mut heard = vec![0; n as usize];
    for rank in tree.outwards().rev() {
        let Some(parent) = tree.parent(rank) else { continue };
        let before = heard[parent.index()];
        heard[parent.index()] += 1;
        let is_last = parent == center && before + 1 == children(center);
        let dst = if is_last { all } else { ChunkRange::scratch(before + 1) };
        let landing = Landing::Added { local: ChunkRange::scratch(before), dst };
        hops.send(rank, parent, ChunkRange::scratch(heard[rank.index()]), landing);
    }
    for rank in tree.outwards() {
        if let Some(parent) = tree.parent(rank) {
            hops.send(parent, rank, all, Landing::At(all));
        }
    }
    hops.finish()
}
