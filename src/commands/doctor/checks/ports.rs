//! Thunderbolt ports and cables.

use super::super::check::{Cluster, Finding, Host, Outcome, Verdict};
use inventory::{End, Generation, InterfaceKind, Port, Shape, System};

/// Whether a cable leads from a port to another machine.
pub(super) fn leads_to_machine(port: &Port) -> bool {
    port.partner.as_ref().is_some_and(|partner| partner.uid.is_some())
}

/// Whether a Mac has ports that can do RDMA.
pub(super) fn can_do_rdma(host: &Host<'_>) -> bool {
    let is_five = |port: &Port| port.generation == Generation::Thunderbolt5;
    host.inventory.system == System::MacOs && host.inventory.ports.iter().any(is_five)
}

pub(super) fn thunderbolt(cluster: &Cluster<'_>) -> Outcome {
    let describe = |host: &Host<'_>| {
        let (ports, devices) = (&host.inventory.ports, &host.inventory.devices);
        let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        let devices = if names.is_empty() {
            "no RDMA device".to_owned()
        } else {
            format!("RDMA devices {}", names.join(", "))
        };
        match ports.first() {
            Some(port) => format!("{} {} ports, {devices}", ports.len(), port.generation.name()),
            None => format!("no Thunderbolt port, {devices}"),
        }
    };
    let check = |host: &Host<'_>| {
        let has_none = host.inventory.ports.is_empty() && host.inventory.devices.is_empty();
        let mend =
            "nothing, if TCP over the LAN is meant; on Linux see `lsmod | grep thunderbolt` and `lspci`";
        let seen = "this machine has no Thunderbolt port and no RDMA device";
        Some(has_none.then(|| host.yellow(seen, mend)).into_iter().collect())
    };
    let all: Vec<String> = cluster.hosts().map(|host| describe(&host)).collect();
    let good = match all.as_slice() {
        [one] => one.clone(),
        [first, rest @ ..] if rest.iter().all(|other| other == first) => format!("each host has {first}"),
        _ => all
            .iter()
            .zip(cluster.hosts())
            .map(|(text, host)| format!("{}: {text}", host.name))
            .collect::<Vec<_>>()
            .join("; "),
    };
    cluster.each(&good, check)
}

pub(super) fn generation(cluster: &Cluster<'_>) -> Outcome {
    let check = |host: &Host<'_>| {
        let is_mac = host.inventory.system == System::MacOs;
        let is_old = |port: &&Port| leads_to_machine(port) && port.generation < Generation::Thunderbolt5;
        let finding = |port: &Port| {
            let seen = format!("the cable at {} is at a {} port", port.name, port.generation.name());
            host.yellow(seen, "use this machine with `--transport shm+tcp`: its ports have no RDMA")
        };
        let ports = &host.inventory.ports;
        (is_mac && !ports.is_empty()).then(|| ports.iter().filter(is_old).map(finding).collect())
    };
    cluster.each("cables are at Thunderbolt 5 ports", check)
}

pub(super) fn cable(cluster: &Cluster<'_>) -> Outcome {
    let mut outcome = cluster.each("", |host| {
        let ports = &host.inventory.ports;
        let has_none = !ports.iter().any(leads_to_machine);
        let seen = format!("no cable leads from its {} ports to another machine", ports.len());
        let mend = "plug in a Thunderbolt cable between the machines; `tbccl plan wire` suggests which";
        (!ports.is_empty()).then(|| has_none.then(|| host.yellow(seen, mend)).into_iter().collect())
    });
    let graph = &cluster.graph;
    if cluster.has_several() {
        outcome.findings.extend(graph.foreign.iter().map(|end| {
            let host = cluster.host(end.host);
            let port = &host.inventory.ports[end.port];
            let partner = port.partner.as_ref().map_or("", |partner| partner.name.as_str());
            let seen = format!("the cable at {} leads to `{partner}`, which is none of the hosts", port.name);
            host.yellow(seen, "add that machine to the hosts, or move the cable")
        }));
    }
    outcome.findings.extend(graph.one_sided.iter().map(|end| {
        let (host, port) = name_of(cluster, *end);
        let seen = format!("{port} sees a cable to a host that does not see it");
        host.red(seen, "unplug the cable at both ends, wait 5 s, and plug it in again")
    }));
    let doubtful = graph.cables.iter().filter(|cable| !cable.certain);
    outcome.findings.extend(doubtful.map(|cable| {
        let ((low, port), (high, other)) = (name_of(cluster, cable.low), name_of(cluster, cable.high));
        let seen = format!(
            "{port} and {other} of {} may not be the two ends of one cable: one controller has several \
             cables to another",
            high.name
        );
        low.yellow(seen, "`tbccl ping` shows a rail that is down if they are not; then swap the two cables")
    }));
    outcome.good = outcome.good.map(|_| match graph.shape() {
        Shape::Single => "cables are plugged in".to_owned(),
        shape => format!("{} cables between the hosts: {}", graph.cables.len(), shape.name()),
    });
    outcome
}

