//! Thresholds for ranks that outnumber the cores of their host.
//!
//! A rank that waits for a message also waits for a core, and a late message costs other ranks' turns. Ranks
//! run one after the other for every plan, so stages that overlap elsewhere gain nothing here. The cost is
//! the number of messages and the bytes of all ranks together, and for the smallest sizes on few ranks the
//! number of waits. The fastest plan depends on which ranks share a core: these thresholds are for neighbors
//! on one core. Up to three ranks the general thresholds apply, except to a barrier over TCP.
//!
//! They were measured with 4, 6, 8, 12 and 16 ranks on two cores of an AMD EPYC (Zen 4), with a common cache
//! and without: where the two differ, the choice is the one that loses less in the other case.
//!
//! Over TCP a message is a system call at both ends, and the plans of fewest messages are the fastest ones by
//! far: an `all_reduce` of 4 bytes between 32 ranks on two cores took 4.7 ms by `mesh`, 1.2 by
//! `recursive_doubling` and 0.6 by `reduce_broadcast`, one between 8 ranks 267, 128 and 99 us.
//!
//! Overrides, measurements and simulation take precedence over these thresholds.

use super::{Call, Choice, Tuning, segments};
use crate::Collective;

/// Largest block that four ranks sum in one stage.
const FOUR_IN_ONE_STAGE_BYTES: u64 = 16 << 10;
/// Largest block that other numbers of up to [`SEVERAL_RANKS`] sum in one stage.
const SEVERAL_IN_ONE_STAGE_BYTES: u64 = 4 << 10;
/// Most bytes that one of up to [`TREE_RANKS`] sends in one stage of a sum.
const MANY_IN_ONE_STAGE_BYTES: u64 = 12 << 10;
/// Ranks with which a root exchanges in one stage at all sizes up to [`FEW_WITH_ROOT_BYTES`].
const FEW_RANKS: u32 = 6;
/// Ranks whose messages in one stage cost less than further waits.
const SEVERAL_RANKS: u32 = 8;
/// Most bytes that a rank sends in one stage of an all-gather.
const GATHERED_BYTES: u64 = 256 << 10;
/// Most bytes that a rank sends in one stage of an all-gather of more than [`TREE_RANKS`].
const MANY_GATHERED_BYTES: u64 = 16 << 10;
/// Most bytes that a rank sends in a pairwise reduce-scatter, in which each rank adds one block per message.
const SCATTERED_BYTES: u64 = 1 << 20;
/// Most bytes that one of four ranks sends in a pairwise reduce-scatter.
const FOUR_SCATTERED_BYTES: u64 = 4 << 20;
/// Most bytes that a root sends to [`SEVERAL_RANKS`], or receives from [`FEW_RANKS`], in one stage.
const FEW_WITH_ROOT_BYTES: u64 = 3 << 20;
/// Range of bytes that the root of a broadcast sends to more ranks in one stage. A chain is faster below and
/// above it.
const FROM_ROOT_BYTES: (u64, u64) = (16 << 10, 1 << 20);
/// Most bytes that the root of a reduce receives from more than [`FEW_RANKS`] in one stage.
const TO_ROOT_BYTES: u64 = 512 << 10;
/// Smaller blocks of a reduce go down a chain of more than [`FEW_RANKS`]. Those of 4 to 16 KiB take 0.8 to
/// 1.1 of the time of one stage along a chain of 8 to 16 ranks, but 4 to 8 times as long along one of 32.
const CHAINED_BLOCK_BYTES: u64 = 4 << 10;
/// Smallest block for which bytes cost more than messages.
const LARGE_BYTES: u64 = 256 << 10;
/// Ranks from which a tree has fewer messages one after the other than a chain, and above which a mesh has
/// too many for any size.
const TREE_RANKS: u32 = 16;
/// Largest block that is moved by the plans of the fewest messages where each message is a call.
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
    let (is_small, is_large) = (block_bytes <= CALLS_BLOCK_BYTES, block_bytes >= LARGE_BYTES);
    if ranks < 4 {
        return (collective == Collective::Barrier && ranks > 2).then_some(("binomial", FEWEST));
    }
    Some(match collective {
        Collective::Barrier => ("binomial", FEWEST),
        Collective::AllReduce => ("reduce_broadcast", FEWEST),
        Collective::AllGather if is_small => ("pat", FEWEST),
        Collective::AllGather if !is_large => ("bidirectional_ring", NEIGHBOURS),
        Collective::ReduceScatter if is_small => ("recursive_halving", FEWEST),
        Collective::AllGather | Collective::ReduceScatter => ("ring", NEIGHBOURS),
        Collective::Broadcast | Collective::Reduce if ranks >= TREE_RANKS && !is_large => {
            ("binomial", FEWEST)
        }
        Collective::Broadcast | Collective::Reduce if ranks <= FEW_RANKS => return None,
        Collective::Broadcast if is_small && ranks < TREE_RANKS => ("direct", ONE_STAGE),
        Collective::Broadcast => ("chain", NEIGHBOURS),
        Collective::Reduce if !is_small => ("binomial", FEWER),
        _ => return None,
    })
}

