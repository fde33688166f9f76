//! Thresholds for ranks that outnumber the cores of their host.
//!
//! A rank that waits for a message also waits for a core, and a late message costs other ranks' turns. Ranks
//! run one after the other for every plan, so stages that overlap elsewhere gain nothing here. The cost is
//! the number of messages and the bytes of all ranks together, and for the smallest sizes on few ranks the
//! number of waits. The fastest plan depends on which ranks share a core: these thresholds are for neighbors
//! on one core, measured with 4 to 8 ranks on two cores. Up to three ranks the general thresholds apply,
//! except to a barrier over TCP.
//!
//! Over TCP a message is a system call at both ends, and the plans of fewest messages are the fastest ones by
//! far: an `all_reduce` of 4 bytes between 32 ranks on two cores took 4.7 ms by `mesh`, 1.2 by
//! `recursive_doubling` and 0.6 by `reduce_broadcast`, one between 8 ranks 267, 128 and 99 us.
//!
//! Overrides, measurements and simulation take precedence over these thresholds.

use super::{Call, Choice, Tuning, segments};
use crate::Collective;

/// Largest block that four ranks sum in one stage. Above it two stages of halves are faster.
const FOUR_IN_ONE_STAGE_BYTES: u64 = 12 << 10;
/// Largest block that other numbers of up to [`FEW_RANKS`] sum in one stage.
const FEW_IN_ONE_STAGE_BYTES: u64 = 4 << 10;
/// Ranks whose messages in one stage of a sum cost less than further waits up to [`FEW_IN_ONE_STAGE_BYTES`].
const FEW_RANKS: u32 = 6;
/// Ranks whose messages in one stage of a sum cost less than further waits up to
/// [`SEVERAL_IN_ONE_STAGE_BYTES`].
const SEVERAL_RANKS: u32 = 8;
/// Most bytes that one of [`SEVERAL_RANKS`] sends in one stage of a sum.
const SEVERAL_IN_ONE_STAGE_BYTES: u64 = 7 << 10;
/// Most bytes that one of more ranks sends in one stage of a sum.
const MANY_IN_ONE_STAGE_BYTES: u64 = 2 << 10;
/// Largest block that more than four ranks exchange whole: halves take twice as many messages.
const MANY_WHOLE_BYTES: u64 = 16 << 10;
/// Most bytes that a rank sends in one stage of a collective without reduction.
const PASSED_ON_BYTES: u64 = 16 << 10;
/// Most bytes that a rank sends in a pairwise reduce-scatter, in which each rank adds one block per message.
const SCATTERED_BYTES: u64 = 48 << 10;
/// Most bytes that the root of a reduce receives from all other ranks in one stage.
const ROOT_BYTES: u64 = 256 << 10;
/// Blocks of a reduce below this size go down a chain whole. Ranks read longer ones in each other's memory,
/// for which each waits for the next one.
const WHOLE_BLOCK_BYTES: u64 = 4 << 10;
/// Smallest block for which bytes cost more than messages.
const LARGE_BYTES: u64 = 256 << 10;
/// Range of bytes that the root of a broadcast sends to all others in one stage. A chain is faster below and
/// above it.
const FROM_ROOT_BYTES: (u64, u64) = (16 << 10, 512 << 10);
/// Ranks from which a tree has fewer messages one after the other than a chain, and from which a mesh has too
/// many for any size.
const TREE_RANKS: u32 = 16;
/// Largest block that recursive plans of a gather and a scatter move where each message is a call.
const CALLS_BLOCK_BYTES: u64 = 16 << 10;
/// Segment size of an all-reduce over a tree, in bytes. Such a segment stays in the cache of the ranks that
/// share a core.
const TREE_SEGMENT_BYTES: u64 = 128 << 10;
/// Segment size of an exclusive scan, in bytes. Its ranks forward a different sum than the one they keep, so
/// it is half as long.
const SCAN_SEGMENT_BYTES: u64 = 64 << 10;

/// Returns the choice for a call that differs from the choice on dedicated cores.
pub(super) fn choice(call: Call, tuning: &Tuning) -> Option<Choice> {
    let by_calls = if tuning.messages_are_calls { fewest_messages(call) } else { None };
    let (algorithm, why) = by_calls.or_else(|| preferred(call))?;
    let with_segment_bytes = |segment_bytes| Tuning { segment_bytes, max_segments: 256, ..tuning.clone() };
    let segments = match (call.collective, algorithm) {
        (Collective::AllReduce, "reduce_broadcast") => {
            segments(call, algorithm, &with_segment_bytes(TREE_SEGMENT_BYTES))
        }
        (Collective::ExclusiveScan, _) => segments(call, algorithm, &with_segment_bytes(SCAN_SEGMENT_BYTES)),
        _ => segments(call, algorithm, tuning),
    };
    Some(Choice { algorithm, segments, why })
}

