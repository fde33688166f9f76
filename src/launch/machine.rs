//! The cores of this machine, and binding of ranks to their share of them.
//!
//! The cores are read from Linux's own files, which list sockets, memory, caches and hardware threads:
//! placement needs no more, and no library at build time (hwloc reads the same files). A child inherits the
//! cores of the thread that starts it, so that thread moves there and back: nothing happens between fork and
//! exec.
//!
//! Without such files, or on a system that cannot bind processes, as macOS, ranks run anywhere, and the
//! launcher warns once.

use topology::Bind;

/// Says why ranks can't be bound here, if so.
#[cfg(not(target_os = "linux"))]
pub(super) fn obstacle(bind: Bind, _local_size: u32) -> Option<String> {
    (bind != Bind::None)
        .then(|| "this system can't keep processes on cores, so --bind has no effect".to_owned())
}

/// Runs `start` so that what it starts is kept on a rank's share of the cores.
#[cfg(not(target_os = "linux"))]
pub(super) fn bound<T>(_bind: Bind, _local_rank: u32, _local_size: u32, start: impl FnOnce() -> T) -> T {
    start()
}

#[cfg(target_os = "linux")]
pub(super) use linux::{bound, obstacle};

#[cfg(target_os = "linux")]
mod linux {
    use super::Bind;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    use std::{fs, path::Path};
    use topology::{Core, Cores, parse_cpu_list};

    const CPUS: &str = "/sys/devices/system/cpu";
    const NODES: &str = "/sys/devices/system/node";

    /// Says why ranks can't be bound here, if so.
    pub(in super::super) fn obstacle(bind: Bind, local_size: u32) -> Option<String> {
        if bind == Bind::None {
            return None;
        }
        let cores = cores();
        if cores.is_empty() {
            return Some(format!("{CPUS} tells of no cores, so --bind has no effect"));
        }
        let too_many = cores.share(bind, 0, local_size).is_none();
        too_many.then(|| format!("{local_size} ranks for {} cores, so --bind has no effect", cores.len()))
    }

    /// Runs `start` so that what it starts is kept on a rank's share of the cores.
    pub(in super::super) fn bound<T>(
        bind: Bind,
        local_rank: u32,
        local_size: u32,
        start: impl FnOnce() -> T,
    ) -> T {
        let share = if bind == Bind::None { None } else { cores().share(bind, local_rank, local_size) };
        let (Some(share), Ok(before)) = (share, sched_getaffinity(None)) else { return start() };
        let mut own = CpuSet::new();
        for cpu in share {
            own.set(cpu as usize);
        }
        // Not being allowed to is no reason not to start.
        let moved = sched_setaffinity(None, &own).is_ok();
        let started = start();
        if moved {
            let _ = sched_setaffinity(None, &before);
        }
        started
    }

    /// The cores on which this process may run.
    fn cores() -> Cores {
        let Ok(allowed) = sched_getaffinity(None) else { return Cores::default() };
        let number = |path: &Path| fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
        let list = |path: &Path| fs::read_to_string(path).ok().and_then(|text| parse_cpu_list(&text));
        let nodes = nodes();
        let mut cores = Vec::new();
        for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)) {
            let folder = Path::new(CPUS).join(format!("cpu{cpu}/topology"));
            let cpu = cpu as u32;
            let threads = list(&folder.join("thread_siblings_list")).unwrap_or_else(|| vec![cpu]);
            let mut cpus: Vec<u32> = threads
                .into_iter()
                .filter(|thread| (*thread as usize) < CpuSet::MAX_CPU && allowed.is_set(*thread as usize))
                .collect();
            if cpus.first() != Some(&cpu) {
                // Another of its threads, or a list that does not name it.
                if cpus.contains(&cpu) {
                    continue;
                }
                cpus = vec![cpu];
            }
            let numa = nodes.iter().find(|(_, cpus)| cpus.contains(&cpu)).map_or(0, |(node, _)| *node);
            let package = number(&folder.join("physical_package_id")).unwrap_or(0);
            let cache = largest_cache(cpu).unwrap_or(package);
            cores.push(Core { package, numa, cache, cpus });
        }
        Cores::new(cores)
    }

    /// The lowest number of a hardware thread that shares the largest cache of this one.
    fn largest_cache(cpu: u32) -> Option<u32> {
        let level = |cache: &Path| fs::read_to_string(cache.join("level")).ok()?.trim().parse::<u32>().ok();
        let caches = fs::read_dir(Path::new(CPUS).join(format!("cpu{cpu}/cache"))).ok()?;
        let caches = caches.flatten().map(|entry| entry.path());
        let (_, largest) = caches.filter_map(|cache| Some((level(&cache)?, cache))).max()?;
        parse_cpu_list(&fs::read_to_string(largest.join("shared_cpu_list")).ok()?)?.first().copied()
    }

    /// The parts of the memory, and the hardware threads that are near each.
    fn nodes() -> Vec<(u32, Vec<u32>)> {
        let Ok(entries) = fs::read_dir(NODES) else { return Vec::new() };
        let node = |entry: fs::DirEntry| {
            let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let cpus = parse_cpu_list(&fs::read_to_string(entry.path().join("cpulist")).ok()?)?;
            Some((number, cpus))
        };
        entries.flatten().filter_map(node).collect()
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_cores_of_this_machine_are_those_it_may_use() {
            let allowed = sched_getaffinity(None).expect("our own");
            let cores = cores();
            assert!(!cores.is_empty());
            let all = cores.share(Bind::Core, 0, 1).expect("a share");
            assert_eq!(all.len(), allowed.count() as usize, "{cores:?}");
        }

        #[test]
        fn the_thread_that_starts_is_back_on_its_cores_afterwards() {
            let before = sched_getaffinity(None).expect("our own");
            let inside = bound(Bind::Core, 0, 2, || sched_getaffinity(None).expect("our own"));
            let cores = cores().len();
            if cores >= 2 {
                assert!(inside.count() < before.count(), "half of {cores} cores");
            }
            assert!(sched_getaffinity(None).expect("our own") == before);
        }
    }
}
