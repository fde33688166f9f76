//! Changes of a host's network, one command each.
//!
//! A change has a form of one word, `address:en2:10.42.0.1`, in which it travels to its host and is kept for
//! `tbccl config --undo`. Names in it are checked when it is read, so that no word of a command comes from a
//! damaged file unseen.

use super::networks::PREFIX;
use core::{fmt, net::Ipv4Addr, str::FromStr};
use inventory::{Interface, Inventory, System};

/// Netmask of a cable's network.
const NETMASK: &str = "255.255.255.252";

/// One change of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Load a module of Linux's kernel.
    Load {
        module: String,
    },
    Unload {
        module: String,
    },
    /// Take an interface out of a bridge.
    Leave {
        interface: String,
        bridge: String,
    },
    Join {
        interface: String,
        bridge: String,
    },
    /// Give an interface an address, the end of a cable's network.
    Address {
        interface: String,
        address: Ipv4Addr,
    },
    NoAddress {
        interface: String,
        address: Ipv4Addr,
    },
    /// Bring an interface up. Linux only: macOS does it with the address.
    Up {
        interface: String,
    },
    Mtu {
        interface: String,
        bytes: u32,
    },
}

impl Change {
    /// Returns the words of the command that makes this change, without `sudo`. Repeating it changes nothing.
    pub(super) fn command(&self, system: System) -> Vec<String> {
        let is_mac = system == System::MacOs;
        let line = match self {
            Change::Load { module } => format!("modprobe {module}"),
            Change::Unload { module } => format!("modprobe -r {module}"),
            Change::Leave { interface, bridge } if is_mac => format!("ifconfig {bridge} deletem {interface}"),
            Change::Leave { interface, .. } => format!("ip link set {interface} nomaster"),
            Change::Join { interface, bridge } if is_mac => format!("ifconfig {bridge} addm {interface}"),
            Change::Join { interface, bridge } => format!("ip link set {interface} master {bridge}"),
            Change::Address { interface, address } if is_mac => {
                format!("ifconfig {interface} inet {address} netmask {NETMASK} up")
            }
            Change::Address { interface, address } => {
                format!("ip addr replace {address}/{PREFIX} dev {interface}")
            }
            Change::NoAddress { interface, address } if is_mac => {
                format!("ifconfig {interface} inet {address} delete")
            }
            Change::NoAddress { interface, address } => {
                format!("ip addr del {address}/{PREFIX} dev {interface}")
            }
            Change::Up { interface } if is_mac => format!("ifconfig {interface} up"),
            Change::Up { interface } => format!("ip link set {interface} up"),
            Change::Mtu { interface, bytes } if is_mac => format!("ifconfig {interface} mtu {bytes}"),
            Change::Mtu { interface, bytes } => format!("ip link set {interface} mtu {bytes}"),
        };
        line.split(' ').map(str::to_owned).collect()
    }

    /// Returns the change that takes this one back, on a host that was as in `before`; `None` if nothing need
    /// be taken back. An interface that was brought up stays up: it carries nothing without an address.
    pub(super) fn reversed(&self, before: &Inventory) -> Option<Change> {
        if !self.is_needed(before) {
            return None;
        }
        Some(match self.clone() {
            Change::Load { module } => Change::Unload { module },
            Change::Unload { module } => Change::Load { module },
            Change::Leave { interface, bridge } => Change::Join { interface, bridge },
            Change::Join { interface, bridge } => Change::Leave { interface, bridge },
            Change::Address { interface, address } => Change::NoAddress { interface, address },
            Change::NoAddress { interface, address } => Change::Address { interface, address },
            Change::Up { .. } => return None,
            Change::Mtu { interface, .. } => {
                let bytes = before.interface(&interface)?.mtu?;
                Change::Mtu { interface, bytes }
            }
        })
    }

