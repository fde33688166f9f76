//! Reader of Linux's sysfs: `cpu/cpu*/topology`, `cpu/cpu*/cache` and `node/node*`.
//!
//! The formats are those of `Documentation/ABI/stable/sysfs-devices-system-cpu` and `sysfs-devices-node`.

use super::{Near, NearKind, Part, PartKind, Processors, parse_cpu_list};
use crate::Recording;
use std::collections::BTreeMap;

const CPUS: &str = "sys/devices/system/cpu";
const NODES: &str = "sys/devices/system/node";
/// Threads of the two kinds of cores of Intel's hybrid processors.
const KINDS: [(&str, &str); 2] =
    [("sys/devices/cpu_core/cpus", "performance"), ("sys/devices/cpu_atom/cpus", "efficiency")];

/// Reads sysfs; `None` if it lists no threads.
pub(super) fn read(recording: &Recording) -> Option<Processors> {
    let cpus: Vec<u32> = recording.entries(CPUS).iter().filter_map(|name| number_of(name, "cpu")).collect();
    let mut parts: Vec<Part> = cpus.iter().flat_map(|cpu| caches(recording, *cpu)).collect();
    parts.extend(cpus.iter().filter_map(|cpu| core(recording, *cpu)));
    parts.extend(grouped(recording, &cpus));
    parts.extend(recording.entries(NODES).iter().filter_map(|name| node(recording, name)));
    Processors::nest("sysfs".to_owned(), parts, near(recording))
}

/// Returns the number in a name such as `cpu3`.
fn number_of(name: &str, prefix: &str) -> Option<u32> {
    name.strip_prefix(prefix)?.parse().ok()
}

fn list(recording: &Recording, path: &str) -> Option<Vec<u32>> {
    parse_cpu_list(recording.file(path)?)
}

fn number(recording: &Recording, path: &str) -> Option<u32> {
    recording.file(path)?.parse().ok()
}

/// Returns the core of a thread. Its number is unique in a package only.
fn core(recording: &Recording, cpu: u32) -> Option<Part> {
    let folder = format!("{CPUS}/cpu{cpu}/topology");
    let threads = list(recording, &format!("{folder}/thread_siblings_list"));
    // A thread that its own list lacks is a core by itself.
    let threads = threads.filter(|threads| threads.contains(&cpu));
    let is_known = threads.is_some() || recording.has(&folder);
    let mut core = Part::new(
        PartKind::Core,
        number(recording, &format!("{folder}/core_id")),
        threads.unwrap_or_else(|| vec![cpu]),
    );
    let kind = |(path, _): &&(&str, &str)| list(recording, path).is_some_and(|cpus| cpus.contains(&cpu));
    core.label = KINDS.iter().find(kind).map(|(_, label)| (*label).to_owned());
    is_known.then_some(core)
}

/// Returns the caches of a thread that have data.
fn caches(recording: &Recording, cpu: u32) -> Vec<Part> {
    let folder = format!("{CPUS}/cpu{cpu}/cache");
    let one = |index: &str| {
        let path = format!("{folder}/{index}");
        let text = |key: &str| recording.file(&format!("{path}/{key}"));
        let kind = PartKind::cache(number(recording, &format!("{path}/level"))?)?;
        let cpus = list(recording, &format!("{path}/shared_cpu_list")).filter(|cpus| cpus.contains(&cpu))?;
        let bytes = text("size").and_then(|size| size.strip_suffix('K')?.parse::<u64>().ok());
        let part = Part { bytes: bytes.map(|kib| kib << 10), ..Part::new(kind, None, cpus) };
        (text("type") != Some("Instruction")).then_some(part)
    };
    recording.entries(&folder).into_iter().filter_map(one).collect()
}

/// Returns the packages, and the dies of packages that have several.
fn grouped(recording: &Recording, cpus: &[u32]) -> Vec<Part> {
    let mut packages: BTreeMap<u32, BTreeMap<u32, Vec<u32>>> = BTreeMap::new();
    for cpu in cpus {
        let folder = format!("{CPUS}/cpu{cpu}/topology");
        // Some virtual machines and boards have the number -1.
        if let Some(package) = number(recording, &format!("{folder}/physical_package_id")) {
            let die = number(recording, &format!("{folder}/die_id")).unwrap_or(0);
            packages.entry(package).or_default().entry(die).or_default().push(*cpu);
        }
    }
    let model = recording.file("proc/cpuinfo").and_then(|info| info.split_once(':'));
    let model = model.map(|(_, name)| name.trim().to_owned()).filter(|name| !name.is_empty());
    let mut parts = Vec::new();
    for (package, dies) in packages {
        let all = dies.values().flatten().copied().collect();
        parts.push(Part { label: model.clone(), ..Part::new(PartKind::Package, Some(package), all) });
        if dies.len() > 1 {
            parts.extend(dies.into_iter().map(|(die, cpus)| Part::new(PartKind::Die, Some(die), cpus)));
        }
    }
    parts
}

