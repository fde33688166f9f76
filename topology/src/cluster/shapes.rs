//! Clusters of the usual shapes.

use super::{Cluster, ClusterError, IntraHost, Layer, Route, Speed, Switches, Wires};
use crate::{HostIndex, Wiring};
use std::collections::HashMap;

/// A tier of switches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tier {
    /// Hosts below one switch.
    pub hosts: u32,
    /// Ratio of the bandwidth of the hosts below a switch to that of its uplink; at most 1 for uplinks that
    /// never limit.
    pub oversubscription: f64,
    /// Seconds that going up and coming down again adds.
    pub latency: f64,
}

/// One end of a cable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct End {
    pub(super) host: u32,
    /// The port, where several cables share one.
    pub(super) port: Option<String>,
}

/// A cable, or several side by side.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cable {
    pub(super) ends: [End; 2],
    pub(super) speed: Speed,
}

impl Cable {
    pub(super) fn between(a: u32, b: u32, speed: Speed) -> Cable {
        Cable { ends: [a, b].map(|host| End { host, port: None }), speed }
    }
}

impl Cluster {
    /// Creates a cluster of hosts without connections.
    pub(super) fn bare(name: String, hosts: u32, (ranks_per_host, inside): (u32, IntraHost)) -> Cluster {
        let (links, wires) = (Vec::new(), Wires::Cables(HashMap::new()));
        let bare = Cluster { name, hosts, ranks_per_host, inside, links, memory: None, wires };
        bare.with_ranks((ranks_per_host, inside))
    }

    /// Adds cables. `ports` are those that several cables may share, with their capacity in each direction.
    pub(super) fn with_cables(mut self, cables: &[Cable], ports: &[(End, f64)]) -> Cluster {
        let mut shared: HashMap<&End, [Option<u32>; 2]> = HashMap::new();
        for (end, capacity) in ports {
            let name = format!("port {} of host {}", end.port.as_deref().unwrap_or_default(), end.host);
            let both = ["out", "in"].map(|way| self.add(format!("{name}, {way}"), *capacity));
            shared.insert(end, both);
        }
        let mut routes: HashMap<(u32, u32), Route> = HashMap::new();
        for cable in cables {
            for [from, to] in [[0, 1], [1, 0]].map(|ways| ways.map(|way: usize| &cable.ends[way])) {
                let ways = (from.host, to.host);
                if let Some(known) = routes.get(&ways) {
                    // A second cable: the capacity of both, which end at ports of their own.
                    if let Some(link) = known.links().iter().rev().find(|link| self.is_cable(**link, ways)) {
                        self.links[*link as usize].bytes_per_second += cable.speed.bytes_per_second;
                    }
                    continue;
                }
                let port = |end: &End, side: usize| shared.get(end).and_then(|both| both[side]);
                let (out, back) = (port(from, 0), port(to, 1));
                let link = self.add(name_of(ways), cable.speed.bytes_per_second);
                let route = Route::new(cable.speed.latency).with(out).with(link).with(back);
                routes.insert(ways, route);
            }
        }
        self.wires = Wires::Cables(routes);
        self
    }

    fn is_cable(&self, link: u32, ways: (u32, u32)) -> bool {
        self.links[link as usize].name == name_of(ways)
    }

    /// Creates a cluster in which every host has a cable to every other.
    #[must_use]
    pub fn mesh(hosts: u32, speed: Speed) -> Cluster {
        let pairs = (0..hosts).flat_map(|a| (a + 1..hosts).map(move |b| (a, b)));
        Cluster::cabled(format!("{hosts} hosts in a full mesh"), hosts, pairs, speed)
    }

    /// Creates a cluster in which every host has a cable to the next, and the last to the first.
    #[must_use]
    pub fn ring(hosts: u32, speed: Speed) -> Cluster {
        let pairs = (0..hosts).map(|a| (a, (a + 1) % hosts)).filter(|(a, b)| a != b && (hosts > 2 || a < b));
        Cluster::cabled(format!("{hosts} hosts in a ring"), hosts, pairs, speed)
    }

    /// Creates a cluster of 2 to the power of `dimensions` hosts, with cables between those whose numbers
    /// differ in one bit.
    #[must_use]
    pub fn hypercube(dimensions: u32, speed: Speed) -> Cluster {
        let hosts = 1 << dimensions;
        let pairs =
            (0..hosts).flat_map(|a| (0..dimensions).map(move |bit| (a, a ^ 1 << bit))).filter(|(a, b)| a < b);
        Cluster::cabled(format!("{hosts} hosts in a hypercube"), hosts, pairs, speed)
    }