fn name_of<'a>(cluster: &'a Cluster<'_>, end: End) -> (Host<'a>, &'a str) {
    let host = cluster.host(end.host);
    (host, host.inventory.ports[end.port].name.as_str())
}

pub(super) fn hub(cluster: &Cluster<'_>) -> Outcome {
    let check = |host: &Host<'_>| {
        let finding = |port: &Port| {
            let partner = port.partner.as_ref()?;
            let hub = partner.hub.as_ref()?;
            let seen = format!("`{}` is plugged into the hub `{hub}` at {}", partner.name, port.name);
            Some(host.yellow(seen, "plug the cable straight into a port of this machine"))
        };
        let ports = &host.inventory.ports;
        ports.iter().any(leads_to_machine).then(|| ports.iter().filter_map(finding).collect())
    };
    cluster.each("all cables go from machine to machine", check)
}

/// Rate in Gb/s at which a port's link should run.
fn expected_rate(generation: Generation) -> Option<f64> {
    match generation {
        Generation::Thunderbolt5 => Some(80.0),
        Generation::Thunderbolt4 | Generation::Usb4 => Some(40.0),
        Generation::Thunderbolt3 | Generation::Unknown => None,
    }
}

pub(super) fn link_speed(cluster: &Cluster<'_>) -> Outcome {
    let check = |host: &Host<'_>| {
        let slow = |port: &Port| {
            let (rate, expected) = (port.gigabits?, expected_rate(port.generation)?);
            let seen = format!(
                "the link at {} runs at {rate} Gb/s, and a {} port can do {expected}",
                port.name,
                port.generation.name()
            );
            let mend = "use a cable marked for this rate (Thunderbolt 5: 80 Gb/s), at most 1 m long if \
                        passive, at ports of this generation on both sides";
            (leads_to_machine(port) && rate < expected).then(|| host.yellow(seen, mend))
        };
        let ports = &host.inventory.ports;
        ports.iter().any(leads_to_machine).then(|| ports.iter().filter_map(slow).collect())
    };
    cluster.each("all links run at the rate of their ports", check)
}

pub(super) fn bridge(cluster: &Cluster<'_>) -> Outcome {
    let check = |host: &Host<'_>| {
        let cables = host.inventory.interfaces.iter().filter(|own| own.kind == InterfaceKind::Thunderbolt);
        let cables: Vec<_> = cables.collect();
        let finding = |own: &inventory::Interface| {
            let bridge = own.bridge.as_ref()?;
            let mend = match host.inventory.system {
                System::MacOs => format!("sudo ifconfig {bridge} deletem {}", own.name),
                _ => format!("sudo ip link set {} nomaster", own.name),
            };
            Some(host.finding(severity(host), format!("{} is a member of {bridge}", own.name), mend))
        };
        (!cables.is_empty()).then(|| cables.into_iter().filter_map(finding).collect::<Vec<Finding>>())
    };
    cluster.each("no Thunderbolt interface is in a bridge", check)
}

/// Severity of a bridged port: jobs over TCP can work through a bridge, jobs over RDMA can't.
fn severity(host: &Host<'_>) -> Verdict {
    if can_do_rdma(host) || !host.inventory.devices.is_empty() { Verdict::Red } else { Verdict::Yellow }
}
