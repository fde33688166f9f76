//! Clusters: a model of machines and cables, with numbers, by which simulations price plans.
//!
//! A [`Cluster`] is a number of equal hosts with equally many ranks each, and [`Link`]s: a link is anything
//! with a capacity of its own that messages share. One direction of a cable is a link, so is one direction of
//! a port that several cables share, a bundle of uplinks of a switch, and the memory of a host. A message
//! between two ranks takes a [`Route`]: the links that it crosses at the same time, and its latency.
//!
//! There are two kinds of wiring. *Cables* connect two hosts directly; hosts without one do not reach each
//! other, since nothing forwards. *Switches* stand in tiers, and any two hosts communicate through the lowest
//! tier that contains both.
//!
//! Invariants: numbers are positive and finite, capacities may be infinite; a route has at most
//! [`Route::MAX_LINKS`] links and none of them twice; several cables between two hosts are one link of their
//! summed capacity.
//!
//! This module knows nothing of plans.

mod cabling;
mod error;
mod file;
mod shapes;
#[cfg(test)]
mod tests;

pub use cabling::{Cabling, Impossible, Plug, cablings};
pub use error::ClusterError;
pub use shapes::Tier;

use crate::{Rank, Reach};
use std::collections::HashMap;

/// One direction of a cable, or of anything else that has a capacity.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Display name: `host0 to host1`.
    pub name: String,
    /// Capacity in bytes per second.
    pub bytes_per_second: f64,
}

/// The speed of a cable, in each direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Seconds from the departure of a byte to its arrival.
    pub latency: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
}

impl Speed {
    /// Returns a speed of `latency_us` microseconds and `gigabits` gigabits per second.
    #[must_use]
    pub fn new(latency_us: f64, gigabits: f64) -> Speed {
        Speed { latency: latency_us * 1e-6, bytes_per_second: gigabits * 1.25e8 }
    }
}

/// The connection between ranks of one host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IntraHost {
    /// Speed of a single message.
    pub speed: Speed,
    /// Bytes per second of all messages of a host together.
    pub memory: f64,
}

impl Default for IntraHost {
    /// Shared memory of a current machine, estimated conservatively.
    fn default() -> IntraHost {
        IntraHost { speed: Speed::new(0.5, 100.0), memory: 50e9 }
    }
}

/// The route of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Route {
    links: [u32; Route::MAX_LINKS],
    len: u8,
    /// Seconds from the departure of a byte to its arrival.
    pub latency: f64,
    /// Maximum rate of one message in bytes per second, besides the links' capacities.
    pub max_rate: f64,
}

impl Route {
    /// Maximum number of links of a route.
    pub const MAX_LINKS: usize = 10;

    fn new(latency: f64) -> Route {
        Route { links: [0; Route::MAX_LINKS], len: 0, latency, max_rate: f64::INFINITY }
    }

    fn with(mut self, link: Option<u32>) -> Route {
        if let Some(link) = link {
            self.links[usize::from(self.len)] = link;
            self.len += 1;
        }
        self
    }

    /// Returns the links that the route crosses, by their numbers in [`Cluster::links`].
    #[must_use]
    pub fn links(&self) -> &[u32] {
        &self.links[..usize::from(self.len)]
    }
}

/// Maximum number of ranks of a cluster.
const MAX_RANKS: u32 = 1 << 24;

/// Hosts and the links between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    name: String,
    hosts: u32,
    ranks_per_host: u32,
    inside: IntraHost,
    links: Vec<Link>,
    /// The index of the first host's memory among the links; the others' follow. `None` where hosts have one
    /// rank.
    memory: Option<u32>,
    wires: Wires,
}

/// The connections between hosts.
#[derive(Clone, Debug, PartialEq)]
enum Wires {
    /// Cables, by pair of hosts in the direction of the message.
    Cables(HashMap<(u32, u32), Route>),
    Switches(Switches),
}

/// Tiers of switches above the hosts.
#[derive(Clone, Debug, PartialEq)]
struct Switches {
    /// Index of the first host's uplink among the links. The other hosts' uplinks follow, then the downlinks.
    adapters: u32,
    /// Seconds between two hosts below one switch of the lowest tier.
    latency: f64,
    tiers: Vec<Layer>,
}

/// One tier of switches.
#[derive(Clone, Debug, PartialEq)]
struct Layer {
    /// Hosts below one switch.
    hosts: u32,
    /// Index of the first switch's uplink among the links; the other uplinks follow, then the downlinks.
    /// `None` where uplinks carry everything that hosts can send.
    uplinks: Option<u32>,
    /// Number of switches.
    switches: u32,
    /// Seconds that the way up and down adds.
    latency: f64,
}

impl Cluster {
    /// Returns the cluster's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the same cluster with another name.
    #[must_use]
    pub fn with_name(self, name: impl Into<String>) -> Cluster {
        Cluster { name: name.into(), ..self }
    }