/// Whether an all-reduce takes one stage.
fn is_in_one_stage(call: Call) -> bool {
    let Call { ranks, block_bytes, .. } = call;
    match ranks {
        4 => block_bytes <= FOUR_IN_ONE_STAGE_BYTES,
        _ if ranks <= SEVERAL_RANKS => block_bytes <= SEVERAL_IN_ONE_STAGE_BYTES,
        _ => ranks <= TREE_RANKS && to_all_others(call) <= MANY_IN_ONE_STAGE_BYTES,
    }
}

/// Returns the bytes of one block for each other rank.
fn to_all_others(call: Call) -> u64 {
    call.block_bytes.saturating_mul(u64::from(call.ranks - 1))
}

const FEWER: &str = "more ranks than cores: fewer messages";
const ONE_STAGE: &str = "more ranks than cores: one stage has the fewest waits";
const NEIGHBOURS: &str = "more ranks than cores: one peer after the other";

fn preferred(call: Call) -> Option<(&'static str, &'static str)> {
    let Call { collective, ranks, block_bytes } = call;
    if ranks < 4 {
        return None;
    }
    let choice = match collective {
        Collective::AllReduce if is_in_one_stage(call) => ("mesh", ONE_STAGE),
        Collective::AllReduce if ranks == 4 && block_bytes < LARGE_BYTES => ("rabenseifner", FEWER),
        Collective::AllReduce => {
            ("reduce_broadcast", "more ranks than cores: up a tree and down, in pieces that caches hold")
        }
        Collective::AllGather => return gather(call),
        Collective::ReduceScatter => scatter(call),
        Collective::Broadcast => broadcast(call),
        Collective::Reduce => reduce(call),
        Collective::Barrier if ranks < TREE_RANKS => ("mesh", "more ranks than cores: the fewest waits"),
        Collective::ExclusiveScan => ("chain", "more ranks than cores: in pieces that caches hold"),
        _ => return None,
    };
    Some(choice)
}

fn gather(call: Call) -> Option<(&'static str, &'static str)> {
    let sent_bytes = to_all_others(call);
    Some(match call.ranks {
        ..=TREE_RANKS if sent_bytes <= GATHERED_BYTES => ("direct", ONE_STAGE),
        _ if sent_bytes <= MANY_GATHERED_BYTES => return None,
        _ if call.block_bytes <= LARGE_BYTES => ("bidirectional_ring", NEIGHBOURS),
        _ => ("ring", NEIGHBOURS),
    })
}

fn scatter(call: Call) -> (&'static str, &'static str) {
    let most = if call.ranks == 4 { FOUR_SCATTERED_BYTES } else { SCATTERED_BYTES };
    (if to_all_others(call) <= most { "pairwise" } else { "ring" }, NEIGHBOURS)
}

fn broadcast(call: Call) -> (&'static str, &'static str) {
    let from_root = to_all_others(call);
    let in_one_stage = match call.ranks {
        ..=SEVERAL_RANKS => from_root <= FEW_WITH_ROOT_BYTES,
        _ => (FROM_ROOT_BYTES.0..=FROM_ROOT_BYTES.1).contains(&from_root),
    };
    if in_one_stage { ("direct", ONE_STAGE) } else { ("chain", NEIGHBOURS) }
}

