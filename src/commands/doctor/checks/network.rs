//! Addresses, routes and packet sizes.

use super::{
    super::check::{Cluster, Finding, Host, Outcome, Verdict},
    ports::{can_do_rdma, leads_to_machine},
};
use core::net::Ipv4Addr;
use inventory::{Interface, InterfaceKind, System};

/// Returns the command that gives an interface a link-local IPv4 address.
pub(super) fn assign(host: &Host<'_>, interface: &str) -> String {
    let address = link_local(&host.inventory.hostname, interface);
    match host.inventory.system {
        System::MacOs => format!("sudo ifconfig {interface} inet {address} netmask 255.255.0.0 alias"),
        _ => format!("sudo ip addr add {address}/16 dev {interface}"),
    }
}

/// Returns a link-local address that an interface of a host gets each time, and the other end of its cable
/// does not.
///
/// The hash is FNV-1a. The first and the last 256 addresses are reserved (RFC 3927, section 2.1).
fn link_local(hostname: &str, interface: &str) -> Ipv4Addr {
    let bytes = hostname.bytes().chain([b'/']).chain(interface.bytes());
    let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let octet = |number: u32| 1 + (number % 254) as u8;
    Ipv4Addr::new(169, 254, octet(hash), octet(hash / 254))
}

/// Returns the interfaces at which a cable leads to another machine.
fn cabled<'a>(host: &Host<'a>) -> impl Iterator<Item = &'a Interface> {
    let inventory = host.inventory;
    let cabled = inventory.ports.iter().filter(|port| leads_to_machine(port));
    cabled.filter_map(|port| inventory.interface(port.interface.as_ref()?))
}

pub(super) fn ipv4(cluster: &Cluster<'_>) -> Outcome {
    let check = |host: &Host<'_>| {
        let verdict = if can_do_rdma(host) { Verdict::Red } else { Verdict::Yellow };
        let finding = |own: &Interface| {
            let lacks = own.ipv4().next().is_none();
            let seen = format!("{} has a cable and no IPv4 address", own.name);
            let mend = format!(
                "{}; or wait, as macOS assigns one within minutes; or `tbccl config` for all cables",
                assign(host, &own.name)
            );
            lacks.then(|| host.finding(verdict, seen, mend))
        };
        // A member of a bridge has its address there, which is a fault of its own.
        let all: Vec<&Interface> = cabled(host).filter(|own| own.bridge.is_none()).collect();
        (!all.is_empty()).then(|| all.into_iter().filter_map(finding).collect())
    };
    cluster.each("the interfaces of all cables have an IPv4 address", check)
}

/// Returns the network of an address.
fn network(ip: Ipv4Addr, prefix: u8) -> (u32, u8) {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
    (u32::from(ip) & mask, prefix)
}

pub(super) fn subnet(cluster: &Cluster<'_>) -> Outcome {
    let mut outcome = cluster.each("each network has one interface", |host| Some(shared_networks(host)));
    outcome.findings.extend(cluster.graph.cables.iter().filter_map(|cable| {
        let ends = [cable.low, cable.high].map(|end| {
            let host = cluster.host(end.host);
            let name = host.inventory.ports[end.port].interface.as_ref()?;
            Some((host, host.inventory.interface(name)?))
        });
        let [Some((host, own)), Some((other, theirs))] = ends else { return None };
        one_cable(&host, own, &other, theirs)
    }));
    outcome
}

/// Returns the networks that several interfaces of a host share.
fn shared_networks(host: &Host<'_>) -> Vec<Finding> {
    let counts = |own: &&Interface| own.up && own.bridge.is_none() && own.kind != InterfaceKind::Loopback;
    let all: Vec<&Interface> = host.inventory.interfaces.iter().filter(counts).collect();
    let mut seen: Vec<((u32, u8), &str)> = Vec::new();
    let mut findings = Vec::new();
    for own in all {
        for (ip, prefix) in own.ipv4() {
            let network = network(ip, prefix);
            let Some((_, other)) = seen.iter().find(|(known, name)| *known == network && *name != own.name)
            else {
                seen.push((network, &own.name));
                continue;
            };
            let text = format!("{other} and {} are both in {}/{prefix}", own.name, Ipv4Addr::from(network.0));
            findings.push(
                host.yellow(text, "tbccl config --hosts LIST, which gives each cable a network of its own"),
            );
        }
    }
    findings
}

