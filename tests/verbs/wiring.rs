//! Fabric files for tests: what kind of devices, wired how.

use std::fmt::Write;

/// Kinds of devices, and the service to ask them for where they have a choice.
pub(crate) const KINDS: [(&str, &str); 5] =
    [("ib", "rc"), ("ib", "uc"), ("usb4", "rc"), ("usb4", "uc"), ("apple-tb5", "uc")];

/// Who is wired to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Mesh,
    Ring,
}

/// A fabric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wiring {
    pub(crate) profile: &'static str,
    pub(crate) shape: Shape,
    pub(crate) nodes: u32,
    /// Between each two that are wired.
    pub(crate) cables: u32,
}

impl Wiring {
    pub(crate) const fn pair(profile: &'static str, cables: u32) -> Wiring {
        Wiring { profile, shape: Shape::Mesh, nodes: 2, cables }
    }

    /// The pairs that are wired.
    pub(crate) fn pairs(&self) -> Vec<(u32, u32)> {
        let n = self.nodes;
        match self.shape {
            Shape::Mesh => (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b))).collect(),
            Shape::Ring => (0..n).map(|a| (a, (a + 1) % n)).collect(),
        }
    }

    /// The device matrix of ranks, `per_node` of which follow each other on each node: with it only those that follow each
    /// other use the cables between their nodes, which makes a ring. One cable between each two nodes.
    pub(crate) fn ring_matrix(&self, per_node: u32) -> String {
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

    /// The fabric file. `link` is what its cables do, as lines of TOML. Devices are `d0`, `d1`... on nodes `n0`, `n1`...,
    /// in the order of the pairs; cables have the numbers of that order.
    pub(crate) fn text(&self, link: &str) -> String {
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
