//! Reader of macOS's `sysctl hw`: levels of performance, cores, and the caches that they share.
//!
//! macOS numbers no cores and binds no threads. Cores are counted here in the order of their levels, fastest
//! first, so a number tells cores apart and names no core of the system.

use super::{Part, PartKind, Processors};
use crate::Recording;
use std::collections::{BTreeMap, HashMap};

/// The command.
const COMMAND: &str = "sysctl hw";
/// Cores of one level, at most.
const MAX_CORES: u32 = 4096;

/// Reads the output of the command; `None` if it names no cores.
pub(super) fn read(recording: &Recording) -> Option<Processors> {
    let output = recording.output(COMMAND)?;
    let values: HashMap<&str, &str> =
        output.lines().filter_map(|line| line.split_once(':')).map(|(k, v)| (k.trim(), v.trim())).collect();
    let number = |key: &str| values.get(key).and_then(|text| text.parse::<u64>().ok());
    let levels = number("hw.nperflevels").unwrap_or(0).min(8);
    let mut parts = Vec::new();
    for level in 0..levels {
        let prefix = format!("hw.perflevel{level}");
        let label = values.get(format!("{prefix}.name").as_str()).map(|name| name.to_lowercase());
        add_level(&mut parts, &|key| number(&format!("{prefix}.{key}")), label.as_deref());
    }
    if parts.is_empty() {
        add_level(&mut parts, &|key| number(&format!("hw.{key}")), None);
    }
    let all: Vec<u32> = parts.iter().flat_map(|part| part.cpus.iter().copied()).collect();
    let chip = recording.output("sysctl -n machdep.cpu.brand_string").map(|text| text.trim().to_owned());
    // Threads are not told apart by package, of which all Macs with Apple's chips have one.
    if number("hw.packages").unwrap_or(1) == 1 && !all.is_empty() {
        parts.push(Part { label: chip, ..Part::new(PartKind::Package, Some(0), all) });
    }
    Processors::nest("sysctl".to_owned(), parts, BTreeMap::new())
}

/// Adds the cores of a level behind those that are there.
fn add_level(parts: &mut Vec<Part>, number: &dyn Fn(&str) -> Option<u64>, label: Option<&str>) {
    let small = |key: &str| number(key).and_then(|value| u32::try_from(value).ok()).filter(|n| *n > 0);
    let Some(cores) = small("physicalcpu").filter(|cores| *cores <= MAX_CORES) else { return };
    let threads = small("logicalcpu").map_or(1, |threads| (threads / cores).clamp(1, 8));
    let first = parts.iter().flat_map(|part| part.cpus.iter()).max().map_or(0, |last| last + 1);
    let cores_before = parts.iter().filter(|part| part.kind == PartKind::Core).count() as u32;
    for core in 0..cores {
        let cpus: Vec<u32> = (first + core * threads..first + (core + 1) * threads).collect();
        if let Some(bytes) = number("l1dcachesize") {
            parts.push(Part { bytes: Some(bytes), ..Part::new(PartKind::L1, None, cpus.clone()) });
        }
        let part = Part::new(PartKind::Core, Some(cores_before + core), cpus);
        parts.push(Part { label: label.map(str::to_owned), ..part });
    }
    let all: Vec<u32> = (first..first + cores * threads).collect();
    let mut shared = |kind: PartKind, bytes: Option<u64>, per_cache: Option<u32>| {
        let Some(bytes) = bytes.filter(|bytes| *bytes > 0) else { return };
        for cpus in all.chunks(per_cache.unwrap_or(threads) as usize) {
            parts.push(Part { bytes: Some(bytes), ..Part::new(kind, None, cpus.to_vec()) });
        }
    };
    shared(PartKind::L2, number("l2cachesize"), small("cpusperl2"));
    shared(PartKind::L3, number("l3cachesize"), Some(small("cpusperl3").unwrap_or(cores * threads)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(text: &str) -> Option<Part> {
        let mut recording = Recording::new("macos");
        recording.outputs.insert(COMMAND.into(), text.into());
        read(&recording).map(|processors| processors.machine)
    }

    #[test]
    fn a_mac_without_levels_has_cores_with_threads() {
        let text = "hw.packages: 1\nhw.physicalcpu: 2\nhw.logicalcpu: 4\nhw.l1dcachesize: 32768\n\
                    hw.l2cachesize: 262144\nhw.l3cachesize: 4194304\n";
        let machine = machine(text).expect("cores");
        assert_eq!(machine.all(PartKind::L3).len(), 1);
        assert_eq!(machine.all(PartKind::L2).len(), 2);
        let cores: Vec<_> = machine.all(PartKind::Core).iter().map(|core| core.cpus.clone()).collect();
        assert_eq!(cores, [[0, 1], [2, 3]]);
    }

    #[test]
    fn output_without_sense_has_no_cores() {
        assert_eq!(machine("hw.physicalcpu: many\n"), None);
        assert_eq!(machine("hw.physicalcpu: 99999999\nhw.nperflevels: 99999999999\n"), None);
    }
}
