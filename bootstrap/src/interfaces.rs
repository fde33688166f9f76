//! Addresses of the network interfaces of this host.

use std::net::{IpAddr, Ipv4Addr};

/// Returns the addresses at which other hosts reach this one, those of the widest scope first; loopback if
/// there are no others.
pub(crate) fn our_addresses() -> Vec<IpAddr> {
    let mut ours: Vec<IpAddr> = if_addrs::get_if_addrs()
        .unwrap_or_default()
        .into_iter()
        .filter(|interface| !interface.is_loopback())
        .map(|interface| interface.ip())
        // Link-local addresses need the name of an interface, which differs from host to host.
        .filter(|ip| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()))
        .collect();
    let rank = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => u8::from(ip.is_link_local()) * 2,
        IpAddr::V6(_) => 1,
    };
    ours.sort_by_key(rank);
    ours.dedup();
    if ours.is_empty() { vec![Ipv4Addr::LOCALHOST.into()] } else { ours }
}
