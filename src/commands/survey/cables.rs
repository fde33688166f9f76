//! The cables between surveyed hosts, as lines, JSON and a picture.

use crate::commands::page::{Cable, Cabling, Picture};
use inventory::{CableGraph, End, Inventory, Port};
use serde_json::{Value, json};

/// The cables between hosts.
#[derive(Debug)]
pub(in crate::commands) struct Cables<'a> {
    hosts: Vec<(&'a str, &'a Inventory)>,
    graph: CableGraph,
}

impl<'a> Cables<'a> {
    /// Matches the ports of hosts, which have a name each.
    pub(in crate::commands) fn of(hosts: impl Iterator<Item = (&'a str, &'a Inventory)>) -> Cables<'a> {
        let hosts: Vec<_> = hosts.collect();
        let inventories: Vec<&Inventory> = hosts.iter().map(|(_, inventory)| *inventory).collect();
        Cables { graph: CableGraph::of(&inventories), hosts }
    }

    fn port(&self, end: End) -> &'a Port {
        &self.hosts[end.host].1.ports[end.port]
    }

    fn name(&self, end: End) -> String {
        format!("{} {}", self.hosts[end.host].0, self.port(end).name)
    }

    /// Returns host and port at the other end of a port's cable, if it is among the hosts.
    pub(in crate::commands) fn partner(&self, host: usize, port: usize) -> Option<String> {
        let own = End { host, port };
        self.graph.cables.iter().find_map(|cable| match () {
            () if cable.low == own => Some(self.name(cable.high)),
            () if cable.high == own => Some(self.name(cable.low)),
            () => None,
        })
    }

    /// Returns the name of the shape that the cables give to the hosts.
    pub(in crate::commands) fn shape(&self) -> &'static str {
        self.graph.shape().name()
    }

    /// Returns numbers of hosts and cables, and the shape.
    pub(in crate::commands) fn summary(&self) -> String {
        let count = |count: usize, name: &str| format!("{count} {name}{}", if count == 1 { "" } else { "s" });
        let (hosts, cables) = (count(self.hosts.len(), "host"), count(self.graph.cables.len(), "cable"));
        format!("{hosts}, {cables}: {}", self.shape())
    }

    /// Returns a line for each cable, and for each port whose cable leads elsewhere.
    pub(in crate::commands) fn lines(&self) -> Vec<String> {
        let end = |end: End| {
            let port = self.port(end);
            let names: Vec<&str> =
                [&port.interface, &port.device].into_iter().flatten().map(String::as_str).collect();
            if names.is_empty() {
                self.name(end)
            } else {
                format!("{} ({})", self.name(end), names.join(", "))
            }
        };
        let rate = |gigabits: Option<f64>| gigabits.map_or(String::new(), |rate| format!(", {rate} Gb/s"));
        let cables = self.graph.cables.iter();
        let cables =
            cables.map(|cable| format!("{} -- {}{}", end(cable.low), end(cable.high), rate(cable.gigabits)));
        let foreign = self.graph.foreign.iter().map(|at| {
            let partner = self.port(*at).partner.as_ref().map_or("another machine", |partner| &partner.name);
            format!("{} leads to {partner}, none of these hosts", self.name(*at))
        });
        let one_sided = self.graph.one_sided.iter();
        let one_sided =
            one_sided.map(|at| format!("{} has a cable that its other end does not see", self.name(*at)));
        cables.chain(foreign).chain(one_sided).collect()
    }

    /// Returns the cables for programs.
    pub(in crate::commands) fn json(&self) -> Vec<Value> {
        let end = |end: End| {
            let port = self.port(end);
            json!({
                "host": self.hosts[end.host].0, "port": port.name,
                "interface": port.interface, "device": port.device,
            })
        };
        let cables = self.graph.cables.iter();
        cables
            .map(|cable| json!({"ends": [end(cable.low), end(cable.high)], "gigabits": cable.gigabits}))
            .collect()
    }

    /// Adds hosts, ports and cables to a picture, and the lines below them.
    pub(in crate::commands) fn draw(&self, picture: &mut Picture) {
        let short = |end: End| {
            let port = self.port(end);
            port.interface.clone().unwrap_or_else(|| port.name.clone())
        };
        let lines = self.lines();
        let cable = |(cable, text): (&inventory::Cable, &String)| Cable {
            ends: [cable.low.host, cable.high.host],
            ports: [short(cable.low), short(cable.high)],
            label: cable.gigabits.map_or_else(|| "no rate".to_owned(), |rate| format!("{rate} Gb/s")),
            text: text.clone(),
            is_bad: cable.gigabits.is_none(),
        };
        picture.add_cabling(&Cabling {
            hosts: self.hosts.iter().map(|(name, _)| (*name).to_owned()).collect(),
            cables: self.graph.cables.iter().zip(&lines).map(cable).collect(),
        });
        picture.add_lines(&[vec![self.summary()], lines].concat());
    }
}