/// Compares the addresses at the two ends of a cable.
fn one_cable(host: &Host<'_>, own: &Interface, other: &Host<'_>, theirs: &Interface) -> Option<Finding> {
    const MEND: &str = "tbccl config --hosts LIST";
    let (ours, far): (Vec<_>, Vec<_>) = (own.ipv4().collect(), theirs.ipv4().collect());
    let (first, last) = (ours.first()?, far.first()?);
    let both = format!("{} and {} of {}", own.name, theirs.name, other.name);
    if let Some((ip, _)) = ours.iter().find(|(ip, _)| far.iter().any(|(same, _)| same == ip)) {
        return Some(host.red(format!("{both}, the two ends of a cable, have the same address {ip}"), MEND));
    }
    let meets =
        ours.iter().any(|(ip, prefix)| far.iter().any(|(f, p)| network(*f, *p) == network(*ip, *prefix)));
    let text = format!(
        "{both}, the two ends of a cable, are in different networks: {}/{} and {}/{}",
        first.0, first.1, last.0, last.1
    );
    (!meets).then(|| host.red(text, MEND))
}

pub(super) fn mtu(cluster: &Cluster<'_>) -> Outcome {
    let mut outcome = Outcome::default();
    for cable in &cluster.graph.cables {
        let ends = [cable.low, cable.high].map(|end| {
            let host = cluster.host(end.host);
            let name = host.inventory.ports[end.port].interface.as_ref()?;
            let own = host.inventory.interface(name)?;
            Some((host, name.clone(), own.mtu?))
        });
        let [Some((host, own, mtu)), Some((other, theirs, far))] = ends else { continue };
        outcome.good = Some("both ends of each cable have the same MTU".to_owned());
        if mtu != far {
            let (name, small) = if mtu > far { (&own, far) } else { (&theirs, mtu) };
            let at = if mtu > far { host } else { other };
            let mend = match at.inventory.system {
                System::MacOs => format!("on {}: sudo ifconfig {name} mtu {small}", at.name),
                _ => format!("on {}: sudo ip link set {name} mtu {small}", at.name),
            };
            let seen =
                format!("{own} has an MTU of {mtu}, and {theirs} of {} at the other end {far}", other.name);
            outcome.findings.push(host.yellow(seen, mend));
        }
    }
    outcome
}

pub(super) fn wifi(cluster: &Cluster<'_>) -> Outcome {
    let check = |host: &Host<'_>| {
        let default = host.inventory.routes.iter().find(|route| route.prefix == 0)?;
        let interface = host.inventory.interface(&default.interface)?;
        let seen = format!("the default route is over {}, which is Wi-Fi", interface.name);
        let mend =
            "write the cables' addresses in the hostfile (`tbccl config` does), or set TBCCL_INTERFACE";
        Some((interface.kind == InterfaceKind::Wifi).then(|| host.yellow(seen, mend)).into_iter().collect())
    };
    cluster.each("the default route is not over Wi-Fi", check)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same address at both ends would make one cable of two hosts with one name.
    #[test]
    fn ends_of_a_cable_get_different_link_local_addresses() {
        assert_eq!(link_local("mac0", "en2"), link_local("mac0", "en2"));
        let ends =
            [("mac0", "en2"), ("mac1", "en2"), ("mac0", "en3")].map(|(host, name)| link_local(host, name));
        assert!(ends[0] != ends[1] && ends[0] != ends[2] && ends.iter().all(Ipv4Addr::is_link_local));
    }
}
