//! Fabric files for tests: profile, shape and number of cables.

use std::fmt::Write;

/// Profiles, with the services that they support.
pub const KINDS: [(&str, &str); 5] =
    [("ib", "rc"), ("ib", "uc"), ("usb4", "rc"), ("usb4", "uc"), ("apple-tb5", "uc")];

/// The pairs of nodes that are wired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Every pair.
    Mesh,
    /// Neighbors in number.
    Ring,
    /// A ring through the even numbers and back through the odd ones.
    TurnedRing,
    /// Neighbors in number, but for the last and the first.
    Line,
}

/// A fabric of equal devices.
#[derive(Clone, Copy, Debug)]
pub struct Wiring {
    /// The profile of every device.
    pub profile: &'static str,
    /// The pairs that are wired.
    pub shape: Shape,
    /// The number of nodes.
    pub nodes: u32,
    /// Cables between each wired pair.
    pub cables: u32,
}

impl Wiring {
    /// Returns the wiring of two nodes.
    #[must_use]
    pub const fn pair(profile: &'static str, cables: u32) -> Wiring {
        Wiring { profile, shape: Shape::Mesh, nodes: 2, cables }
    }

    /// Returns the pairs of nodes that are wired.
    pub fn pairs(&self) -> Vec<(u32, u32)> {
        let n = self.nodes;
        match self.shape {
            Shape::Mesh => (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))).collect(),
            Shape::Ring => (0..n).map(|a| (a, (a + 1) % n)).collect(),
            Shape::TurnedRing => {
                let order: Vec<u32> = (0..n).step_by(2).chain((1..n).step_by(2).rev()).collect();
                (0..order.len()).map(|at| (order[at], order[(at + 1) % order.len()])).collect()
            }
            Shape::Line => (1..n).map(|b| (b - 1, b)).collect(),
        }
    }

    /// Returns a device matrix in which only successive ranks use the cables between their nodes, which makes
    /// a ring. Each node has `per_node` successive ranks; each pair of nodes has one cable.
    pub fn ring_matrix(&self, per_node: u32) -> String {
        let mut used = vec![0; self.nodes as usize];
        let mut devices = std::collections::BTreeMap::new();
        for (a, b) in self.pairs() {
            for (here, there) in [(a, b), (b, a)] {
                devices.insert((here, there), format!("d{}", used[here as usize]));
                used[here as usize] += 1;
            }
        }
        let ranks = self.nodes * per_node;
        let follows = |a: u32, b: u32| (a + 1) % ranks == b || (b + 1) % ranks == a;
        let cell = |a: u32, b: u32| devices.get(&(a / per_node, b / per_node)).filter(|_| follows(a, b));
        let rows: Vec<Vec<_>> = (0..ranks).map(|a| (0..ranks).map(|b| cell(a, b)).collect()).collect();
        serde_json::to_string(&rows).expect("JSON")
    }

    /// Returns the text of the fabric file; `link` is the TOML of its `[link]` table.
    ///
    /// Devices are `d0`, `d1`... on nodes `n0`, `n1`..., in the order of the pairs; cables are numbered in
    /// that order.
    pub fn text(&self, link: &str) -> String {
        let mut used = vec![0; self.nodes as usize];
        let mut cables = String::new();
        for (a, b) in self.pairs() {
            for _ in 0..self.cables {
                let [x, y] = [a, b].map(|node| {
                    used[node as usize] += 1;
                    format!("n{node}/d{}", used[node as usize] - 1)
                });
                let _ = writeln!(cables, "[[cable]]\nends = [\"{x}\", \"{y}\"]");
            }
        }
        let mut text = format!("profile = \"{}\"\n[link]\n{link}\n", self.profile);
        for (node, devices) in used.iter().enumerate() {
            let devices: Vec<String> = (0..*devices).map(|k| format!("{{ name = \"d{k}\" }}")).collect();
            let _ = writeln!(text, "[[node]]\nname = \"n{node}\"\ndevice = [{}]", devices.join(", "));
        }
        text + &cables
    }
}
