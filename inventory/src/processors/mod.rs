//! Processors: the cores of a machine with their caches and memories, and the cores near each device.
//!
//! [`Processors::read`] takes the first source that a recording has: hwloc's XML, Linux's sysfs, or macOS's
//! `sysctl`. Each source lists parts with the hardware threads that belong to them; [`Part`]s are nested by
//! inclusion of these sets, so all sources give trees of one form.
//!
//! Invariants: the machine has all threads; a part's threads are a subset of those of the part around it; the
//! leaves are cores, except for memories without cores. Lists of threads are ascending.
//!
//! | module | purpose |
//! |---|---|
//! | `hwloc` | reader of hwloc's XML |
//! | `list` | lists of threads as Linux and hwloc write them |
//! | `sysctl` | reader of macOS's `sysctl hw` |
//! | `sysfs` | reader of Linux's sysfs |

mod hwloc;
mod list;
mod sysctl;
mod sysfs;

pub use list::parse_cpu_list;
pub use sysfs::pci_address;

use crate::Recording;
use serde::{Deserialize, Serialize};
use std::{cmp::Reverse, collections::BTreeMap};

/// Name of the output that has hwloc's XML.
pub const HWLOC: &str = "hwloc";

/// Kind of a part. Of two parts with the same threads, the one of the lesser kind is the outer one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartKind {
    /// The machine.
    #[default]
    Machine,
    /// A processor in its socket.
    Package,
    /// A NUMA node: memory with the cores near it.
    Numa,
    /// A die of a package.
    Die,
    /// Cores that a source groups for another reason.
    Group,
    /// A cache of level 4.
    L4,
    /// A cache of level 3.
    L3,
    /// A cache of level 2.
    L2,
    /// A cache of level 1, for data.
    L1,
    /// A core.
    Core,
}

impl PartKind {
    /// Returns the name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PartKind::Machine => "machine",
            PartKind::Package => "package",
            PartKind::Numa => "NUMA node",
            PartKind::Die => "die",
            PartKind::Group => "group",
            PartKind::L4 => "L4",
            PartKind::L3 => "L3",
            PartKind::L2 => "L2",
            PartKind::L1 => "L1d",
            PartKind::Core => "core",
        }
    }

    /// Returns the kind of a cache, of a level that is known here.
    fn cache(level: u32) -> Option<PartKind> {
        Some(match level {
            1 => PartKind::L1,
            2 => PartKind::L2,
            3 => PartKind::L3,
            4 => PartKind::L4,
            _ => return None,
        })
    }
}

/// A part of a machine, with the parts within it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Its kind.
    pub kind: PartKind,
    /// The system's number of a package, NUMA node, die or core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    /// Bytes of a cache, or of a NUMA node's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Model of a package, or kind of a core: `performance`, `efficiency`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Its hardware threads, by the system's numbers, ascending.
    pub cpus: Vec<u32>,
    /// The parts within it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
}

impl Part {
    /// Creates a part without parts within it.
    fn new(kind: PartKind, number: Option<u32>, mut cpus: Vec<u32>) -> Part {
        cpus.sort_unstable();
        cpus.dedup();
        Part { kind, number, cpus, ..Part::default() }
    }

    /// Whether all of these threads belong to the part. Never true for no threads.
    #[must_use]
    pub fn has(&self, cpus: &[u32]) -> bool {
        !cpus.is_empty() && cpus.iter().all(|cpu| self.cpus.binary_search(cpu).is_ok())
    }

    /// Returns all parts of a kind, this one included, in the order of the tree.
    #[must_use]
    pub fn all(&self, kind: PartKind) -> Vec<&Part> {
        let own = (self.kind == kind).then_some(self);
        own.into_iter().chain(self.parts.iter().flat_map(|part| part.all(kind))).collect()
    }

    /// Puts a part into the innermost part that has its threads. A part without threads belongs here.
    fn insert(&mut self, part: Part) {
        match self.parts.iter_mut().find(|own| own.has(&part.cpus)) {
            Some(own) => own.insert(part),
            None => self.parts.push(part),
        }
    }

    /// Sorts all parts by their first threads; those without threads come last.
    fn sort(&mut self) {
        self.parts.sort_by_key(|part| part.cpus.first().copied().unwrap_or(u32::MAX));
        self.parts.iter_mut().for_each(Part::sort);
    }
}

