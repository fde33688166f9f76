//! Fabric files of rounds: a mesh of nodes with equal devices, and cables with the faults of the round.

use super::{
    super::{fault::Kind, settings::FabricChoice},
    Round,
};
use crate::reference::{Random, mix};
use std::fmt::Write;

impl Round {
    /// Returns the number of nodes of the fabric.
    pub(in crate::commands::chaos) fn fabric_nodes(&self) -> u32 {
        (0..self.processes()).map(|number| self.node_of(number) + 1).max().unwrap_or_default()
    }

    /// Returns the number of cables.
    pub(in crate::commands::chaos) fn cable_count(&self) -> usize {
        match &self.setting.fabric {
            Some(FabricChoice::File { cables, .. }) => cables.len(),
            Some(FabricChoice::Profile(_)) => {
                (self.fabric_nodes() * (self.fabric_nodes() - 1) / 2 * self.cables_per_pair) as usize
            }
            None => 0,
        }
    }

    /// Returns the ports of a cable, and the numbers of their nodes.
    pub(in crate::commands::chaos) fn cable(&self, index: usize) -> [(String, u32); 2] {
        if let Some(FabricChoice::File { cables, .. }) = &self.setting.fabric {
            return cables[index].clone();
        }
        let pairs = self.pairs();
        let (a, b) = pairs[index / self.cables_per_pair as usize];
        let port = |node: u32| {
            let earlier = (0..index).filter(|cable| {
                let (a, b) = pairs[cable / self.cables_per_pair as usize];
                a == node || b == node
            });
            (format!("n{node}/d{}", earlier.count()), node)
        };
        [port(a), port(b)]
    }

    /// Returns the pairs of nodes of a mesh.
    fn pairs(&self) -> Vec<(u32, u32)> {
        let nodes = self.fabric_nodes();
        (0..nodes).flat_map(|a| (a + 1..nodes).map(move |b| (a, b))).collect()
    }

    /// Returns the text of the fabric file, unless the user has given one.
    pub(in crate::commands::chaos) fn fabric_text(&self) -> Option<String> {
        let Some(FabricChoice::Profile(profile)) = self.setting.fabric else { return None };
        let mut random = Random(mix(self.seed, self.number as usize) ^ 0xfab);
        let mut text = format!("profile = \"{profile}\"\n[link]\nseed = {}\n", random.below(1 << 30));
        let rate = random.pick(&["0.0001", "0.001", "0.01"]);
        for (kind, line) in [(Kind::Loss, "loss"), (Kind::Corruption, "corruption")] {
            if self.has(kind) {
                let _ = writeln!(text, "{line} = {rate}");
            }
        }
        let latency = random.pick(&[0.0, 0.0, 5.0, 20.0]);
        let _ = writeln!(text, "latency_us = {latency:.1}\njitter_us = {latency:.1}");
        for node in 0..self.fabric_nodes() {
            let devices =
                (0..self.cable_count()).filter(|cable| self.cable(*cable).iter().any(|e| e.1 == node));
            let devices: Vec<String> =
                (0..devices.count()).map(|k| format!("{{ name = \"d{k}\" }}")).collect();
            let _ = writeln!(text, "[[node]]\nname = \"n{node}\"\ndevice = [{}]", devices.join(", "));
        }
        for cable in 0..self.cable_count() {
            let [a, b] = self.cable(cable).map(|end| end.0);
            let _ = writeln!(text, "[[cable]]\nends = [\"{a}\", \"{b}\"]");
            if self.has(Kind::Bandwidth) {
                let _ = writeln!(text, "bandwidth_gbps = {}", random.pick(&["0.5", "2.0", "8.0"]));
            }
            if self.has(Kind::Reorder) {
                let _ = writeln!(text, "latency_us = {:.1}", random.pick(&[1.0, 30.0, 200.0]));
            }
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::rounds;
    use std::collections::HashSet;

    #[test]
    fn each_port_has_one_cable_between_different_nodes() {
        for round in rounds(200).iter().filter(|round| round.setting.has_devices()) {
            let mut ports = HashSet::new();
            for cable in 0..round.cable_count() {
                let [a, b] = round.cable(cable);
                assert!(a.1 != b.1 && ports.insert(a.0) && ports.insert(b.0), "{}", round.number);
            }
            let text = round.fabric_text().expect("a profile");
            assert_eq!(text.matches("[[cable]]").count(), round.cable_count());
            assert!(ports.iter().all(|port| text.contains(&format!("\"{port}\""))), "{text}");
        }
    }
}