/// Returns the choice where each message is a system call.
fn fewest_messages(call: Call) -> Option<(&'static str, &'static str)> {
    const FEWEST: &str = "more ranks than cores, over TCP: the fewest messages";
    let Call { collective, ranks, block_bytes } = call;
    let algorithm = match collective {
        Collective::Barrier if ranks > 2 => "binomial",
        _ if ranks < 4 => return None,
        Collective::AllReduce => "reduce_broadcast",
        Collective::AllGather if block_bytes <= CALLS_BLOCK_BYTES => "pat",
        Collective::ReduceScatter if block_bytes <= CALLS_BLOCK_BYTES => "recursive_halving",
        Collective::Broadcast | Collective::Reduce if ranks >= TREE_RANKS && block_bytes < LARGE_BYTES => {
            "binomial"
        }
        _ => return None,
    };
    Some((algorithm, FEWEST))
}

/// Whether an all-reduce takes one stage.
fn is_in_one_stage(call: Call) -> bool {
    let Call { ranks, block_bytes, .. } = call;
    let sent_bytes = block_bytes.saturating_mul(u64::from(ranks - 1));
    match ranks {
        4 => block_bytes <= FOUR_IN_ONE_STAGE_BYTES,
        _ if ranks <= FEW_RANKS => block_bytes <= FEW_IN_ONE_STAGE_BYTES,
        _ if ranks <= SEVERAL_RANKS => sent_bytes <= SEVERAL_IN_ONE_STAGE_BYTES,
        _ => ranks < TREE_RANKS && sent_bytes <= MANY_IN_ONE_STAGE_BYTES,
    }
}

