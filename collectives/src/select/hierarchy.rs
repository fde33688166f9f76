//! Decides when a plan that goes within hosts first, and then between them, pays.
//!
//! The comparison is between the plan that would be chosen without knowledge of hosts (the *flat* one) and
//! the hierarchical plan. It considers the bytes that leave the busiest host, and the stages. The threshold
//! [`Tuning::stage_bytes`](super::Tuning) converts stages into bytes. Nothing tells whether a host has one
//! uplink or a cable to every other host; in the second case a ring between hosts sends everything over one
//! cable. The hierarchical plan is therefore taken only where it pays under both assumptions. Stages within a
//! host count as much as stages between hosts.
//!
//! The byte counts are closed forms for blocks that divide evenly; a test compares them with the traffic of
//! the plans.

use super::Call;
use crate::{Collective, Hosts, Rank};

/// The cost of a plan between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    /// Bytes that leave the host that sends most.
    bytes: u128,
    /// Hosts among which these bytes are divided equally.
    destinations: u64,
    /// Stages, within hosts and between them.
    stages: u64,
}

/// Returns the hierarchical plan where it is cheaper than the flat one.
pub(super) fn preferred(
    call: Call,
    hosts: Hosts,
    flat: &str,
    stage_bytes: u64,
) -> Option<(&'static str, &'static str)> {
    let n = call.ranks;
    let (count, most) = (hosts.count(n), hosts.max_per_host(n));
    if count < 2 || most < 2 {
        return None;
    }
    let (flat_cost, hierarchical_cost) = (cost(call, hosts, flat)?, cost(call, hosts, "hierarchical")?);
    let extra_stages = hierarchical_cost.stages.saturating_sub(flat_cost.stages);
    let pays = |flat: u128, hierarchical: u128| {
        flat.checked_sub(hierarchical)
            .is_some_and(|saved| saved >= u128::from(extra_stages) * u128::from(stage_bytes))
    };
    let per_cable = |cost: Cost| cost.bytes / u128::from(cost.destinations);
    let why = "several ranks on each of several hosts: less between hosts";
    (pays(flat_cost.bytes, hierarchical_cost.bytes)
        && pays(per_cable(flat_cost), per_cable(hierarchical_cost)))
    .then_some(("hierarchical", why))
}

/// Returns the cost of a plan, or `None` for an algorithm without a closed form.
fn cost(call: Call, hosts: Hosts, algorithm: &str) -> Option<Cost> {
    let n = call.ranks;
    let (ranks, count, block) = (u64::from(n), u64::from(hosts.count(n)), call.block_bytes);
    // The most pairs of a rank on one host and a rank elsewhere.
    let pairs =
        (0..hosts.count(n)).map(|host| u64::from(hosts.ranks_on(host, n))).map(|m| m * (ranks - m)).max()?;
    let share = |times: u64, of: u64| u128::from(block) * u128::from(times) / u128::from(of);
    let other_hosts = count.saturating_sub(1).max(1);
    let (bytes, destinations, stages) = match (call.collective, algorithm) {
        (Collective::AllReduce, "mesh") => (share(pairs, 1), other_hosts, 1),
        (Collective::AllReduce, "rsag_mesh") => (share(2 * pairs, ranks), other_hosts, 2),
        (Collective::AllReduce, "ring") => {
            (share(2 * (ranks - 1) * cross_host_hops(hosts, n), ranks), 1, 2 * (ranks - 1))
        }
        (Collective::AllReduce, "hierarchical") => (share(2 * (count - 1), count), 1, 2 * count),
        (Collective::AllGather, "direct") => (share(pairs, 1), other_hosts, 1),
        (Collective::AllGather, "ring") => (share((ranks - 1) * cross_host_hops(hosts, n), 1), 1, ranks - 1),
        (Collective::AllGather, "hierarchical") => {
            (share(u64::from(hosts.max_per_host(n)) * (count - 1), 1), other_hosts, 2)
        }
        _ => return None,
    };
    Some(Cost { bytes, destinations, stages })
}

