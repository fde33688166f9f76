//! Addresses of the TCP driver: listening addresses, the order of a peer's addresses, the interface of a
//! path.

use crate::TransportError;
use if_addrs::{IfAddr, Interface, get_if_addrs};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6, TcpListener, UdpSocket},
    str::FromStr,
};

/// Addresses to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bind {
    /// This address.
    Address(IpAddr),
    /// All addresses of the interface of this name.
    Interface(String),
}

impl Default for Bind {
    /// The loopback address, which no other host reaches.
    fn default() -> Bind {
        Bind::Address(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }
}

impl FromStr for Bind {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Bind, Self::Err> {
        let bare = text.trim_start_matches('[').trim_end_matches(']');
        Ok(bare.parse().map_or_else(|_| Bind::Interface(text.to_owned()), Bind::Address))
    }
}

impl std::fmt::Display for Bind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bind::Address(address) => address.fmt(f),
            Bind::Interface(name) => name.fmt(f),
        }
    }
}

/// Returns the local address from which the system would reach `peer`. Nothing is sent.
///
/// # Errors
/// The system's error, for example if there is no route.
pub fn local_address_towards(peer: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match peer.ip() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

/// Returns the addresses of an interface that are valid on other hosts: all but link-local ones.
#[must_use]
pub fn addresses_of_interface(name: &str) -> Vec<IpAddr> {
    let means_something = |ip: &IpAddr| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let named = interfaces().into_iter().filter(|interface| interface.name == name);
    named.map(|interface| interface.ip()).filter(means_something).collect()
}

/// Returns the interfaces of this host with their addresses; none if the system does not report them.
pub(super) fn interfaces() -> Vec<Interface> {
    get_if_addrs().unwrap_or_default()
}

/// Listens on the addresses of `bind`, on ports that the system chooses.
pub(super) fn listen(bind: &Bind, rank: u32) -> Result<Vec<TcpListener>, TransportError> {
    let failed = |what: String| TransportError::Wiring { rank, what };
    let addresses: Vec<SocketAddr> = match bind {
        Bind::Address(address) => vec![listen_address_of(*address, &interfaces())],
        Bind::Interface(name) => {
            let all = interfaces();
            let addresses: Vec<_> = all.iter().filter(|i| i.name == *name).map(listen_address).collect();
            if addresses.is_empty() {
                let mut names: Vec<&str> = all.iter().map(|interface| interface.name.as_str()).collect();
                names.dedup();
                return Err(failed(format!(
                    "no interface `{name}` with an address; choose one of {} or an address of this host \
                     (TBCCL_INTERFACE)",
                    names.join(", ")
                )));
            }
            addresses
        }
    };
    let listen = |address: &SocketAddr| {
        let listener = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        listener.map_err(|error| {
            let ip = address.ip();
            failed(format!(
                "can't listen at {ip}: {error}; choose an interface or an address of this host \
                 (TBCCL_INTERFACE)"
            ))
        })
    };
    let (mut listeners, mut refused) = (Vec::new(), None);
    for listener in addresses.iter().map(listen) {
        match listener {
            Ok(listener) => listeners.push(listener),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    // An interface that has just been connected has addresses that are not valid yet, beside valid ones.
    match refused {
        Some(error) if listeners.is_empty() => Err(error),
        _ => Ok(listeners),
    }
}

/// Returns an address of this host; a link-local address gets the interface that has it as its scope.
fn listen_address_of(address: IpAddr, interfaces: &[Interface]) -> SocketAddr {
    let own = interfaces.iter().find(|interface| without_scope(interface.ip()) == without_scope(address));
    own.map_or(SocketAddr::new(address, 0), listen_address)
}

/// Returns the address of an interface; a link-local address gets the interface as its scope.
fn listen_address(interface: &Interface) -> SocketAddr {
    match interface.ip() {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            SocketAddrV6::new(ip, 0, 0, interface.index.unwrap_or(0)).into()
        }
        ip => SocketAddr::new(ip, 0),
    }
}

/// Returns a link-local IPv6 address without the scope that BSD systems write into its second word, which is
/// 0 by RFC 4291.
#[must_use]
pub fn without_scope(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            let mut words = v6.segments();
            words[1] = 0;
            IpAddr::V6(words.into())
        }
        ip => ip,
    }
}

/// Orders a peer's addresses: those in a network of this host first.
///
/// A link-local address gets the scope of the local interface.
pub(super) fn order_addresses(
    theirs: &[SocketAddr],
    ours: &[Interface],
    listening: &[SocketAddr],
) -> Vec<SocketAddr> {
    let shares = |address: &SocketAddr| ours.iter().any(|interface| contains(interface, address.ip()));
    let scope = listening.iter().find_map(|own| match own {
        SocketAddr::V6(own) if own.scope_id() != 0 => Some(own.scope_id()),
        _ => None,
    });
    let mut order: Vec<SocketAddr> = theirs
        .iter()
        .map(|address| match address {
            SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => {
                SocketAddrV6::new(*v6.ip(), v6.port(), 0, scope.unwrap_or(0)).into()
            }
            other => *other,
        })
        .collect();
    order.sort_by_key(|address| !shares(address));
    order
}

