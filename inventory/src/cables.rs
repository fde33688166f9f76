//! Ports of several machines, matched by their identifiers.
//!
//! A port with a cable knows the identifier of the controller at the other end. Two ports whose controllers
//! name each other are the ends of one cable. On macOS each port has a controller of its own, so the match is
//! certain. A controller of a PC may have two ports: where two of its cables lead to one and the same other
//! controller, the system does not tell them apart, and they are matched in the order of the ports.

use crate::{Inventory, Port};
use std::collections::BTreeMap;

/// One end of a cable: a port of a host, by their positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct End {
    /// The host's position among the inventories.
    pub host: usize,
    /// The port's position in the host's inventory.
    pub port: usize,
}

/// A cable between two hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Cable {
    /// The end at the host that comes first.
    pub low: End,
    /// The other end.
    pub high: End,
    /// Whether the identifiers leave no other match.
    pub certain: bool,
    /// Rate in Gb/s: the lower one that the ends report.
    pub gigabits: Option<f64>,
}

/// Shape that the cables give to the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A single host.
    Single,
    /// Cables do not connect all hosts.
    Apart,
    /// Every two hosts have a cable.
    Mesh,
    /// Each host has a cable to two others, in a circle.
    Ring,
    /// The hosts are in a line.
    Chain,
    /// One host has a cable to each other one.
    Star,
    /// All hosts are connected, in no regular shape.
    Irregular,
}

impl Shape {
    /// Returns the name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Shape::Single => "a single host",
            Shape::Apart => "apart",
            Shape::Mesh => "mesh",
            Shape::Ring => "ring",
            Shape::Chain => "chain",
            Shape::Star => "star",
            Shape::Irregular => "irregular",
        }
    }
}

/// The cables between hosts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CableGraph {
    hosts: usize,
    /// Cables with both ends at these hosts, by their ends.
    pub cables: Vec<Cable>,
    /// Ports whose cable leads to a machine that is none of these hosts.
    pub foreign: Vec<End>,
    /// Ports whose cable leads to one of these hosts, which does not see it.
    pub one_sided: Vec<End>,
}

/// Ends between two controllers.
#[derive(Default)]
struct Between {
    low: Vec<End>,
    high: Vec<End>,
}

impl CableGraph {
    /// Matches the ports of hosts.
    #[must_use]
    pub fn of(inventories: &[&Inventory]) -> CableGraph {
        let mut graph = CableGraph { hosts: inventories.len(), ..CableGraph::default() };
        let mut owners: BTreeMap<String, usize> = BTreeMap::new();
        for (host, inventory) in inventories.iter().enumerate() {
            let uids = inventory.ports.iter().filter(|port| !port.uid.is_empty());
            owners.extend(uids.map(|port| (port.uid.to_lowercase(), host)));
        }
        let mut between: BTreeMap<(String, String), Between> = BTreeMap::new();
        for (end, port) in ends(inventories) {
            let Some(uid) = port.partner.as_ref().and_then(|partner| partner.uid.as_ref()) else { continue };
            let (own, other) = (port.uid.to_lowercase(), uid.to_lowercase());
            let Some(owner) = owners.get(&other) else {
                graph.foreign.push(end);
                continue;
            };
            if end.host < *owner {
                between.entry((own, other)).or_default().low.push(end);
            } else if end.host > *owner {
                between.entry((other, own)).or_default().high.push(end);
            }
        }
        for Between { low, high } in between.into_values() {
            let matched = low.len().min(high.len());
            graph.one_sided.extend(low.iter().chain(&high).filter(|_| low.len() != high.len()).copied());
            if low.len() != high.len() && matched != 0 {
                // Which of the ports has no counterpart is unknown.
                continue;
            }
            let certain = matched == 1;
            graph.cables.extend(low.into_iter().zip(high).map(|(low, high)| {
                let rates = [low, high].map(|end| inventories[end.host].ports[end.port].gigabits);
                let gigabits = rates.into_iter().flatten().reduce(f64::min);
                Cable { low, high, certain, gigabits }
            }));
        }
        graph.cables.sort_by_key(|cable| (cable.low.host, cable.high.host, cable.low.port));
        graph.one_sided.sort_unstable();
        graph
    }

    /// Returns the cables between two hosts.
    pub fn between(&self, a: usize, b: usize) -> impl Iterator<Item = &Cable> {
        let (low, high) = (a.min(b), a.max(b));
        self.cables.iter().filter(move |cable| (cable.low.host, cable.high.host) == (low, high))
    }

    /// Returns the hosts to which a host has a cable, ascending.
    #[must_use]
    pub fn neighbors(&self, host: usize) -> Vec<usize> {
        (0..self.hosts)
            .filter(|other| *other != host && self.between(host, *other).next().is_some())
            .collect()
    }