/// Returns a NUMA node.
fn node(recording: &Recording, name: &str) -> Option<Part> {
    let number = number_of(name, "node")?;
    let cpus = list(recording, &format!("{NODES}/{name}/cpulist"))?;
    let total = recording.file(&format!("{NODES}/{name}/meminfo")).unwrap_or_default();
    let total = total.lines().find_map(|line| line.split_once("MemTotal:")).map(|(_, rest)| rest);
    let bytes = total.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Some(Part { bytes: bytes.map(|kib| kib << 10), ..Part::new(PartKind::Numa, Some(number), cpus) })
}

/// Returns the devices with the threads near them, as the PCI device of each says.
fn near(recording: &Recording) -> BTreeMap<String, Near> {
    let one = |(path, target): (&String, &String)| {
        let (kind, name) = device_of(path)?;
        // A Thunderbolt interface belongs to a service, and that to a domain, which is below the controller.
        let domain = target.rsplit('/').next().and_then(domain_of);
        let domain = domain.and_then(|domain| recording.links.get(&format!("{THUNDERBOLT}/{domain}")));
        let address = pci_address(domain.unwrap_or(target))?;
        let cpus = list(recording, &format!("{PCI}/{address}/local_cpulist"))?;
        Some((name, Near { kind, cpus }))
    };
    recording.links.iter().filter_map(one).collect()
}

const THUNDERBOLT: &str = "sys/bus/thunderbolt/devices";
const PCI: &str = "sys/bus/pci/devices";

/// Returns the device that a link of sysfs is of: an interface, an RDMA device, or the host router of a
/// Thunderbolt domain.
fn device_of(path: &str) -> Option<(NearKind, String)> {
    let of_class = |class: &str| path.strip_prefix(class)?.strip_prefix('/')?.strip_suffix("/device");
    let network = || Some((NearKind::Network, of_class("sys/class/net")?.to_owned()));
    let rdma = || Some((NearKind::Rdma, of_class("sys/class/infiniband")?.to_owned()));
    let router = || {
        let domain: u32 = path.strip_prefix(THUNDERBOLT)?.strip_prefix("/domain")?.parse().ok()?;
        Some((NearKind::Thunderbolt, format!("{domain}-0")))
    };
    network().or_else(rdma).or_else(router)
}

/// Returns the domain of a service such as `0-1.0`: `domain0`.
fn domain_of(service: &str) -> Option<String> {
    let (domain, _) = service.split_once('-').filter(|_| service.contains('.'))?;
    domain.parse::<u32>().ok().map(|domain| format!("domain{domain}"))
}

/// Returns the last address of a PCI device in the target of a link of sysfs.
#[must_use]
pub fn pci_address(target: &str) -> Option<&str> {
    target.rsplit('/').find(|part| {
        let numbers: Vec<&str> = part.split([':', '.']).collect();
        let is_hex = |text: &&str| !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit());
        numbers.len() == 4 && part.matches(':').count() == 2 && numbers.iter().all(is_hex)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_below_their_pci_device() {
        assert_eq!(pci_address("../../../0000:41:00.0"), Some("0000:41:00.0"));
        assert_eq!(pci_address("../../../devices/pci0000:00/0000:00:0d.2/domain0"), Some("0000:00:0d.2"));
        assert_eq!(pci_address("../../../virtio2"), None);
        assert_eq!(domain_of("1-301.0").as_deref(), Some("domain1"));
        assert_eq!(domain_of("0000:41:00.0"), None);
    }

    #[test]
    fn threads_without_lists_are_cores_of_their_own() {
        let mut recording = Recording::new("linux");
        for cpu in 0..2 {
            recording.files.insert(format!("{CPUS}/cpu{cpu}/topology/physical_package_id"), "-1".into());
        }
        let machine = read(&recording).expect("threads").machine;
        assert_eq!(machine.parts.iter().map(|part| part.cpus.clone()).collect::<Vec<_>>(), [[0], [1]]);
    }
}