/// Whether an address lies in the network of an interface.
fn contains(interface: &Interface, address: IpAddr) -> bool {
    match (&interface.addr, address) {
        (IfAddr::V4(own), IpAddr::V4(other)) => {
            let mask = u32::from(own.netmask);
            mask != 0 && u32::from(own.ip) & mask == u32::from(other) & mask
        }
        (IfAddr::V6(own), IpAddr::V6(other)) => {
            let mask = u128::from(own.netmask);
            mask != 0 && u128::from(own.ip) & mask == u128::from(other) & mask
        }
        _ => false,
    }
}

/// Returns the name of the interface that has an address, and its speed in Gb/s if the system reports it.
pub(super) fn interface_of(address: IpAddr) -> (String, Option<f64>) {
    let name = interfaces().into_iter().find(|interface| interface.ip() == address).map(|i| i.name);
    let speed = name.as_deref().and_then(link_speed);
    (name.unwrap_or_else(|| address.to_string()), speed)
}

/// Link speed that Linux reports for an interface; `None` for interfaces without one.
pub(super) fn link_speed(name: &str) -> Option<f64> {
    let megabits: f64 = attribute(name, "speed")?.parse().ok()?;
    (megabits > 0.0).then_some(megabits / 1000.0)
}

/// Number of times that an interface has found or lost its carrier, as Linux counts.
pub(super) fn carrier_changes(name: &str) -> Option<u64> {
    attribute(name, "carrier_changes")?.parse().ok()
}

/// Returns an attribute that Linux reports for an interface.
fn attribute(interface: &str, name: &str) -> Option<String> {
    let is_plain = !interface.is_empty() && !interface.contains('/') && !interface.starts_with('.');
    let read = || std::fs::read_to_string(format!("/sys/class/net/{interface}/{name}")).ok();
    Some(is_plain.then(read)??.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, ip: [u8; 4], netmask: [u8; 4]) -> Interface {
        let addr =
            if_addrs::Ifv4Addr { ip: ip.into(), netmask: netmask.into(), prefixlen: 24, broadcast: None };
        Interface {
            name: name.into(),
            addr: IfAddr::V4(addr),
            index: Some(1),
            oper_status: if_addrs::IfOperStatus::Up,
            is_p2p: false,
        }
    }

    #[test]
    fn addresses_on_a_network_of_ours_come_first() {
        let ours = [interface("a", [10, 0, 1, 5], [255, 255, 255, 0])];
        let theirs: Vec<SocketAddr> =
            ["10.0.2.7:1", "10.0.1.7:2", "[fe80::1]:3"].map(|text| text.parse().expect("an address")).into();
        let order = order_addresses(&theirs, &ours, &[]);
        assert_eq!(order[0], theirs[1]);
        assert_eq!(order.len(), 3);
    }

    #[test]
    fn a_link_local_address_is_listened_on_at_the_interface_that_has_it() {
        let v6 = |ip: &str| {
            let ip = ip.parse().expect("an address");
            let netmask = std::net::Ipv6Addr::from(u128::MAX << 64);
            let addr = IfAddr::V6(if_addrs::Ifv6Addr { ip, netmask, prefixlen: 64, broadcast: None });
            Interface { addr, index: Some(7), ..interface("en7", [0; 4], [0; 4]) }
        };
        let ours = [interface("a", [10, 0, 1, 5], [255, 255, 255, 0]), v6("fe80::5"), v6("fd00::5")];
        let of = |ip: &str| listen_address_of(ip.parse().expect("an address"), &ours).to_string();
        assert_eq!(of("fe80::5"), "[fe80::5%7]:0");
        assert_eq!(of("fd00::5"), "[fd00::5]:0");
        assert_eq!(of("10.9.9.9"), "10.9.9.9:0", "the system says that it is not ours");
    }

    #[test]
    fn a_name_is_an_interface_and_an_address_an_address() {
        assert_eq!("eth0".parse(), Ok(Bind::Interface("eth0".into())));
        assert_eq!("10.0.0.1".parse(), Ok(Bind::Address([10, 0, 0, 1].into())));
        assert_eq!("[::1]".parse(), Ok(Bind::Address(std::net::Ipv6Addr::LOCALHOST.into())));
    }

    #[test]
    fn an_interface_that_is_not_there_is_an_error_that_names_those_that_are() {
        let error = listen(&Bind::Interface("nowhere7".into()), 3).expect_err("no such one").to_string();
        assert!(error.contains("nowhere7") && error.contains("lo"), "{error}");
        let elsewhere = Bind::Address([192, 0, 2, 1].into());
        let error = listen(&elsewhere, 3).expect_err("not ours").to_string();
        assert!(error.contains("192.0.2.1") && error.contains("TBCCL_INTERFACE"), "{error}");
    }

    #[test]
    fn the_way_to_ourselves_is_the_loopback_interface() {
        let address = local_address_towards("127.0.0.1:9".parse().expect("an address")).expect("a route");
        assert_eq!(address, IpAddr::from([127, 0, 0, 1]));
        assert!(interface_of(address).0.starts_with("lo"));
    }
}
