//! Processors of this machine: the texts that describe cores, caches, memories and devices near cores.
//!
//! hwloc is asked where its library is installed, and Linux's sysfs in any case. Both are texts, which
//! `inventory` reads, so that machines can be recorded. The launcher binds ranks by the same values that
//! `tbccl topology` shows. On macOS the survey of a machine runs `sysctl`, and nothing is bound.
//!
//! | module | purpose |
//! |---|---|
//! | `files` | files and links below a folder, by patterns |
//! | `hwloc` | hwloc's library, loaded at run time |
//!
//! # Safety
//! Unsafe code stands in `hwloc` only.

pub(crate) mod files;
mod hwloc;

#[cfg(target_os = "linux")]
use inventory::Processors;
use inventory::{HWLOC, Recording, pci_address};
use std::path::Path;

/// Files of cores, caches and memories.
const FILES: [&str; 12] = [
    "sys/devices/system/cpu/cpu*/topology/core_id",
    "sys/devices/system/cpu/cpu*/topology/die_id",
    "sys/devices/system/cpu/cpu*/topology/physical_package_id",
    "sys/devices/system/cpu/cpu*/topology/thread_siblings_list",
    "sys/devices/system/cpu/cpu*/cache/index*/level",
    "sys/devices/system/cpu/cpu*/cache/index*/shared_cpu_list",
    "sys/devices/system/cpu/cpu*/cache/index*/size",
    "sys/devices/system/cpu/cpu*/cache/index*/type",
    "sys/devices/system/node/node*/cpulist",
    "sys/devices/system/node/node*/meminfo",
    "sys/devices/cpu_atom/cpus",
    "sys/devices/cpu_core/cpus",
];

/// Links that lead from a device to its PCI device.
const LINKS: [&str; 3] =
    ["sys/class/net/*/device", "sys/class/infiniband/*/device", "sys/bus/thunderbolt/devices/domain*"];

/// Records what sysfs says below a folder.
pub(crate) fn record_sysfs(root: &Path, recording: &mut Recording) {
    for path in FILES.iter().flat_map(|pattern| files::expand(root, pattern)) {
        let Some(text) = files::read(root, &path) else { continue };
        // The other lines change from moment to moment.
        let total = |text: &str| text.lines().find(|line| line.contains("MemTotal:")).map(str::to_owned);
        let text = if path.ends_with("/meminfo") { total(&text).unwrap_or_default() } else { text };
        recording.files.insert(path, text);
    }
    for (path, target) in files::links(root, &LINKS) {
        if let Some(address) = pci_address(&target) {
            let path = format!("sys/bus/pci/devices/{address}/local_cpulist");
            recording.files.extend(files::read(root, &path).map(|text| (path, text)));
        }
        recording.links.insert(path, target);
    }
}

/// Records what hwloc says, if its library is installed.
pub(crate) fn record_hwloc(recording: &mut Recording) {
    if let Ok(xml) = hwloc::xml() {
        recording.outputs.insert(HWLOC.to_owned(), xml);
    }
}

/// Returns the processors of this machine, if a source tells them.
#[cfg(target_os = "linux")]
pub(crate) fn here() -> Option<Processors> {
    let mut recording = Recording::new("linux");
    record_sysfs(Path::new("/"), &mut recording);
    let by_sysfs = Processors::read(&recording).ok().flatten();
    record_hwloc(&mut recording);
    Processors::read(&recording).ok().flatten().or(by_sysfs)
}
