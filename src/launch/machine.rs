//! The cores of this machine, and the binding of ranks to them.
//!
//! `processors` tells sockets, NUMA nodes, caches and hardware threads, and the cores near devices. A child
//! inherits the affinity of the thread that starts it, so that thread changes its own affinity and restores
//! it; no code runs between fork and exec.
//!
//! Without known cores, or on a system that cannot bind processes, such as macOS, ranks run anywhere, and the
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
    use crate::processors;
    use inventory::{NearKind, Part, PartKind, Processors};
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    use std::sync::OnceLock;
    use topology::{Core, Cores};

    /// Returns the reason why ranks can't be bound here, if any.
    pub(in super::super) fn binding_warning(bind: Bind, local_size: u32) -> Option<String> {
        if bind == Bind::None {
            return None;
        }
        let cores = cores();
        if cores.is_empty() {
            return Some(
                "neither hwloc nor /sys/devices/system/cpu names cores, so --bind has no effect".into(),
            );
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

    /// Returns the cores on which this process may run. They are read once.
    fn cores() -> &'static Cores {
        static CORES: OnceLock<Cores> = OnceLock::new();
        CORES.get_or_init(|| {
            let Ok(allowed) = sched_getaffinity(None) else { return Cores::default() };
            let is_allowed = |cpu: u32| (cpu as usize) < CpuSet::MAX_CPU && allowed.is_set(cpu as usize);
            processors::here().map_or_else(Cores::default, |here| cores_of(&here, &is_allowed))
        })
    }

    /// Returns the cores of a machine, with those of their threads that are allowed.
    fn cores_of(processors: &Processors, is_allowed: &dyn Fn(u32) -> bool) -> Cores {
        let mut cores = Vec::new();
        collect(
            &processors.machine,
            &Core { package: 0, numa: 0, cache: 0, cpus: Vec::new() },
            false,
            &mut cores,
        );
        for core in &mut cores {
            core.cpus.retain(|cpu| is_allowed(*cpu));
        }
        let of_kind = |kind: NearKind| {
            let devices = processors.near.values().filter(move |near| near.kind == kind);
            devices.flat_map(|near| near.cpus.iter().copied()).collect::<Vec<u32>>()
        };
        // Ranks use cables by TCP where there is no RDMA device.
        let rdma = of_kind(NearKind::Rdma);
        let near = if rdma.is_empty() { of_kind(NearKind::Thunderbolt) } else { rdma };
        Cores::new(cores).with_devices_near(&near)
    }

    /// Adds the cores of a part. `around` has the values of the parts around it, and `is_cached` tells
    /// whether a cache is among these.
    fn collect(part: &Part, around: &Core, is_cached: bool, cores: &mut Vec<Core>) {
        let (mut own, mut is_cached) = (around.clone(), is_cached);
        match part.kind {
            PartKind::Package => own.package = part.number.unwrap_or(own.package),
            PartKind::Numa => own.numa = part.number.unwrap_or(own.numa),
            PartKind::L4 | PartKind::L3 | PartKind::L2 | PartKind::L1 if !is_cached => {
                is_cached = true;
                own.cache = part.cpus.first().copied().unwrap_or(own.cache);
            }
            PartKind::Core => cores.push(Core { cpus: part.cpus.clone(), ..own.clone() }),
            _ => {}
        }
        part.parts.iter().for_each(|inner| collect(inner, &own, is_cached, cores));
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use inventory::{Inventory, Recording};

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

        /// Cores of a recorded machine.
        fn recorded(name: &str, is_allowed: &dyn Fn(u32) -> bool) -> Cores {
            let path = format!("{}/tests/data/machines/{name}.txt", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path).expect("a recording of the repository");
            let recording = Recording::from_text(&text).expect("valid");
            cores_of(&Inventory::read(&recording).processors.expect("processors"), is_allowed)
        }

        #[test]
        fn a_single_rank_is_bound_to_the_socket_of_the_adapter() {
            for name in ["linux-xeon-two-sockets", "linux-xeon-hwloc"] {
                let cores = recorded(name, &|_| true);
                assert_eq!(cores.share(Bind::Numa, 0, 1), Some(vec![4, 5, 6, 7, 12, 13, 14, 15]), "{name}");
                assert_eq!(cores.share(Bind::Core, 1, 8), Some(vec![1, 9]), "{name}");
            }
        }

        #[test]
        fn neighbouring_ranks_share_a_cache_of_several() {
            let cores = recorded("linux-epyc-four-caches", &|_| true);
            let shares: Vec<_> = (0..8).map(|rank| cores.share(Bind::Core, rank, 8)).collect();
            // Each cache of level 3 has two cores.
            assert_eq!(shares[2..4], [Some(vec![2, 10]), Some(vec![3, 11])]);
            let some = recorded("linux-epyc-four-caches", &|cpu| (4..8).contains(&cpu));
            assert_eq!((some.len(), some.share(Bind::Core, 0, 2)), (4, Some(vec![4, 5])));
        }
    }
}
