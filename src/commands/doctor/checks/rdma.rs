//! RDMA devices: switch, drivers, ports, addresses and limits.

use super::{
    super::check::{Cluster, Finding, Host, Outcome, Verdict},
    ports::{can_do_rdma, leads_to_machine},
};
use inventory::{Device, Generation, RdmaSwitch, System};
use std::time::Duration;

/// Queue pairs that a cable takes.
const QUEUE_PAIRS: u32 = 3;
/// Regions that a rank's memory takes at least: a slab of four segments.
const REGIONS: u32 = 4;
/// Index at which Apple's stack is assumed to have the IPv4 GID by programs that do not look.
const USUAL_INDEX: u8 = 1;

/// Parses the first two numbers of a version.
fn version_of(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next().and_then(Result::ok).unwrap_or(0)))
}

pub(super) fn macos(cluster: &Cluster<'_>) -> Outcome {
    let check = |host: &Host<'_>| {
        let release = &host.inventory.release;
        let is_old = version_of(release).is_some_and(|version| version < (26, 2));
        let seen = format!("macOS is {release}");
        let mend = "install macOS 26.2 or later: `sudo softwareupdate --install --all`";
        can_do_rdma(host).then(|| is_old.then(|| host.red(seen, mend)).into_iter().collect())
    };
    cluster.each("macOS is 26.2 or later", check)
}

pub(super) fn switch(cluster: &Cluster<'_>) -> Outcome {
    const ENABLE: &str = "start the Mac in Recovery, choose Terminal from the menu Utilities, run `rdma_ctl \
                          enable`, and restart; that can't be done from afar";
    let check = |host: &Host<'_>| {
        let finding = match host.inventory.rdma {
            RdmaSwitch::Off => Some(host.red("rdma_ctl says that RDMA is disabled", ENABLE)),
            RdmaSwitch::Missing if version_of(&host.inventory.release).is_some_and(|own| own >= (26, 2)) => {
                Some(host.red("there is no rdma_ctl on this macOS", "which rdma_ctl; look at PATH"))
            }
            RdmaSwitch::On if host.inventory.devices.is_empty() => Some(host.red(
                "rdma_ctl says that RDMA is enabled, and no RDMA device is listed",
                "restart the Mac; if none is listed then, run `rdma_ctl disable` and `enable` in Recovery",
            )),
            _ => None,
        };
        can_do_rdma(host).then(|| finding.into_iter().collect())
    };
    cluster.each("RDMA is enabled, and devices are listed", check)
}

pub(super) fn modules(cluster: &Cluster<'_>) -> Outcome {
    let check = |host: &Host<'_>| {
        let inventory = host.inventory;
        let has = |name: &str| inventory.modules.iter().any(|module| module == name);
        let has_cable = inventory.ports.iter().any(leads_to_machine);
        let has_device = inventory.devices.iter().any(|device| device.link != "Thunderbolt");
        let missing = |name: &str, load: &str, subject: &str| {
            (!has(name)).then(|| host.red(format!("{subject}, and the module {name} is not loaded"), load))
        };
        let cable = || {
            missing("thunderbolt_net", "sudo modprobe thunderbolt-net", "a cable leads to another machine")
        };
        let device = || missing("ib_uverbs", "sudo modprobe ib_uverbs", "there are RDMA devices");
        let applies = inventory.system == System::Linux && (has_cable || has_device);
        applies.then(|| {
            let cable = has_cable.then(cable).flatten();
            cable.into_iter().chain(has_device.then(device).flatten()).collect()
        })
    };
    cluster.each("the modules are loaded", check)
}

pub(super) fn library(cluster: &Cluster<'_>) -> Outcome {
    let check = |host: &Host<'_>| {
        let verbs = &host.inventory.verbs;
        let seen = verbs.problem.clone().filter(|_| verbs.library.is_none());
        let mend = match host.inventory.system {
            System::MacOs => "install macOS 26.2 or later, which brings librdma.dylib",
            _ => "sudo apt install libibverbs1 ibverbs-providers (or rdma-core), or set TBCCL_VERBS_LIB",
        };
        (!host.inventory.devices.is_empty())
            .then(|| seen.map(|seen| host.red(seen, mend)).into_iter().collect())
    };
    cluster.each("the verbs library is loaded", check)
}