/// Returns the ring hops that leave the host with the most of them.
fn cross_host_hops(hosts: Hosts, n: u32) -> u64 {
    let host = |rank: u32| hosts.place(Rank(rank % n), n).0;
    let mut leaving = vec![0; hosts.count(n) as usize];
    for rank in (0..n).filter(|rank| host(*rank) != host(rank + 1)) {
        leaving[host(rank) as usize] += 1;
    }
    leaving.into_iter().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Direction;
    use crate::{Sizes, Spec, plan};

    /// Returns the bytes that leave the busiest host, counted in the plan's steps.
    fn counted(call: Call, hosts: Hosts, algorithm: &str) -> u64 {
        let spec =
            Spec::new(call.collective, call.ranks).and_then(|spec| spec.with_hosts(hosts)).expect("in range");
        let schedule = plan::plan(&spec, algorithm).expect("a plan");
        let layout = schedule.layout(call.block_bytes, 1).expect("small");
        let host = |rank: Rank| hosts.place(rank, call.ranks).0;
        let mut sent = vec![0; hosts.count(call.ranks) as usize];
        for (id, step) in schedule.steps() {
            if let (Some((to, Direction::Out)), Some(range)) = (step.action.message(), step.action.payload())
                && host(to) != host(Rank(id.rank))
            {
                sent[host(Rank(id.rank)) as usize] += layout.range(range).1;
            }
        }
        sent.into_iter().max().unwrap_or(0)
    }

    #[test]
    fn bytes_between_hosts_are_those_that_plans_send() {
        let dealt = [
            (6, Hosts::Blocks(3)),
            (6, Hosts::Turns(2)),
            (6, Hosts::Sizes(Sizes::new(&[4, 2]).expect("few"))),
            (8, Hosts::Blocks(2)),
            (8, Hosts::Sizes(Sizes::new(&[1, 5, 2]).expect("few"))),
        ];
        let compared = [
            (Collective::AllReduce, ["mesh", "rsag_mesh", "ring", "hierarchical"].as_slice()),
            (Collective::AllGather, &["direct", "ring", "hierarchical"]),
        ];
        for (ranks, hosts) in dealt {
            for (collective, algorithms) in compared {
                for algorithm in algorithms {
                    // A block size that gives every chunk of every plan whole cache lines.
                    let call = Call { collective, ranks, block_bytes: 64 * 240 };
                    let said = cost(call, hosts, algorithm).expect("compared").bytes;
                    let counted = counted(call, hosts, algorithm);
                    // The ranks of a ring each skip one chunk, and the chunks differ among the ranks at which
                    // messages leave a host.
                    let chunk = if *algorithm == "ring" { call.block_bytes / u64::from(ranks) } else { 0 };
                    assert!(
                        said.abs_diff(counted.into()) <= u128::from(2 * chunk),
                        "{collective} by {algorithm} on {hosts}: {said}, and {counted} are sent"
                    );
                }
            }
        }
    }

    #[test]
    fn it_pays_by_what_is_saved_and_never_where_hosts_have_one_rank() {
        let call = |block_bytes| Call { collective: Collective::AllReduce, ranks: 4, block_bytes };
        let by = |hosts, block_bytes| preferred(call(block_bytes), hosts, "rsag_mesh", 64 << 10).is_some();
        // Two hosts of two ranks: two stages more, and a block less.
        assert!(by(Hosts::Blocks(2), 128 << 10) && by(Hosts::Turns(2), 128 << 10));
        assert!(!by(Hosts::Blocks(2), (128 << 10) - 1));
        assert!(!by(Hosts::One, 1 << 30) && !by(Hosts::Blocks(1), 1 << 30) && !by(Hosts::Turns(4), 1 << 30));
        assert!(by(Hosts::Blocks(2), u64::MAX));
        // A ring between four hosts uses one of three cables, so hierarchy pays only with four ranks on each
        // host.
        let of = |ranks, each| {
            let call = Call { ranks, ..call(1 << 24) };
            preferred(call, Hosts::Blocks(each), "rsag_mesh", 64 << 10).is_some()
        };
        assert!(!of(8, 2) && of(16, 4));
        let gather = Call { collective: Collective::AllGather, ranks: 8, block_bytes: 1 << 20 };
        assert!(preferred(gather, Hosts::Blocks(2), "direct", 64 << 10).is_some(), "it uses all of them");
        let other = Call { collective: Collective::ReduceScatter, ..call(1 << 30) };
        assert_eq!(preferred(other, Hosts::Blocks(2), "direct", 1), None);
    }
}
