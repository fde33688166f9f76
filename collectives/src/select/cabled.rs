//! Preferences among algorithms where not every rank reaches every other one, as on rings and chains of
//! cables.
//!
//! A tree of cables takes fewer stages than the way around a ring, on which each stage has a latency. Plans
//! in both directions of a ring take half of its stages, and use both directions of each cable. Whether an
//! algorithm has the cables that it needs is decided elsewhere.

use super::{Call, Requirements, Tuning};
use crate::{Collective, Rank};

/// Returns the algorithms to try first, the best first, and the reason.
pub(super) fn preferred(
    call: Call,
    root: Rank,
    requirements: &Requirements,
    tuning: &Tuning,
) -> (&'static [&'static str], &'static str) {
    match call.collective {
        Collective::AllReduce if call.block_bytes <= tuning.tree_bytes => (
            &["recursive_doubling", "spanning_tree"],
            "small, and not all ranks are connected: fewest stages along cables",
        ),
        Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter => {
            (&["bidirectional_ring"], "not all ranks are connected: both directions of the cables of a ring")
        }
        Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter
            if is_shallow(call, root, requirements) =>
        {
            (&["spanning_tree"], "not all ranks are connected: fewest stages along cables")
        }
        _ => (&[], ""),
    }
}

/// Whether the tree has fewer stages than a chain of all ranks.
fn is_shallow(call: Call, root: Rank, requirements: &Requirements) -> bool {
    let tree = requirements.tree.filter(|tree| tree.fits(call.ranks));
    tree.is_some_and(|tree| tree.rooted(call.ranks, root).depth() + 1 < call.ranks)
}