fn reduce(call: Call) -> (&'static str, &'static str) {
    let to_root = to_all_others(call);
    match call.ranks {
        ..=FEW_RANKS if to_root <= FEW_WITH_ROOT_BYTES => ("direct", ONE_STAGE),
        ..=FEW_RANKS => ("binomial", FEWER),
        _ if call.block_bytes < CHAINED_BLOCK_BYTES => ("chain", NEIGHBOURS),
        _ if to_root <= TO_ROOT_BYTES => ("direct", ONE_STAGE),
        _ => ("binomial", FEWER),
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
        let largest_in_one_stage = [(4, 16 << 10), (5, 4 << 10), (8, 4 << 10), (12, 1117), (16, 819)];
        for (ranks, block_bytes) in largest_in_one_stage {
            assert_eq!(of(Collective::AllReduce, ranks, block_bytes), "mesh", "{ranks} ranks");
            assert_ne!(of(Collective::AllReduce, ranks, block_bytes + 1), "mesh", "{ranks} ranks");
        }
        assert_eq!(
            [3, 15, 16].map(|ranks| of(Collective::Barrier, ranks, 0)),
            ["mesh", "mesh", "dissemination"]
        );
        assert_eq!(of(Collective::AllReduce, 8, 16 << 10), "reduce_broadcast");
        assert_eq!(of(Collective::AllReduce, 4, 17 << 10), "rabenseifner");
        assert_eq!(of(Collective::AllReduce, 4, 256 << 10), "reduce_broadcast");
        assert_eq!(of(Collective::AllReduce, 3, 16 << 10), "mesh");
        assert_eq!(of(Collective::AllReduce, 32, 4), "reduce_broadcast");
        let gathers = [(4, 85 << 10), (4, 86 << 10), (4, 1 << 20), (16, 16 << 10), (32, 16 << 10)];
        let expected = ["direct", "bidirectional_ring", "ring", "direct", "bidirectional_ring"];
        assert_eq!(gathers.map(|(ranks, bytes)| of(Collective::AllGather, ranks, bytes)), expected);
        let scatters = [(4, 1 << 20), (4, 2 << 20), (8, 128 << 10), (8, 256 << 10)];
        let expected = ["pairwise", "ring", "pairwise", "ring"];
        assert_eq!(scatters.map(|(ranks, bytes)| of(Collective::ReduceScatter, ranks, bytes)), expected);
        let broadcasts = [(4, 4), (4, 1 << 20), (4, 2 << 20), (8, 4), (12, 4), (12, 64 << 10), (16, 1 << 20)];
        let expected = ["direct", "direct", "chain", "direct", "chain", "direct", "chain"];
        assert_eq!(broadcasts.map(|(ranks, bytes)| of(Collective::Broadcast, ranks, bytes)), expected);
        let few = [(4, 4), (4, 1 << 20), (4, 2 << 20), (6, 256 << 10)];
        let expected = ["direct", "direct", "binomial", "direct"];
        assert_eq!(few.map(|(ranks, bytes)| of(Collective::Reduce, ranks, bytes)), expected);
        let many = [(8, 4095), (8, 64 << 10), (8, 1 << 20), (16, 32 << 10), (16, 64 << 10)];
        let expected = ["chain", "direct", "binomial", "direct", "binomial"];
        assert_eq!(many.map(|(ranks, bytes)| of(Collective::Reduce, ranks, bytes)), expected);
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
        let with_root = |collective| [4, 8, 32].map(|ranks| of(collective, ranks, 64));
        assert_eq!(with_root(Collective::Broadcast), ["direct", "direct", "binomial"]);
        assert_eq!(with_root(Collective::Reduce), ["direct", "chain", "binomial"]);
        let longer = |collective| [4, 8, 32].map(|ranks| of(collective, ranks, 64 << 10));
        assert_eq!(longer(Collective::Broadcast), ["direct", "chain", "binomial"]);
        assert_eq!(longer(Collective::Reduce), ["direct", "binomial", "binomial"]);
        assert_eq!(longer(Collective::AllGather), ["bidirectional_ring"; 3]);
        assert_eq!(longer(Collective::ReduceScatter), ["ring"; 3]);
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
