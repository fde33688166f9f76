//! Addresses of the network interfaces of this host.

use if_addrs::{IfOperStatus, Interface};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use transport::driver::tcp::without_scope;

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

/// Returns a link-local IPv6 address without a scope with each scope that it may have on this host: that of
/// the interface that has the address, or else those of all interfaces with link-local addresses. Other
/// addresses stay as they are.
///
/// Another host's scope means nothing here, so ranks tell their link-local addresses without it.
pub(crate) fn with_scopes(address: SocketAddr) -> Vec<SocketAddr> {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0 => {
            let scopes = scopes_of(*v6.ip(), &if_addrs::get_if_addrs().unwrap_or_default());
            let scoped = |scope| SocketAddrV6::new(*v6.ip(), v6.port(), 0, scope).into();
            if scopes.is_empty() { vec![address] } else { scopes.into_iter().map(scoped).collect() }
        }
        other => vec![other],
    }
}

/// Returns the numbers of the interfaces over which a link-local address may be reached.
fn scopes_of(address: Ipv6Addr, interfaces: &[Interface]) -> Vec<u32> {
    let link_local = interfaces.iter().filter_map(|interface| match without_scope(interface.ip()) {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Some((interface, ip, interface.index?)),
        _ => None,
    });
    if let Some((_, _, own)) = link_local.clone().find(|(_, ip, _)| *ip == address) {
        return vec![own];
    }
    let is_usable =
        |interface: &Interface| !interface.is_loopback() && interface.oper_status != IfOperStatus::Down;
    let mut scopes: Vec<u32> =
        link_local.filter(|(interface, ..)| is_usable(interface)).map(|(.., index)| index).collect();
    scopes.sort_unstable();
    scopes.dedup();
    scopes
}

#[cfg(test)]
mod tests {
    use super::*;
    use if_addrs::{IfAddr, Ifv6Addr};

    fn interface(index: u32, ip: &str, oper_status: IfOperStatus) -> Interface {
        let ip = ip.parse().expect("an address");
        let addr =
            IfAddr::V6(Ifv6Addr { ip, netmask: Ipv6Addr::UNSPECIFIED, prefixlen: 64, broadcast: None });
        Interface { name: format!("en{index}"), addr, index: Some(index), oper_status, is_p2p: false }
    }

    #[test]
    fn a_link_local_address_is_tried_at_its_own_interface_or_at_all_that_are_up() {
        let all = [
            interface(1, "::1", IfOperStatus::Up),
            interface(2, "fe80:2::a", IfOperStatus::Up),
            interface(3, "fe80::b", IfOperStatus::Unknown),
            interface(4, "fe80::c", IfOperStatus::Down),
            interface(5, "fd00::d", IfOperStatus::Up),
        ];
        let scopes = |ip: &str| scopes_of(ip.parse().expect("an address"), &all);
        assert_eq!(scopes("fe80::e"), [2, 3], "a peer's");
        assert_eq!(scopes("fe80::a"), [2], "ours, as macOS writes it");
    }

    #[test]
    fn addresses_with_a_scope_or_of_a_wider_one_stay() {
        for text in ["[fe80::1%7]:80", "[fd00::1]:80", "10.0.0.1:80"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(with_scopes(address), [address]);
        }
    }
}