/// Returns the findings of devices with one of these causes, with its message.
fn caused(host: &Host<'_>, causes: &[&str], mend: impl Fn(&Device) -> String) -> Option<Vec<Finding>> {
    let devices = &host.inventory.devices;
    let of_device = |device: &Device| {
        let faults = device.faults.iter().filter(|fault| causes.contains(&fault.cause.as_str()));
        faults.map(|fault| host.red(fault.text.clone(), mend(device))).collect::<Vec<_>>()
    };
    (!devices.is_empty()).then(|| devices.iter().flat_map(of_device).collect())
}

pub(super) fn permission(cluster: &Cluster<'_>) -> Outcome {
    let mend = |_: &Device| "ls -l /dev/infiniband, and add this user to the group of these files".to_owned();
    cluster.each("devices can be opened", |host| caused(host, &["Permission"], mend))
}

pub(super) fn port(cluster: &Cluster<'_>) -> Outcome {
    let check = |host: &Host<'_>| {
        let down =
            |device: &Device| {
                let name = &device.name;
                let seen = |rest: &str| format!("the port of {name} is {}{rest}", device.state);
                let port = host.inventory.port_of(device);
                let has_cable = port.is_some_and(leads_to_machine);
                if device.state == "ACTIVE" {
                    None
                } else if has_cable {
                    let partner =
                        port.and_then(|port| port.partner.as_ref()).map_or("", |other| other.name.as_str());
                    let mend =
                        format!("see that `{partner}` is awake and has RDMA enabled; then replug the cable");
                    Some(host.red(seen(&format!(", and its cable leads to `{partner}`")), mend))
                } else if device.link == "Thunderbolt" {
                    // A port without a cable is no fault.
                    None
                } else {
                    Some(host.yellow(
                        seen(""),
                        "plug in the cable, and see that the other end or the switch is up",
                    ))
                }
            };
        let devices = &host.inventory.devices;
        (!devices.is_empty()).then(|| devices.iter().filter_map(down).collect())
    };
    cluster.each("all ports with a cable are up", check)
}

pub(super) fn gid(cluster: &Cluster<'_>) -> Outcome {
    let check = |host: &Host<'_>| {
        let has_addresses = |device: &&Device| {
            device.state == "ACTIVE" && ["Thunderbolt", "Ethernet"].contains(&device.link.as_str())
        };
        let devices: Vec<&Device> = host.inventory.devices.iter().filter(has_addresses).collect();
        let found = |device: &Device| gid_of(host, device, cluster.waited);
        (!devices.is_empty()).then(|| devices.into_iter().filter_map(found).collect())
    };
    cluster.each("all ports that are up have a GID with their IPv4 address", check)
}

/// Whether an active port lacks a GID with its IPv4 address, which it may still get.
pub(in crate::commands::doctor) fn lacks_gid(cluster: &Cluster<'_>) -> bool {
    gid(cluster).findings.iter().any(|finding| finding.verdict == Verdict::Red)
}

