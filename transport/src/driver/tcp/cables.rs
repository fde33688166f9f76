//! Cables: the interfaces of this host that lead to one other host, and the selection of them.
//!
//! `endpoint` announces their addresses to the other ranks, and `probe` finds out where each one leads.
//!
//! A cable has two ends, and so its network has two hosts. Without a selection by the user, an interface
//! counts as a cable if it belongs to a Thunderbolt port, by the name or the driver that Linux gives it, or
//! if its IPv4 network has room for two hosts only (a prefix of 30 or 31 bits). macOS gives Thunderbolt ports
//! names like those of other ports, so there only the network tells.

use super::addresses::{interfaces, without_scope};
use if_addrs::{IfAddr, IfOperStatus, Interface};
use std::{fmt, net::IpAddr, str::FromStr};

/// IPv4 prefixes of networks with room for two hosts.
const TWO_HOSTS: std::ops::RangeInclusive<u8> = 30..=31;

/// Maximum cables of a host. Further ones are not used.
pub(super) const MAX_CABLES: usize = 16;
/// Maximum addresses of a cable. Further ones are not used.
pub(super) const MAX_CABLE_ADDRESSES: usize = 4;

/// Selection of the interfaces that count as cables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CableSelection {
    /// Thunderbolt interfaces, and those of networks with two hosts.
    #[default]
    Auto,
    /// No interface.
    Off,
    /// Interfaces that match at least one pattern.
    Matching(Vec<CablePattern>),
}

/// Pattern that selects interfaces as cables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CablePattern {
    /// The interfaces of [`CableSelection::Auto`].
    Auto,
    /// The interface that has this address.
    Address(IpAddr),
    /// The interface of this name; a name that ends with `*` selects all that begin so.
    Name(String),
}

impl FromStr for CableSelection {
    type Err = String;

    fn from_str(text: &str) -> Result<CableSelection, String> {
        match text.trim() {
            "auto" => return Ok(CableSelection::Auto),
            "off" => return Ok(CableSelection::Off),
            _ => {}
        }
        let pattern = |word: &str| match word.trim() {
            "" | "off" => None,
            "auto" => Some(CablePattern::Auto),
            name => {
                let address = name.parse().map(CablePattern::Address);
                Some(address.unwrap_or_else(|_| CablePattern::Name(name.to_owned())))
            }
        };
        let patterns: Option<Vec<CablePattern>> = text.split(',').map(pattern).collect();
        let remedy =
            || "expected off, or auto, names and addresses of interfaces with commas between them".to_owned();
        patterns.map(CableSelection::Matching).ok_or_else(remedy)
    }
}

impl fmt::Display for CableSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CableSelection::Auto => f.write_str("auto"),
            CableSelection::Off => f.write_str("off"),
            CableSelection::Matching(patterns) => {
                let patterns: Vec<String> = patterns.iter().map(CablePattern::to_string).collect();
                f.write_str(&patterns.join(","))
            }
        }
    }
}

impl fmt::Display for CablePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CablePattern::Auto => f.write_str("auto"),
            CablePattern::Address(address) => address.fmt(f),
            CablePattern::Name(name) => f.write_str(name),
        }
    }
}

impl CableSelection {
    /// Whether the interface of one of these addresses counts as a cable.
    fn selects(&self, name: &str, addresses: &[CableAddress]) -> bool {
        match self {
            CableSelection::Off => false,
            CableSelection::Auto => CablePattern::Auto.matches(name, addresses),
            CableSelection::Matching(patterns) => {
                patterns.iter().any(|pattern| pattern.matches(name, addresses))
            }
        }
    }

    /// Returns the addresses of the selection that no interface in use has.
    pub(super) fn missing_addresses(&self, cables: &[Cable]) -> Vec<IpAddr> {
        let CableSelection::Matching(patterns) = self else { return Vec::new() };
        let is_missing = |pattern: &CablePattern| match pattern {
            CablePattern::Address(ip) => {
                let is_there = cables.iter().any(|cable| pattern.matches(&cable.name, &cable.addresses));
                (!is_there).then_some(*ip)
            }
            CablePattern::Auto | CablePattern::Name(_) => None,
        };
        patterns.iter().filter_map(is_missing).collect()
    }
}