    /// Whether a host that is as in `inventory` needs this change. What an inventory does not tell is needed.
    pub(super) fn is_needed(&self, inventory: &Inventory) -> bool {
        let has = |interface: &str, address: Ipv4Addr| {
            let own = inventory.interface(interface);
            own.is_some_and(|own| own.ipv4().any(|(ip, _)| ip == address))
        };
        let bridge = |interface: &str| inventory.interface(interface).and_then(|own| own.bridge.as_deref());
        let differs = |interface: &str, of: fn(&Interface) -> Option<u32>, value: u32| {
            inventory.interface(interface).is_none_or(|own| of(own) != Some(value))
        };
        match self {
            Change::Load { .. } | Change::Unload { .. } => true,
            Change::Leave { interface, bridge: from } => bridge(interface) == Some(from),
            Change::Join { interface, bridge: to } => bridge(interface) != Some(to),
            Change::Address { interface, address } => !has(interface, *address),
            Change::NoAddress { interface, address } => has(interface, *address),
            Change::Up { interface } => inventory.interface(interface).is_none_or(|own| !own.up),
            Change::Mtu { interface, bytes } => differs(interface, |own| own.mtu, *bytes),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Load { module } => write!(f, "load:{module}"),
            Change::Unload { module } => write!(f, "unload:{module}"),
            Change::Leave { interface, bridge } => write!(f, "leave:{interface}:{bridge}"),
            Change::Join { interface, bridge } => write!(f, "join:{interface}:{bridge}"),
            Change::Address { interface, address } => write!(f, "address:{interface}:{address}"),
            Change::NoAddress { interface, address } => write!(f, "no-address:{interface}:{address}"),
            Change::Up { interface } => write!(f, "up:{interface}"),
            Change::Mtu { interface, bytes } => write!(f, "mtu:{interface}:{bytes}"),
        }
    }
}

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Change, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let change = match parts[..] {
            ["load", module] => name(module).map(|module| Change::Load { module }),
            ["unload", module] => name(module).map(|module| Change::Unload { module }),
            ["leave", own, bridge] => {
                name(own).zip(name(bridge)).map(|(interface, bridge)| Change::Leave { interface, bridge })
            }
            ["join", own, bridge] => {
                name(own).zip(name(bridge)).map(|(interface, bridge)| Change::Join { interface, bridge })
            }
            ["address", own, address] => name(own)
                .zip(address.parse().ok())
                .map(|(interface, address)| Change::Address { interface, address }),
            ["no-address", own, address] => name(own)
                .zip(address.parse().ok())
                .map(|(interface, address)| Change::NoAddress { interface, address }),
            ["up", own] => name(own).map(|interface| Change::Up { interface }),
            ["mtu", own, bytes] => {
                name(own).zip(bytes.parse().ok()).map(|(interface, bytes)| Change::Mtu { interface, bytes })
            }
            _ => None,
        };
        change.ok_or_else(|| format!("{text:?} is no change of a host"))
    }
}

/// Returns a name of an interface, a bridge or a module, if it can be no option and no path.
fn name(text: &str) -> Option<String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let is_name = (1..=64).contains(&text.len())
        && text.bytes().all(is_plain)
        && text.as_bytes()[0].is_ascii_alphanumeric();
    is_name.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::IpAddr;

    fn all() -> Vec<Change> {
        let (interface, bridge, module) =
            ("en2".to_owned(), "bridge0".to_owned(), "thunderbolt-net".to_owned());
        let address = Ipv4Addr::new(10, 42, 0, 1);
        vec![
            Change::Load { module: module.clone() },
            Change::Unload { module },
            Change::Leave { interface: interface.clone(), bridge: bridge.clone() },
            Change::Join { interface: interface.clone(), bridge },
            Change::Address { interface: interface.clone(), address },
            Change::NoAddress { interface: interface.clone(), address },
            Change::Up { interface: interface.clone() },
            Change::Mtu { interface, bytes: 9000 },
        ]
    }

    #[test]
    fn all_changes_survive_as_words_that_no_shell_changes() {
        for change in all() {
            let word = change.to_string();
            assert_eq!(word.parse(), Ok(change));
            assert_eq!(shlex::try_quote(&word.replace(':', "")).expect("no NUL"), word.replace(':', ""));
        }
    }

    #[test]
    fn words_that_could_be_options_paths_or_commands_are_refused() {
        for text in
            ["up:-a", "up:", "up:a b", "up:$(x)", "up:../x", "leave:en2", "mtu:en2:-1", "address:en2:x", "x"]
        {
            assert!(text.parse::<Change>().is_err_and(|why| why.contains("is no change")), "{text}");
        }
    }

    /// Makes a change on an inventory, as its host would.
    fn make(change: &Change, inventory: &mut Inventory) {
        let Some(own) = inventory.interfaces.iter_mut().find(|own| own.name == "en2") else { return };
        match change {
            Change::Leave { .. } => own.bridge = None,
            Change::Join { bridge, .. } => own.bridge = Some(bridge.clone()),
            Change::Address { address, .. } => {
                own.addresses.push(inventory::Address { ip: IpAddr::V4(*address), prefix: PREFIX });
            }
            Change::NoAddress { address, .. } => own.addresses.retain(|one| one.ip != IpAddr::V4(*address)),
            Change::Up { .. } => own.up = true,
            Change::Mtu { bytes, .. } => own.mtu = Some(*bytes),
            Change::Load { .. } | Change::Unload { .. } => {}
        }
    }

    #[test]
    fn changes_that_are_taken_back_leave_a_host_as_it_was() {
        let own = Interface {
            name: "en2".into(),
            bridge: Some("bridge0".into()),
            mtu: Some(1500),
            up: true,
            ..Interface::default()
        };
        let before = Inventory { interfaces: vec![own], ..Inventory::default() };
        let mut host = before.clone();
        let made: Vec<Change> = all().into_iter().filter(|change| change.is_needed(&host)).collect();
        // The host has no such address yet and is no stranger to the bridge, so the opposites are left out.
        assert_eq!(made.len(), 5, "{made:?}");
        let back: Vec<Change> = made.iter().filter_map(|change| change.reversed(&before)).collect();
        made.iter().for_each(|change| make(change, &mut host));
        assert!(host != before && made[2..].iter().all(|change| !change.is_needed(&host)));
        back.iter().rev().for_each(|change| make(change, &mut host));
        assert_eq!(host, before);
    }
}
