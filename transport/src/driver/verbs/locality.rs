//! Devices near the cores of a rank, by Linux's sysfs.
//!
//! A machine with several NUMA nodes has its devices at one node each. A device at a node without a core of
//! the rank is far: its traffic crosses the link between the nodes. No device is far from a rank that may use
//! all cores, nor on a system that does not tell.

use std::{collections::BTreeSet, fs, path::Path};

/// Returns the cores that the calling thread may use; `None` where the system does not tell.
#[cfg(target_os = "linux")]
pub(super) fn own_cores() -> Option<BTreeSet<usize>> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let allowed = sched_getaffinity(None).ok()?;
    Some((0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect())
}

/// Returns `None`: this system does not tell.
#[cfg(not(target_os = "linux"))]
pub(super) fn own_cores() -> Option<BTreeSet<usize>> {
    None
}

/// Whether a device is at a NUMA node that has none of these cores. `sysfs` is the folder of the system's
/// description, usually `/sys`.
pub(super) fn is_far(sysfs: &Path, device: &str, cores: &BTreeSet<usize>) -> bool {
    let list = sysfs.join("class/infiniband").join(device).join("device/local_cpulist");
    let near = fs::read_to_string(list).ok().and_then(|text| parse_list(&text));
    near.is_some_and(|near| !near.is_empty() && near.is_disjoint(cores))
}

/// Parses a list of cores: `0-3,8-11`.
fn parse_list(text: &str) -> Option<BTreeSet<usize>> {
    let mut cores = BTreeSet::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // Linux numbers fewer than 65536 cores.
        (last < 1 << 16).then_some(())?;
        cores.extend(first..=last);
    }
    Some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_at_a_node_without_a_core_of_the_rank_is_far() {
        let sysfs = tempfile::tempdir().expect("a folder");
        for (device, list) in [
            ("near", "0-3,8-11\n"),
            ("far", "4-7,12-15\n"),
            ("nowhere", "\n"),
            ("odd", "4-x\n"),
            ("vast", "4-999999\n"),
        ] {
            let folder = sysfs.path().join("class/infiniband").join(device).join("device");
            fs::create_dir_all(&folder).expect("a folder");
            fs::write(folder.join("local_cpulist"), list).expect("a file");
        }
        let far_from = |cores: &[usize]| {
            let cores = cores.iter().copied().collect();
            let all = ["near", "far", "nowhere", "odd", "vast", "unknown"];
            all.into_iter().filter(|device| is_far(sysfs.path(), device, &cores)).collect::<Vec<_>>()
        };
        assert_eq!(far_from(&[0, 8]), ["far"]);
        assert_eq!(far_from(&[12]), ["near"]);
        assert_eq!(far_from(&[3, 4]), [""; 0], "a rank that may use cores of both nodes");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_thread_may_use_a_core_at_least() {
        assert!(!own_cores().expect("Linux tells").is_empty());
    }
}