impl CablePattern {
    fn matches(&self, name: &str, addresses: &[CableAddress]) -> bool {
        match self {
            CablePattern::Auto => is_thunderbolt(name) || addresses.iter().any(CableAddress::has_two_hosts),
            CablePattern::Address(ip) => addresses.iter().any(|address| address.ip == *ip),
            CablePattern::Name(pattern) => match pattern.strip_suffix('*') {
                Some(beginning) => name.starts_with(beginning),
                None => name == pattern,
            },
        }
    }
}

/// An address of a cable's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CableAddress {
    pub(super) ip: IpAddr,
    pub(super) prefix_bits: u8,
}

impl CableAddress {
    fn has_two_hosts(&self) -> bool {
        self.ip.is_ipv4() && TWO_HOSTS.contains(&self.prefix_bits)
    }
}

/// An interface that counts as a cable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cable {
    pub(super) name: String,
    /// Number of the interface, which is the scope of its link-local addresses.
    pub(super) index: u32,
    /// Addresses, those to be preferred first.
    pub(super) addresses: Vec<CableAddress>,
}

/// Returns the cables of this host.
pub(super) fn cables(selection: &CableSelection) -> Vec<Cable> {
    if *selection == CableSelection::Off { Vec::new() } else { select(&interfaces(), selection) }
}

/// Returns the interfaces that count as cables, in the order of their names.
fn select(interfaces: &[Interface], selection: &CableSelection) -> Vec<Cable> {
    let is_usable = |interface: &&Interface| {
        !interface.is_loopback() && !interface.is_p2p && interface.oper_status != IfOperStatus::Down
    };
    let mut cables: Vec<Cable> = Vec::new();
    for interface in interfaces.iter().filter(is_usable) {
        let address =
            CableAddress { ip: without_scope(interface.ip()), prefix_bits: prefix_bits(&interface.addr) };
        match cables.iter_mut().find(|cable| cable.name == interface.name) {
            Some(cable) => cable.addresses.push(address),
            None => cables.push(Cable {
                name: interface.name.clone(),
                index: interface.index.unwrap_or(0),
                addresses: vec![address],
            }),
        }
    }
    cables.retain(|cable| selection.selects(&cable.name, &cable.addresses));
    cables.sort_by(|a, b| a.name.cmp(&b.name));
    cables.truncate(MAX_CABLES);
    for cable in &mut cables {
        cable.addresses.sort_by_key(|address| preference(address.ip));
        cable.addresses.truncate(MAX_CABLE_ADDRESSES);
    }
    cables
}

/// Returns the order of preference of an address: those that a user has set before those that the system has
/// chosen.
pub(super) fn preference(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(ip) if !ip.is_link_local() => 0,
        IpAddr::V6(ip) if !ip.is_unicast_link_local() => 1,
        IpAddr::V4(_) => 2,
        IpAddr::V6(_) => 3,
    }
}

fn prefix_bits(address: &IfAddr) -> u8 {
    match address {
        IfAddr::V4(address) => address.prefixlen,
        IfAddr::V6(address) => address.prefixlen,
    }
}

