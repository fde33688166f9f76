//! Networks for cables: a /30 each, which overlaps no network of any host.

use core::net::Ipv4Addr;
use inventory::Inventory;

/// Ranges of private addresses that are tried, each of 16 bits.
const POOLS: [Ipv4Addr; 3] =
    [Ipv4Addr::new(10, 42, 0, 0), Ipv4Addr::new(172, 30, 0, 0), Ipv4Addr::new(192, 168, 0, 0)];

/// Shortest prefix of a route to a network. Shorter ones lead to all networks, as the default route does: a
/// VPN replaces that one by 0.0.0.0/1 and 128.0.0.0/1.
const LEAST_PREFIX: u8 = 8;

/// Length of the prefix of a cable's network.
pub(super) const PREFIX: u8 = 30;

/// A network: its first address, and the length of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    base: u32,
    prefix: u8,
}

impl Network {
    fn of(ip: Ipv4Addr, prefix: u8) -> Network {
        Network { base: u32::from(ip) & mask(prefix), prefix }
    }

    fn overlaps(self, other: Network) -> bool {
        let mask = mask(self.prefix.min(other.prefix));
        self.base & mask == other.base & mask
    }
}

fn mask(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0)
}

/// Free networks, in ascending order.
#[derive(Debug)]
pub(super) struct Networks {
    used: Vec<Network>,
}

impl Networks {
    /// Creates the networks that no host uses for an address or a route.
    pub(super) fn new<'a>(inventories: impl Iterator<Item = &'a Inventory>) -> Networks {
        let mut used = Vec::new();
        for inventory in inventories {
            let addresses = inventory.interfaces.iter().flat_map(|own| own.ipv4());
            used.extend(addresses.map(|(ip, prefix)| Network::of(ip, prefix)));
            let routes = inventory.routes.iter().filter(|route| route.prefix >= LEAST_PREFIX);
            used.extend(routes.map(|route| Network::of(route.network, route.prefix)));
        }
        Networks { used }
    }

    /// Takes the next free network; returns the addresses of its two ends.
    pub(super) fn take(&mut self) -> Option<[Ipv4Addr; 2]> {
        let all = POOLS.iter().flat_map(|pool| (0..1u32 << 14).map(move |n| u32::from(*pool) + 4 * n));
        let mut all = all.map(|base| Network { base, prefix: PREFIX });
        let free = all.find(|network| !self.used.iter().any(|used| used.overlaps(*network)))?;
        self.used.push(free);
        Some([1, 2].map(|end| Ipv4Addr::from(free.base + end)))
    }
}

/// Whether two addresses are the ends of one /30.
pub(super) fn are_ends(a: (Ipv4Addr, u8), b: (Ipv4Addr, u8)) -> bool {
    a.0 != b.0 && a.1 == PREFIX && b.1 == PREFIX && Network::of(a.0, a.1) == Network::of(b.0, b.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use inventory::{Address, Interface, Route};

    fn host(addresses: &[([u8; 4], u8)]) -> Inventory {
        let addresses = addresses.iter().map(|(ip, prefix)| Address { ip: (*ip).into(), prefix: *prefix });
        let interface = Interface { addresses: addresses.collect(), ..Interface::default() };
        Inventory { interfaces: vec![interface], ..Inventory::default() }
    }

    #[test]
    fn networks_follow_each_other_and_leave_out_those_in_use() {
        let hosts = [host(&[([10, 42, 0, 5], 30), ([192, 168, 7, 1], 24)]), host(&[([10, 42, 0, 12], 32)])];
        let mut networks = Networks::new(hosts.iter());
        let mut take = || networks.take().expect("one is free")[0].to_string();
        assert_eq!([take(), take(), take()], ["10.42.0.1", "10.42.0.9", "10.42.0.17"]);
        let wide = [host(&[([10, 1, 2, 3], 8), ([172, 16, 0, 1], 12)])];
        let first = Networks::new(wide.iter()).take().expect("one is free");
        assert_eq!(first[0].to_string(), "192.168.0.1");
        let all = [host(&[([10, 1, 2, 3], 8), ([172, 16, 0, 1], 12), ([192, 168, 0, 1], 16)])];
        assert_eq!(Networks::new(all.iter()).take(), None);
    }

    #[test]
    fn routes_of_a_vpn_to_everything_take_no_network() {
        let route = |network: [u8; 4], prefix| Route {
            network: network.into(),
            prefix,
            gateway: None,
            interface: "tun0".into(),
        };
        let routes = vec![route([0, 0, 0, 0], 1), route([128, 0, 0, 0], 1), route([10, 42, 0, 0], 24)];
        let hosts = [Inventory { routes, ..host(&[]) }];
        let first = Networks::new(hosts.iter()).take().expect("one is free");
        assert_eq!(first[0].to_string(), "10.42.1.1");
    }

    #[test]
    fn ends_of_one_network_are_recognized() {
        let ip = |last| Ipv4Addr::new(10, 42, 0, last);
        assert!(are_ends((ip(1), 30), (ip(2), 30)));
        assert!(!are_ends((ip(1), 30), (ip(5), 30)) && !are_ends((ip(1), 30), (ip(1), 30)));
        assert!(!are_ends((ip(1), 24), (ip(2), 24)), "a network that other hosts may share");
    }
}