fn preferred(call: Call) -> Option<(&'static str, &'static str)> {
    const FEWER: &str = "more ranks than cores: fewer messages";
    const NEIGHBOURS: &str = "more ranks than cores: one peer after the other";
    let Call { collective, ranks, block_bytes } = call;
    if ranks < 4 {
        return None;
    }
    let sent_bytes = block_bytes.saturating_mul(u64::from(ranks - 1));
    match collective {
        Collective::AllReduce if is_in_one_stage(call) => {
            Some(("mesh", "more ranks than cores: one stage has the fewest waits"))
        }
        Collective::AllReduce if ranks > TREE_RANKS || block_bytes > LARGE_BYTES => Some((
            "reduce_broadcast",
            "more ranks than cores: up a tree and down, in pieces that caches hold",
        )),
        Collective::AllReduce if ranks == 4 => Some(("rabenseifner", FEWER)),
        Collective::AllReduce if block_bytes <= MANY_WHOLE_BYTES => Some(("recursive_doubling", FEWER)),
        Collective::AllReduce => Some(("rabenseifner", FEWER)),
        Collective::AllGather if sent_bytes <= PASSED_ON_BYTES => None,
        Collective::AllGather if block_bytes < LARGE_BYTES => Some(("bidirectional_ring", NEIGHBOURS)),
        Collective::AllGather => Some(("ring", NEIGHBOURS)),
        Collective::ReduceScatter if sent_bytes <= SCATTERED_BYTES => Some(("pairwise", NEIGHBOURS)),
        Collective::ReduceScatter => Some(("ring", NEIGHBOURS)),
        Collective::Broadcast if (FROM_ROOT_BYTES.0..FROM_ROOT_BYTES.1).contains(&sent_bytes) => {
            Some(("direct", FEWER))
        }
        Collective::Broadcast => Some(("chain", NEIGHBOURS)),
        Collective::Reduce if block_bytes < WHOLE_BLOCK_BYTES => Some(("chain", NEIGHBOURS)),
        Collective::Reduce if sent_bytes <= ROOT_BYTES => Some(("direct", FEWER)),
        Collective::Reduce => Some(("binomial", FEWER)),
        Collective::Barrier if ranks < TREE_RANKS => {
            Some(("mesh", "more ranks than cores: the fewest waits"))
        }
        Collective::ExclusiveScan => Some(("chain", "more ranks than cores: in pieces that caches hold")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rank, plan, select};
    use topology::Reach;

    #[test]
    fn ranks_that_share_cores_send_fewer_messages() {
        let of = |collective, ranks, block_bytes| {
            let policy = select::Policy { oversubscribed: true, ..select::Policy::default() };
            let call = Call { collective, ranks, block_bytes };
            select::choose(call, Rank(0), &Reach::complete(), &policy, select::Requirements::default())
                .expect("a plan")
        };
        let pieces = of(Collective::AllReduce, 4, 1 << 20).segments;
        assert_eq!(pieces, 8, "of {TREE_SEGMENT_BYTES} bytes each");
        let scanned = |block_bytes| of(Collective::ExclusiveScan, 4, block_bytes);
        assert_eq!(scanned(256 << 10).segments, 4, "of {SCAN_SEGMENT_BYTES} bytes each");
        assert_eq!((scanned(64 << 10).segments, scanned(4).algorithm), (1, "chain"));
        let of = |collective, ranks, block_bytes| of(collective, ranks, block_bytes).algorithm;
        assert_eq!(of(Collective::AllReduce, 4, 16), "mesh");
        let largest_in_one_stage = [(4, 12 << 10), (5, 4 << 10), (6, 4 << 10), (8, 1 << 10), (12, 186)];
        for (ranks, block_bytes) in largest_in_one_stage {
            assert_eq!(of(Collective::AllReduce, ranks, block_bytes), "mesh", "{ranks} ranks");
            assert_ne!(of(Collective::AllReduce, ranks, block_bytes + 1), "mesh", "{ranks} ranks");
        }
        assert_eq!(
            [3, 15, 16].map(|ranks| of(Collective::Barrier, ranks, 0)),
            ["mesh", "mesh", "dissemination"]
        );
        assert_eq!(of(Collective::AllReduce, 8, 16 << 10), "recursive_doubling");
        assert_eq!(of(Collective::AllReduce, 8, 32 << 10), "rabenseifner");
        assert_eq!(of(Collective::AllReduce, 4, 16 << 10), "rabenseifner");
        assert_eq!(of(Collective::AllReduce, 4, 1 << 20), "reduce_broadcast");
        assert_eq!(of(Collective::AllReduce, 3, 16 << 10), "mesh");
        assert_eq!(of(Collective::AllReduce, 32, 4), "reduce_broadcast");
        assert_eq!(of(Collective::AllGather, 6, 64 << 10), "bidirectional_ring");
        assert_eq!(of(Collective::ReduceScatter, 8, 64 << 10), "ring");
        assert_eq!(of(Collective::ReduceScatter, 5, 1 << 10), "pairwise");
        assert_eq!([4095, 4096].map(|bytes| of(Collective::Reduce, 4, bytes)), ["chain", "direct"]);
        assert_eq!(of(Collective::Reduce, 4, 64 << 10), "direct");
        assert_eq!(of(Collective::Reduce, 4, 1 << 20), "binomial");
    }

    #[test]
    fn where_messages_are_calls_the_plans_of_the_fewest_are_taken() {
        let of = |collective, ranks, block_bytes| {
            let tuning = Tuning { messages_are_calls: true, ..Tuning::default() };
            let policy = select::Policy { oversubscribed: true, tuning, ..select::Policy::default() };
            let call = Call { collective, ranks, block_bytes };
            let choice =
                select::choose(call, Rank(0), &Reach::complete(), &policy, select::Requirements::default());
            choice.expect("a plan").algorithm
        };
        for block_bytes in [4, 2 << 10, 1 << 20] {
            assert_eq!(of(Collective::AllReduce, 4, block_bytes), "reduce_broadcast");
            assert_eq!(of(Collective::AllReduce, 64, block_bytes), "reduce_broadcast");
        }
        assert_eq!(of(Collective::AllReduce, 3, 4), "mesh");
        assert_eq!([3, 8, 64].map(|ranks| of(Collective::Barrier, ranks, 0)), ["binomial"; 3]);
        assert_eq!(of(Collective::AllGather, 6, 1 << 10), "pat");
        assert_eq!(of(Collective::ReduceScatter, 6, 1 << 10), "recursive_halving");
        assert_eq!([8, 32].map(|ranks| of(Collective::Broadcast, ranks, 64)), ["chain", "binomial"]);
        assert_eq!([8, 32].map(|ranks| of(Collective::Reduce, ranks, 64)), ["chain", "binomial"]);
    }

    #[test]
    fn whatever_is_preferred_exists() {
        for collective in Collective::ALL {
            for ranks in 1..=20 {
                for block_bytes in (0..40).map(|bits| 1u64 << bits) {
                    let call = Call { collective, ranks, block_bytes };
                    for (name, _) in [preferred(call), fewest_messages(call)].into_iter().flatten() {
                        assert!(plan::algorithm(collective, name).is_ok(), "{collective} {name}");
                    }
                }
            }
        }
    }
}