/// Whether Linux names or drives this interface as a Thunderbolt port.
pub(super) fn is_thunderbolt(name: &str) -> bool {
    let is_plain = !name.is_empty() && !name.contains('/') && !name.starts_with('.');
    let driver = || std::fs::read_link(format!("/sys/class/net/{name}/device/driver")).ok();
    let is_driven = || driver().is_some_and(|driver| driver.ends_with("thunderbolt-net"));
    name.starts_with("thunderbolt") || (is_plain && is_driven())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn v4(name: &str, ip: [u8; 4], prefix_bits: u8) -> Interface {
        let netmask = Ipv4Addr::from(u32::MAX << (32 - u32::from(prefix_bits)));
        let addr = if_addrs::Ifv4Addr { ip: ip.into(), netmask, prefixlen: prefix_bits, broadcast: None };
        interface(name, IfAddr::V4(addr))
    }

    fn v6(name: &str, ip: &str) -> Interface {
        let ip: Ipv6Addr = ip.parse().expect("an address");
        let netmask = Ipv6Addr::from(u128::MAX << 64);
        interface(name, IfAddr::V6(if_addrs::Ifv6Addr { ip, netmask, prefixlen: 64, broadcast: None }))
    }

    fn interface(name: &str, addr: IfAddr) -> Interface {
        let oper_status = IfOperStatus::Up;
        Interface { name: name.into(), addr, index: Some(7), oper_status, is_p2p: false }
    }

    fn names(interfaces: &[Interface], selection: &str) -> Vec<String> {
        let selection = selection.parse().expect("a selection");
        select(interfaces, &selection).into_iter().map(|cable| cable.name).collect()
    }

    #[test]
    fn thunderbolt_ports_and_networks_of_two_hosts_are_cables_and_others_only_by_name() {
        let interfaces = [
            v4("lo", [127, 0, 0, 1], 8),
            v4("eth0", [192, 168, 1, 5], 24),
            v4("en7", [10, 0, 3, 1], 30),
            v4("en8", [10, 0, 4, 2], 31),
            v6("thunderbolt0", "fe80::5"),
            v4("wlan0", [169, 254, 3, 4], 16),
        ];
        assert_eq!(names(&interfaces, "auto"), ["en7", "en8", "thunderbolt0"]);
        assert_eq!(names(&interfaces, "off"), [""; 0]);
        assert_eq!(names(&interfaces, "eth0, en*"), ["en7", "en8", "eth0"]);
        assert_eq!(names(&interfaces, "auto,192.168.1.5"), ["en7", "en8", "eth0", "thunderbolt0"]);
        assert_eq!(names(&interfaces, "10.0.4.2,fe80::5"), ["en8", "thunderbolt0"]);
        assert_eq!(names(&interfaces, "192.168.1.6"), [""; 0]);
        for broken in ["en7,,en8", "en7,off"] {
            assert!(broken.parse::<CableSelection>().is_err(), "{broken}");
        }
        let text = "auto,10.0.4.2,en*";
        assert_eq!(text.parse::<CableSelection>().expect("a selection").to_string(), text);
    }

    #[test]
    fn addresses_of_a_selection_that_no_interface_has_are_told() {
        let up = v4("en7", [10, 0, 3, 1], 24);
        let down = Interface { oper_status: IfOperStatus::Down, ..v4("en8", [10, 0, 4, 1], 24) };
        let missing = |selection: &str| {
            let selection: CableSelection = selection.parse().expect("a selection");
            selection.missing_addresses(&select(&[up.clone(), down.clone()], &selection))
        };
        assert_eq!(
            missing("auto,10.0.3.1,10.0.4.1,fd00::9,en9"),
            ["10.0.4.1", "fd00::9"].map(|ip| ip.parse::<IpAddr>().expect("an address"))
        );
        assert!(missing("auto").is_empty() && missing("off").is_empty());
    }

    #[test]
    fn ports_that_are_down_and_tunnels_are_no_cables() {
        let down = Interface { oper_status: IfOperStatus::Down, ..v4("thunderbolt0", [10, 0, 0, 1], 30) };
        let tunnel = Interface { is_p2p: true, ..v4("tun0", [10, 8, 0, 1], 30) };
        assert_eq!(names(&[down, tunnel], "auto"), [""; 0]);
    }

    #[test]
    fn the_scope_that_a_system_writes_into_an_address_is_removed() {
        let cables = select(&[v6("thunderbolt0", "fe80:7::5")], &CableSelection::Auto);
        assert_eq!(cables[0].addresses[0].ip, "fe80::5".parse::<IpAddr>().expect("an address"));
    }

    #[test]
    fn addresses_that_a_user_has_set_come_first() {
        let interfaces = [
            v6("thunderbolt0", "fe80::5"),
            v4("thunderbolt0", [169, 254, 1, 1], 16),
            v4("thunderbolt0", [10, 0, 0, 1], 30),
        ];
        let cables = select(&interfaces, &CableSelection::Auto);
        let order: Vec<u8> = cables[0].addresses.iter().map(|address| preference(address.ip)).collect();
        assert_eq!(order, [0, 2, 3]);
    }
}
