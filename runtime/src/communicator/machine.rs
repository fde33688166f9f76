//! The machines of a job: the ranks that share a host, and the processors.
//!
//! All ranks must get the same results, since plans depend on them. So this module queries nothing that ranks
//! of one host may see differently, such as the cores to which each is bound (`cores`).

use crate::{error::PeerName, processors::Processors};
use collectives::select::{Fingerprint, Tuning};
use topology::Placement;
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
        "tcp" => Tuning::tcp(),
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
