//! The cores of this machine, and the binding of ranks to them.
//!
//! The cores are read from Linux's sysfs files, which list sockets, NUMA nodes, caches and hardware threads.
//! Placement needs no more, and no library at build time (hwloc reads the same files). A child inherits the
//! affinity of the thread that starts it, so that thread changes its own affinity and restores it; no code
//! runs between fork and exec.
//!
//! Without such files, or on a system that cannot bind processes, such as macOS, ranks run anywhere, and the
//! launcher warns once.

use topology::Bind;

/// Returns the reason why ranks can't be bound here, if any.
#[cfg(not(target_os = "linux"))]
pub(super) fn binding_warning(bind: Bind, _local_size: u32) -> Option<String> {
    (bind != Bind::None)
        .then(|| "this system can't keep processes on cores, so --bind has no effect".to_owned())
}

/// Runs `start`; this system cannot bind the processes that it starts.
#[cfg(not(target_os = "linux"))]
pub(super) fn with_binding<T>(
    _bind: Bind,
    _local_rank: u32,
    _local_size: u32,
    start: impl FnOnce() -> T,
) -> T {
    start()
}

#[cfg(target_os = "linux")]
pub(super) use linux::{binding_warning, with_binding};

#[cfg(target_os = "linux")]
mod linux {
    use super::Bind;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    use std::{fs, path::Path};
    use topology::{Core, Cores, parse_cpu_list};

    const CPUS: &str = "/sys/devices/system/cpu";
    const NODES: &str = "/sys/devices/system/node";

    /// Returns the reason why ranks can't be bound here, if any.
    pub(in super::super) fn binding_warning(bind: Bind, local_size: u32) -> Option<String> {
        if bind == Bind::None {
            return None;
        }
        let cores = cores();
        if cores.is_empty() {
            return Some(format!("{CPUS} lists no cores, so --bind has no effect"));
        }
        let too_many = cores.share(bind, 0, local_size).is_none();
        too_many.then(|| format!("{local_size} ranks for {} cores, so --bind has no effect", cores.len()))
    }

    /// Runs `start` with this thread bound to a rank's share of the cores, which children inherit.
    pub(in super::super) fn with_binding<T>(
        bind: Bind,
        local_rank: u32,
        local_size: u32,
        start: impl FnOnce() -> T,
    ) -> T {
        let share = if bind == Bind::None { None } else { cores().share(bind, local_rank, local_size) };
        let (Some(share), Ok(original)) = (share, sched_getaffinity(None)) else { return start() };
        let mut cpus = CpuSet::new();
        for cpu in share {
            cpus.set(cpu as usize);
        }
        // A refused binding does not prevent the start.
        let is_bound = sched_setaffinity(None, &cpus).is_ok();
        let started = start();
        if is_bound {
            let _ = sched_setaffinity(None, &original);
        }
        started
    }

    /// Returns the cores on which this process may run.
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
                // This CPU was counted as a thread of an earlier core, or the list lacks it.
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

    /// Returns the lowest CPU number that shares this CPU's largest cache.
    fn largest_cache(cpu: u32) -> Option<u32> {
        let level = |cache: &Path| fs::read_to_string(cache.join("level")).ok()?.trim().parse::<u32>().ok();
        let caches = fs::read_dir(Path::new(CPUS).join(format!("cpu{cpu}/cache"))).ok()?;
        let caches = caches.flatten().map(|entry| entry.path());
        let (_, largest) = caches.filter_map(|cache| Some((level(&cache)?, cache))).max()?;
        parse_cpu_list(&fs::read_to_string(largest.join("shared_cpu_list")).ok()?)?.first().copied()
    }

    /// Returns the NUMA nodes, each with its CPUs.
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
            let original = sched_getaffinity(None).expect("our own");
            let inside = with_binding(Bind::Core, 0, 2, || sched_getaffinity(None).expect("our own"));
            let cores = cores().len();
            if cores >= 2 {
                assert!(inside.count() < original.count(), "half of {cores} cores");
            }
            assert!(sched_getaffinity(None).expect("our own") == original);
        }
    }
}