    /// Returns the number of hosts.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        self.hosts
    }

    /// Returns the number of ranks per host.
    #[must_use]
    pub fn ranks_per_host(&self) -> u32 {
        self.ranks_per_host
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.hosts * self.ranks_per_host
    }

    /// Returns the host of a rank. Hosts are filled one after the other.
    #[must_use]
    pub fn host_of(&self, rank: Rank) -> u32 {
        rank.0 / self.ranks_per_host
    }

    /// Returns all links.
    #[must_use]
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// Returns the sizes of the groups of ranks that share an uplink: a rank, a host, and the ranks below
    /// each tier of switches, as far as these are larger than one.
    #[must_use]
    pub fn groups(&self) -> Vec<u32> {
        let mut sizes = vec![1, self.ranks_per_host];
        if let Wires::Switches(switches) = &self.wires {
            sizes.extend(switches.tiers.iter().map(|tier| tier.hosts.saturating_mul(self.ranks_per_host)));
        }
        sizes.retain(|size| *size < self.ranks());
        sizes.dedup();
        sizes
    }

    /// Returns the route from one rank to another; `None` where nothing connects their hosts, or for a rank
    /// and itself.
    #[must_use]
    pub fn route(&self, from: Rank, to: Rank) -> Option<Route> {
        if from == to || from.0.max(to.0) >= self.ranks() {
            return None;
        }
        let (a, b) = (self.host_of(from), self.host_of(to));
        if a == b {
            let max_rate = self.inside.speed.bytes_per_second;
            let route = Route::new(self.inside.speed.latency).with(self.memory.map(|first| first + a));
            return Some(Route { max_rate, ..route });
        }
        match &self.wires {
            Wires::Cables(routes) => routes.get(&(a, b)).copied(),
            Wires::Switches(switches) => Some(switches.route(self.hosts, a, b)),
        }
    }

    /// Whether switches connect all hosts.
    #[must_use]
    pub fn is_switched(&self) -> bool {
        matches!(self.wires, Wires::Switches(_))
    }

    /// Returns the pairs of ranks that reach each other.
    #[must_use]
    pub fn reach(&self) -> Reach {
        match self.wires {
            Wires::Switches(_) => Reach::complete(),
            Wires::Cables(_) => Reach::new(self.ranks(), |a, b| self.route(a, b).is_some()),
        }
    }

    /// Returns the same cluster with every capacity, of links and of single messages, multiplied by a factor.
    #[must_use]
    pub fn scaled(mut self, factor: f64) -> Cluster {
        self.links.iter_mut().for_each(|link| link.bytes_per_second *= factor);
        self.inside.speed.bytes_per_second *= factor;
        self.inside.memory *= factor;
        self
    }

    /// Returns the cluster with `ranks_per_host` ranks on every host.
    fn with_ranks(mut self, (ranks_per_host, inside): (u32, IntraHost)) -> Cluster {
        (self.ranks_per_host, self.inside) = (ranks_per_host, inside);
        if ranks_per_host > 1 && self.memory.is_none() {
            // Memory links are added consecutively, so that the first index locates them all.
            for host in 0..self.hosts {
                let link = self.add(format!("memory of host {host}"), inside.memory);
                self.memory = self.memory.or(link);
            }
        }
        self
    }

    /// Returns the cluster, unless it has more ranks than [`MAX_RANKS`].
    fn checked(self) -> Result<Cluster, ClusterError> {
        let (hosts, ranks_per_host) = (self.hosts, self.ranks_per_host);
        match hosts.checked_mul(ranks_per_host) {
            Some(ranks) if ranks <= MAX_RANKS => Ok(self),
            _ => Err(ClusterError::Ranks { hosts, ranks_per_host, max: MAX_RANKS }),
        }
    }

    /// Returns the first host with more than `ports` cables, and their number.
    fn lacks_ports(&self, ports: u32) -> Option<(u32, u32)> {
        let Wires::Cables(routes) = &self.wires else { return None };
        let mut cables = vec![0; self.hosts as usize];
        routes.keys().for_each(|(from, _)| cables[*from as usize] += 1);
        (0..self.hosts).zip(cables).find(|(_, cables)| *cables > ports)
    }

    /// Adds a link, if it has a limit.
    fn add(&mut self, name: String, bytes_per_second: f64) -> Option<u32> {
        if bytes_per_second == f64::INFINITY {
            return None;
        }
        self.links.push(Link { name, bytes_per_second });
        Some(self.links.len() as u32 - 1)
    }
}

impl Switches {
    fn route(&self, hosts: u32, a: u32, b: u32) -> Route {
        let top = self.tiers.iter().position(|tier| a / tier.hosts == b / tier.hosts);
        let crossed = &self.tiers[..top.unwrap_or(self.tiers.len())];
        let latency = self.latency + crossed.iter().map(|tier| tier.latency).sum::<f64>();
        let up =
            |host: u32| crossed.iter().map(move |tier| tier.uplinks.map(|first| first + host / tier.hosts));
        let mut route = Route::new(latency).with(Some(self.adapters + a));
        route = up(a).fold(route, Route::with);
        let down =
            crossed.iter().map(|tier| tier.uplinks.map(|first| first + tier.switches + b / tier.hosts));
        down.rev().fold(route, Route::with).with(Some(self.adapters + hosts + b))
    }
}
