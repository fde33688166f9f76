//! Preferences among algorithms where not every rank reaches every other one, as on rings and chains of
//! cables.
//!
//! A tree of cables takes fewer stages than the way around a ring, on which each stage has a latency. Plans
//! in both directions of a ring take half of its stages, and use both directions of each cable. Whether an
//! algorithm has the cables that it needs is decided elsewhere.
//!
//! A `broadcast` or `reduce` of a large block is a stream of segments, of which each cable of a line of ranks
//! carries all once. The first segment takes all stages, so segments are short, and the root of a tree sends
//! both ways.

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
        Collective::Broadcast | Collective::Reduce
            if call.block_bytes > tuning.binomial_bytes && is_line(call, requirements) =>
        {
            (
                &["spanning_tree"],
                "large, and not all ranks are connected: a stream of short messages along cables",
            )
        }
        Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter
            if is_shallow(call, root, requirements) =>
        {
            (&["spanning_tree"], "not all ranks are connected: fewest stages along cables")
        }
        _ => (&[], ""),
    }
}

/// Whether [`preferred`] comes before an algorithm for ranks that are all connected, although that has the
/// cables that it needs: a chain, where the tree is a line.
pub(super) fn precedes(algorithm: &str, call: Call, requirements: &Requirements) -> bool {
    algorithm == "chain" && is_line(call, requirements)
}

/// Whether no rank of the tree has more than two neighbors. Elsewhere a rank may have several at one cable,
/// which would carry a block once for each.
fn is_line(call: Call, requirements: &Requirements) -> bool {
    let tree = requirements.tree.filter(|tree| tree.fits(call.ranks));
    tree.is_some_and(|tree| tree.is_line(call.ranks))
}

/// Whether the tree has fewer stages than a chain of all ranks.
fn is_shallow(call: Call, root: Rank, requirements: &Requirements) -> bool {
    let tree = requirements.tree.filter(|tree| tree.fits(call.ranks));
    tree.is_some_and(|tree| tree.rooted(call.ranks, root).depth() + 1 < call.ranks)
}
