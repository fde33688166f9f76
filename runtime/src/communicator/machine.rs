//! The machines of a job: the ranks that share a host, and the processors.
//!
//! All ranks must get the same results, since plans depend on them. So this module queries nothing that ranks
//! of one host may see differently, such as the cores to which each is bound.

use crate::error::PeerName;
use collectives::select::{Fingerprint, Tuning};
use std::{fmt, sync::OnceLock};
use topology::{Placement, Rank};
use transport::driver::Endpoint;

/// Returns the name of this host, as the kernel knows it.
pub(super) fn host_name() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

/// Returns the placement of ranks on hosts: the driver's, which knows the ranks that share memory, or else by
/// host names.
pub(super) fn placement_of(endpoint: Option<&dyn Endpoint>, names: &[PeerName]) -> Option<Placement> {
    match endpoint.and_then(Endpoint::hosts) {
        Some(hosts) => Placement::from_hosts(hosts).ok(),
        None => Placement::from_hosts(names.iter().map(|name| name.host.as_str())).ok(),
    }
}

/// Returns the thresholds of selection for a transport. `apart` means that every rank has a host of its own.
pub(super) fn tuning_of(transport: &str, apart: bool) -> Tuning {
    match transport {
        "verbs" => Tuning::rdma(),
        "tcp" => Tuning { messages_are_calls: true, ..Tuning::default() },
        "shm+verbs" if apart => Tuning::rdma(),
        _ => Tuning::default(),
    }
}

/// Returns the fingerprint of a job's machines, as far as all of its ranks know it.
pub(super) fn fingerprint(transport: &str, names: &[PeerName]) -> Fingerprint {
    let placement = Placement::from_hosts(names.iter().map(|name| name.host.as_str()));
    let hosts = placement.map_or(1, |placement| placement.hosts());
    // A rank knows only its own host.
    let machine = if hosts == 1 { Processors::here().to_string() } else { "several hosts".to_owned() };
    Fingerprint { transport: transport.to_owned(), ranks: names.len() as u32, hosts, machine }
}

/// The processors of this machine: all of them, not those that this rank may use, since ranks differ in that.
pub(super) struct Processors {
    pub(super) cores: usize,
    model: String,
}

impl Processors {
    /// Returns this machine's processors, which are queried once.
    pub(super) fn here() -> &'static Processors {
        static HERE: OnceLock<Processors> = OnceLock::new();
        HERE.get_or_init(|| Processors::read(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()))
    }

    fn read(info: &str) -> Processors {
        let cores = match info.lines().filter(|line| line.starts_with("processor")).count() {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            listed => listed,
        };
        let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let model =
            model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, model)| model.trim().to_owned());
        Processors { cores, model }
    }
}

impl fmt::Display for Processors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cores, {}", self.cores, self.model)
    }
}

/// Returns the number of cores that this process may use: its affinity and the limits of its container, which
/// are queried once. The latter are read from files, which takes as long as a message to another host.
pub(super) fn usable_cores() -> u32 {
    static CORES: OnceLock<u32> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u32)
}

/// Returns the number of ranks on this rank's host.
pub(super) fn ranks_on_host_of(rank: Rank, names: &[PeerName]) -> u32 {
    Placement::from_hosts(names.iter().map(|name| name.host.as_str()))
        .map_or(1, |placement| placement.ranks_on(placement.host_of(rank)).count() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_rank_that_is_bound_to_a_core_is_on_the_same_machine() {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        let read = || std::fs::read_to_string("/proc/cpuinfo").expect("Linux tells");
        let everywhere = Processors::read(&read()).to_string();
        let bound = std::thread::spawn(move || {
            let allowed = sched_getaffinity(None).expect("told");
            let first = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).expect("a core");
            let mut one = CpuSet::new();
            one.set(first);
            sched_setaffinity(None, &one).expect("allowed");
            Processors::read(&read()).to_string()
        });
        assert_eq!(bound.join().expect("no panic"), everywhere);
    }
}