/// Returns the fault of an active port's GIDs, which were waited for.
fn gid_of(host: &Host<'_>, device: &Device, waited: Duration) -> Option<Finding> {
    let waited =
        if waited.is_zero() { String::new() } else { format!(" after {:.1} s", waited.as_secs_f64()) };
    let name = &device.name;
    let interface = device.interface.as_ref().and_then(|name| host.inventory.interface(name));
    let addresses: Vec<_> = interface.iter().flat_map(|own| own.ipv4()).map(|(ip, _)| ip).collect();
    // Apple's devices are named after their interfaces.
    let label = interface.map_or(name.trim_start_matches("rdma_"), |own| own.name.as_str());
    let mut gids = device.gids.iter().filter_map(|gid| Some((gid.index, gid.ipv4()?)));
    let Some((index, address)) = gids.clone().find(|(_, ip)| addresses.is_empty() || addresses.contains(ip))
    else {
        return Some(match (gids.next(), addresses.first()) {
            (Some((index, ip)), _) => host.red(
                format!("GID {index} of {name} has the address {ip}{waited}, which {label} has no longer"),
                restart(host, label),
            ),
            (None, Some(ip)) => host.red(
                format!("{name} has no GID with the address {ip} of {label}{waited}"),
                restart(host, label),
            ),
            (None, None) => host.red(
                format!("{name} has no GID with an IPv4 address{waited}, since {label} has none"),
                super::network::assign(host, label),
            ),
        });
    };
    let has_moved = device.link == "Thunderbolt" && index != USUAL_INDEX;
    let seen = format!("the GID of {address} is at index {index} of {name}, and not at {USUAL_INDEX}");
    let mend =
        "nothing for tbccl, which looks it up; JACCL needs index 1: unplug the cable, and plug it in again";
    has_moved.then(|| host.yellow(seen, mend))
}

/// Returns the command that takes an interface down and up again.
fn restart(host: &Host<'_>, interface: &str) -> String {
    match host.inventory.system {
        System::MacOs => format!("sudo ifconfig {interface} down && sudo ifconfig {interface} up"),
        _ => format!("sudo ip link set {interface} down && sudo ip link set {interface} up"),
    }
}

pub(super) fn gid_type(cluster: &Cluster<'_>) -> Outcome {
    let check = |host: &Host<'_>| {
        let of_ethernet = |device: &&Device| device.link == "Ethernet" && !device.gids.is_empty();
        let adapters: Vec<&Device> = host.inventory.devices.iter().filter(of_ethernet).collect();
        let finding = |device: &Device| {
            let has_v2 = device.gids.iter().any(|gid| gid.kind.contains("v2"));
            let seen = format!("all GIDs of {} are of RoCE v1", device.name);
            let mend = format!(
                "cma_roce_mode -d {} -p 1 -m 2, or enable RoCE v2 in the adapter's firmware",
                device.name
            );
            (!has_v2).then(|| host.yellow(seen, mend))
        };
        (!adapters.is_empty()).then(|| adapters.into_iter().filter_map(finding).collect())
    };
    cluster.each("adapters have GIDs of RoCE v2", check)
}

pub(super) fn domain(cluster: &Cluster<'_>) -> Outcome {
    let check = |host: &Host<'_>| {
        let mend = |device: &Device| {
            let generation = host.inventory.port_of(device).map(|port| port.generation);
            if generation == Some(Generation::Thunderbolt4) {
                "use `--transport shm+tcp` on this machine: Thunderbolt 4 ports have no RDMA".to_owned()
            } else {
                format!("end other programs that use {}; if there are none, restart the machine", device.name)
            }
        };
        caused(host, &["NoDomain", "LeakedDomains", "Thunderbolt4"], mend)
    };
    cluster.each("devices give protection domains", check)
}

pub(super) fn limits(cluster: &Cluster<'_>) -> Outcome {
    let check = |host: &Host<'_>| {
        let probed = host.inventory.devices.iter().filter(|device| device.queue_pairs.is_some());
        let probed: Vec<&Device> = probed.collect();
        let finding = |device: &Device| {
            let (pairs, regions) = (device.queue_pairs?, device.regions.unwrap_or(u32::MAX));
            let seen = format!("{} grants {pairs} queue pairs and {regions} regions", device.name);
            let mend = "plug the cable straight into the machine, and run one rank per host";
            (pairs <= QUEUE_PAIRS || regions < REGIONS).then(|| host.yellow(seen, mend))
        };
        (!probed.is_empty()).then(|| probed.into_iter().filter_map(finding).collect())
    };
    cluster.each("devices grant enough queue pairs and regions", check)
}