    /// Creates a grid that wraps around in every dimension. Neighbors of the last dimension have consecutive
    /// numbers.
    #[must_use]
    pub fn torus(dimensions: &[u32], speed: Speed) -> Cluster {
        let hosts: u32 = dimensions.iter().product();
        let mut pairs = Vec::new();
        let mut stride = hosts;
        for size in dimensions {
            stride /= size;
            for a in 0..hosts {
                let place = a / stride % size;
                let b = a - place * stride + (place + 1) % size * stride;
                // A dimension of size two has one cable, not two.
                pairs.extend((a != b && (*size > 2 || a < b)).then_some((a, b)));
            }
        }
        let sizes: Vec<String> = dimensions.iter().map(u32::to_string).collect();
        Cluster::cabled(format!("{} hosts in a torus", sizes.join(" x ")), hosts, pairs.into_iter(), speed)
    }

    fn cabled(name: String, hosts: u32, pairs: impl Iterator<Item = (u32, u32)>, speed: Speed) -> Cluster {
        let cables: Vec<Cable> = pairs.map(|(a, b)| Cable::between(a, b, speed)).collect();
        Cluster::bare(name, hosts, (1, IntraHost::default())).with_cables(&cables, &[])
    }

    /// Returns the cluster of a wiring's hosts, with equal rails.
    #[must_use]
    pub fn from_wiring(wiring: &Wiring, speed: Speed) -> Cluster {
        let mut cables = Vec::new();
        for rail in wiring.rails() {
            let (HostIndex(a), HostIndex(b)) = (rail.low.host, rail.high.host);
            cables.push(Cable::between(a, b, speed));
        }
        let name = format!("{} hosts as they are wired", wiring.hosts());
        Cluster::bare(name, wiring.hosts(), (1, IntraHost::default())).with_cables(&cables, &[])
    }

    /// Creates a cluster of hosts below tiers of switches, the lowest first.
    ///
    /// `speed` is that of a host's link, with the latency between two hosts of one switch. The hosts of a
    /// switch have consecutive numbers.
    ///
    /// # Errors
    /// [`ClusterError::Tiers`] when a tier is not made of whole switches of the one below, or the last one
    /// does not have all hosts; [`ClusterError::Ranks`] when there are too many ranks.
    pub fn switched(
        hosts: u32,
        (ranks_per_host, inside): (u32, IntraHost),
        speed: Speed,
        tiers: &[Tier],
    ) -> Result<Cluster, ClusterError> {
        let whole = tiers.windows(2).all(|pair| pair[1].hosts % pair[0].hosts.max(1) == 0);
        if !whole
            || tiers.iter().any(|tier| tier.hosts == 0)
            || tiers.last().is_none_or(|top| top.hosts < hosts)
        {
            return Err(ClusterError::Tiers { hosts });
        }
        if 2 * tiers.len() > Route::MAX_LINKS {
            return Err(ClusterError::TooManyTiers { max: Route::MAX_LINKS / 2 });
        }
        let mut cluster =
            Cluster::bare(format!("{hosts} hosts below switches"), hosts, (ranks_per_host, inside))
                .checked()?;
        let adapters = cluster.links.len() as u32;
        for way in ["up", "down"] {
            for host in 0..hosts {
                cluster.add(format!("host {host}, {way}"), speed.bytes_per_second);
            }
        }
        let mut layers = Vec::new();
        for (number, tier) in tiers.iter().enumerate() {
            let switches = hosts.div_ceil(tier.hosts);
            let is_top = number + 1 == tiers.len();
            let mut uplinks = None;
            if !is_top && tier.oversubscription > 1.0 {
                let capacity = speed.bytes_per_second * f64::from(tier.hosts) / tier.oversubscription;
                for way in ["up", "down"] {
                    for switch in 0..switches {
                        let link = cluster.add(format!("switch {switch} of tier {number}, {way}"), capacity);
                        uplinks = uplinks.or(link);
                    }
                }
            }
            // Going beyond this tier costs the next one's latency.
            let latency = tiers.get(number + 1).map_or(0.0, |above| above.latency);
            layers.push(Layer { hosts: tier.hosts, uplinks, switches, latency });
        }
        cluster.wires =
            Wires::Switches(Switches { adapters, latency: speed.latency + tiers[0].latency, tiers: layers });
        Ok(cluster)
    }
}

fn name_of((from, to): (u32, u32)) -> String {
    format!("host {from} to host {to}")
}