/// Kind of a device that is near some cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NearKind {
    /// A network interface.
    #[default]
    Network,
    /// An RDMA device.
    Rdma,
    /// A Thunderbolt host router, which has the ports `ROUTER/1`, `ROUTER/2`, ...
    Thunderbolt,
}

/// A device with the threads near it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Near {
    /// Kind of the device.
    pub kind: NearKind,
    /// The threads, ascending.
    pub cpus: Vec<u32>,
}

/// The processors of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processors {
    /// Source of the values: `hwloc 2.9.0`, `sysfs`, `sysctl`.
    pub source: String,
    /// The machine, with all parts.
    pub machine: Part,
    /// Devices by name, with the threads near them. A device near all threads is absent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub near: BTreeMap<String, Near>,
}

impl Processors {
    /// Reads the processors of a recording; `None` if it has no source.
    ///
    /// # Errors
    /// A message in one line, if hwloc's XML can't be read. Without it, the other sources would be read.
    pub fn read(recording: &Recording) -> Result<Option<Processors>, String> {
        let system = sysfs::read(recording).or_else(|| sysctl::read(recording));
        let Some(xml) = recording.output(HWLOC) else { return Ok(system) };
        let mut processors = hwloc::read(xml)?;
        // Devices that hwloc does not list, such as Thunderbolt ports.
        for (name, near) in system.into_iter().flat_map(|system| system.near) {
            processors.near.entry(name).or_insert(near);
        }
        Ok(Some(processors))
    }

    /// Nests parts by their threads; `None` without threads. Parts that occur twice count once.
    fn nest(source: String, mut parts: Vec<Part>, near: BTreeMap<String, Near>) -> Option<Processors> {
        let all: Vec<u32> = parts.iter().flat_map(|part| part.cpus.iter().copied()).collect();
        let mut machine = Part::new(PartKind::Machine, None, all);
        if machine.cpus.is_empty() {
            return None;
        }
        parts.retain(|part| part.kind != PartKind::Machine);
        let order = |part: &Part| {
            let first = part.cpus.first().copied();
            (Reverse(part.cpus.len()), part.kind, first, part.number)
        };
        parts.sort_by_key(order);
        parts.dedup_by(|a, b| a.kind == b.kind && a.cpus == b.cpus && a.number == b.number);
        for part in parts {
            machine.insert(part);
        }
        machine.sort();
        let near = near.into_iter().filter(|(_, near)| machine.has(&near.cpus) && near.cpus != machine.cpus);
        Some(Processors { source, near: near.collect(), machine })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_nested_by_their_threads_in_any_order() {
        let part = |kind, number, cpus: &[u32]| Part::new(kind, Some(number), cpus.to_vec());
        let parts = vec![
            part(PartKind::Core, 1, &[1]),
            part(PartKind::L2, 0, &[0]),
            part(PartKind::Package, 0, &[1, 0]),
            part(PartKind::Numa, 0, &[0, 1]),
            part(PartKind::Core, 0, &[0]),
            part(PartKind::Core, 0, &[0]),
            part(PartKind::Numa, 7, &[]),
        ];
        let near =
            |name: &str, cpus: &[u32]| (name.to_owned(), Near { cpus: cpus.to_vec(), ..Near::default() });
        let near = BTreeMap::from([near("near", &[0]), near("all", &[0, 1]), near("no", &[9])]);
        let all = Processors::nest("test".into(), parts, near).expect("threads");
        assert_eq!(all.near.keys().collect::<Vec<_>>(), ["near"]);
        let shape = |part: &Part| {
            fn line(part: &Part, text: &mut String) {
                text.push_str(&format!("{:?}{:?}(", part.kind, part.cpus));
                part.parts.iter().for_each(|part| line(part, text));
                text.push(')');
            }
            let mut text = String::new();
            line(part, &mut text);
            text
        };
        assert_eq!(
            shape(&all.machine),
            "Machine[0, 1](Package[0, 1](Numa[0, 1](L2[0](Core[0]())Core[1]()))Numa[]())"
        );
    }

    #[test]
    fn a_machine_without_threads_is_none() {
        assert_eq!(Processors::nest(String::new(), Vec::new(), BTreeMap::new()), None);
        assert_eq!(Processors::read(&Recording::new("linux")), Ok(None));
    }
}
