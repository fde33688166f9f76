//! Lower bounds of the time of a collective on a cluster for any plan, in the α-β model.
//!
//! Latency bound: some rank's result depends on another rank's data, so a message, or a chain of messages,
//! must come from there. The bound is the longest of all shortest routes, with the overheads of their
//! messages.
//!
//! Bandwidth bound: all bytes that a group of ranks must send or receive cross the links out of or into the
//! group. Groups are single ranks, hosts, and the ranks below each tier of switches. If `g` equal groups
//! all-reduce `B` bytes, all groups together send at least `2(g-1)B`: each part of the result is combined by
//! g-1 messages and distributed by g-1 more (P. Patarasuk, X. Yuan, 2009). No group receives less than `B`.
//!
//! Both bounds hold for every plan that computes the collective; a plan that reaches both need not exist. The
//! combined bound is the larger of the two, since transfers may overlap with latencies.

use super::Costs;
use crate::Collective;
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashSet},
};
use topology::{Cluster, Rank, Route};

/// Lower bounds, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// The latency bound: no message is faster than its route.
    pub latency: f64,
    /// The bandwidth bound: no link carries more than its capacity.
    pub bandwidth: f64,
}

impl Bounds {
    /// Returns the larger of both bounds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.latency.max(self.bandwidth)
    }
}

/// Returns the bounds of a collective on the first `ranks` ranks of a cluster, with blocks of `block_bytes`
/// bytes.
#[must_use]
pub fn bounds(
    collective: Collective,
    ranks: u32,
    block_bytes: u64,
    cluster: &Cluster,
    costs: &Costs,
) -> Bounds {
    let ranks = ranks.min(cluster.ranks());
    let bandwidth = [1].into_iter().chain(cluster.groups()).map(|size| {
        let groups = ranks.div_ceil(size);
        if groups < 2 { 0.0 } else { crossing(collective, ranks, size, block_bytes, cluster) }
    });
    let latency = if ranks > 1 { longest(collective, ranks, cluster, costs) } else { 0.0 };
    Bounds { latency, bandwidth: bandwidth.fold(0.0, f64::max) }
}

/// Returns the bytes that cross the borders of groups, divided by the bandwidth of those borders.
fn crossing(collective: Collective, ranks: u32, size: u32, block_bytes: u64, cluster: &Cluster) -> f64 {
    let groups = ranks.div_ceil(size);
    let (n, g) = (f64::from(ranks), f64::from(groups));
    // Below switches all groups are equal, except for a last one that is not full.
    let looked_at = if cluster.is_switched() { 1 } else { groups };
    let capacities: Vec<f64> =
        (0..looked_at).map(|group| way_out(group * size, size, ranks, cluster)).collect();
    let least = capacities.iter().copied().fold(f64::INFINITY, f64::min);
    let all = capacities.iter().sum::<f64>() / f64::from(looked_at) * g;
    let block = block_bytes as f64;
    // Bytes that a group of `size` ranks must receive or send, and bytes that all groups must send together.
    let inside = f64::from(size.min(ranks));
    let (each, together) = match collective {
        Collective::AllReduce => (block, 2.0 * (g - 1.0) * block),
        Collective::AllGather | Collective::ReduceScatter => ((n - inside) * block, (g - 1.0) * n * block),
        Collective::AllToAll => (inside * (n - inside) * block, n * (n - inside) * block),
        Collective::SendRecv => (block, g * block),
        Collective::Barrier => (0.0, 0.0),
        // One rank has to send or receive at least one block; others may have more.
        _ => (block, (g - 1.0) * block),
    };
    (each / least).max(together / all)
}

/// Returns an upper bound of the bytes per second that leave a group of ranks.
///
/// It is the bandwidth of the links that all routes out of the group cross first, or second, and so on up to
/// half of the route.
fn way_out(first: u32, size: u32, ranks: u32, cluster: &Cluster) -> f64 {
    let members = first..(first + size).min(ranks);
    let others = || (0..ranks).filter(|to| !members.contains(to));
    let pairs = members.clone().flat_map(|from| others().map(move |to| (Rank(from), Rank(to))));
    let mut crossed: [HashSet<u32>; Route::MAX_LINKS / 2] = Default::default();
    let mut depth = crossed.len();
    for route in pairs.filter_map(|(from, to)| cluster.route(from, to)) {
        let half = route.links().len().div_ceil(2);
        depth = depth.min(half);
        for (links, link) in crossed.iter_mut().zip(&route.links()[..half]) {
            links.insert(*link);
        }
    }
    let capacity = |links: &HashSet<u32>| -> f64 {
        links.iter().map(|link| cluster.links()[*link as usize].bytes_per_second).sum()
    };
    // Routes without a common link have no limit.
    crossed[..depth].iter().map(capacity).fold(f64::INFINITY, f64::min)
}

/// Returns the longest of the shortest routes between two ranks that depend on each other.
fn longest(collective: Collective, ranks: u32, cluster: &Cluster, costs: &Costs) -> f64 {
    let overhead = (costs.send_us + costs.recv_us) * 1e-6;
    let entering = costs.call_us * 1e-6;
    if collective == Collective::SendRecv {
        let hop = |from: u32| {
            cluster.route(Rank(from), Rank((from + 1) % ranks)).map_or(0.0, |route| route.latency)
        };
        return entering + overhead + (0..ranks).map(hop).fold(0.0, f64::max);
    }
    // With a full mesh the route is direct; the last ranks are the furthest apart.
    if cluster.is_switched() {
        let far = cluster.route(Rank(0), Rank(ranks - 1)).map_or(0.0, |route| route.latency);
        return entering + overhead + far;
    }
    let from = |source: u32| distances(source, ranks, cluster, overhead).into_iter().fold(0.0, f64::max);
    let all = || (0..ranks).map(from);
    entering
        + match collective {
            // The bound holds for any root.
            _ if collective.has_root() => all().fold(f64::INFINITY, f64::min),
            // Rank 0's data reaches all ranks.
            _ if collective.result_rule().is_prefix() => from(0),
            _ => all().fold(0.0, f64::max),
        }
}

/// Returns the seconds from a rank to every other, through other ranks where there is no cable (E. Dijkstra,
/// 1959).
fn distances(source: u32, ranks: u32, cluster: &Cluster, overhead: f64) -> Vec<f64> {
    let mut best = vec![f64::INFINITY; ranks as usize];
    best[source as usize] = 0.0;
    let mut open = BinaryHeap::from([(Reverse(0u64), source)]);
    while let Some((Reverse(bits), at)) = open.pop() {
        let so_far = f64::from_bits(bits);
        if so_far > best[at as usize] {
            continue;
        }
        for to in 0..ranks {
            let Some(route) = cluster.route(Rank(at), Rank(to)) else { continue };
            let distance = so_far + route.latency + overhead;
            if distance < best[to as usize] {
                best[to as usize] = distance;
                open.push((Reverse(distance.to_bits()), to));
            }
        }
    }
    best.retain(|distance| distance.is_finite());
    best
}