    /// Returns the pairs of hosts with more than one cable, with their number.
    #[must_use]
    pub fn doubled(&self) -> Vec<(usize, usize, usize)> {
        let pairs = (0..self.hosts).flat_map(|a| (a + 1..self.hosts).map(move |b| (a, b)));
        let counted = pairs.map(|(a, b)| (a, b, self.between(a, b).count()));
        counted.filter(|(.., cables)| *cables > 1).collect()
    }

    /// Whether cables connect all hosts.
    fn is_connected(&self) -> bool {
        let mut reached = vec![0];
        let mut at = 0;
        while at < reached.len() {
            let next = self.neighbors(reached[at]);
            reached.extend(next.into_iter().filter(|host| !reached.contains(host)).collect::<Vec<_>>());
            at += 1;
        }
        reached.len() == self.hosts
    }

    /// Returns the shape of the graph.
    #[must_use]
    pub fn shape(&self) -> Shape {
        let degrees: Vec<usize> = (0..self.hosts).map(|host| self.neighbors(host).len()).collect();
        let count = |degree: usize| degrees.iter().filter(|own| **own == degree).count();
        let all = self.hosts;
        match all {
            0 | 1 => Shape::Single,
            _ if !self.is_connected() => Shape::Apart,
            _ if count(all - 1) == all => Shape::Mesh,
            _ if count(2) == all => Shape::Ring,
            _ if count(1) == 2 && count(2) == all - 2 => Shape::Chain,
            _ if count(all - 1) == 1 && count(1) == all - 1 => Shape::Star,
            _ => Shape::Irregular,
        }
    }
}

fn ends<'a>(inventories: &'a [&Inventory]) -> impl Iterator<Item = (End, &'a Port)> {
    inventories.iter().enumerate().flat_map(|(host, inventory)| {
        inventory.ports.iter().enumerate().map(move |(port, own)| (End { host, port }, own))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Partner;

    /// Hosts with cables; a host's controller has one port, or all of them if `shared`.
    fn wired(hosts: usize, cables: &[(usize, usize)], shared: bool) -> Vec<Inventory> {
        let mut inventories = vec![Inventory::default(); hosts];
        for (number, (a, b)) in cables.iter().enumerate() {
            let uid = |host: usize| if shared { format!("U{host}") } else { format!("U{host}-{number}") };
            for (own, other) in [(*a, *b), (*b, *a)] {
                let partner = Partner { uid: Some(uid(other).to_lowercase()), ..Partner::default() };
                let port =
                    Port { uid: uid(own), partner: Some(partner), gigabits: Some(80.0), ..Port::default() };
                inventories[own].ports.push(port);
            }
        }
        inventories
    }

    fn graph(inventories: &[Inventory]) -> CableGraph {
        CableGraph::of(&inventories.iter().collect::<Vec<_>>())
    }

    /// Number of hosts, hosts at both ends of each cable, and shape.
    type Case = (usize, &'static [(usize, usize)], Shape);

    #[test]
    fn shapes_are_recognized() {
        let cases: [Case; 8] = [
            (1, &[], Shape::Single),
            (2, &[], Shape::Apart),
            (2, &[(0, 1)], Shape::Mesh),
            (4, &[(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], Shape::Mesh),
            (5, &[(0, 2), (2, 4), (4, 1), (1, 3), (3, 0)], Shape::Ring),
            (3, &[(0, 1), (2, 1)], Shape::Chain),
            (4, &[(1, 0), (1, 2), (1, 3)], Shape::Star),
            (4, &[(0, 1), (1, 2), (2, 0), (2, 3)], Shape::Irregular),
        ];
        for (hosts, cables, shape) in cases {
            for shared in [false, true] {
                let graph = graph(&wired(hosts, cables, shared));
                assert_eq!((graph.shape(), graph.cables.len()), (shape, cables.len()), "{cables:?}");
                assert!(graph.cables.iter().all(|cable| cable.certain && cable.gigabits == Some(80.0)));
            }
        }
    }

    #[test]
    fn doubled_cables_are_certain_only_where_each_port_has_an_identifier() {
        let cables = [(0, 1), (0, 1), (1, 2)];
        let certain = graph(&wired(3, &cables, false));
        assert_eq!(certain.doubled(), [(0, 1, 2)]);
        assert!(certain.cables.iter().all(|cable| cable.certain));
        let shared = graph(&wired(3, &cables, true));
        let flags: Vec<bool> = shared.cables.iter().map(|cable| cable.certain).collect();
        assert_eq!((shared.doubled(), flags), (vec![(0, 1, 2)], vec![false, false, true]));
    }

    #[test]
    fn cables_that_lead_elsewhere_and_those_that_one_end_does_not_see_are_told() {
        let mut inventories = wired(3, &[(0, 1), (1, 2)], false);
        inventories.pop();
        let graph1 = graph(&inventories);
        assert_eq!(graph1.foreign, [End { host: 1, port: 1 }]);
        inventories[0].ports[0].partner = None;
        let graph2 = graph(&inventories);
        assert_eq!((graph2.cables.len(), graph2.one_sided.as_slice()), (0, &[End { host: 1, port: 0 }][..]));
    }
}
