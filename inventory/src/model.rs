//! The data type: one form for machines of all systems.

use crate::Processors;
use core::net::{IpAddr, Ipv4Addr};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Version of the JSON form. Readers refuse others.
pub const VERSION: u32 = 1;

/// The operating system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum System {
    /// Linux.
    Linux,
    /// macOS.
    MacOs,
    /// Another system, of which nothing is known.
    #[default]
    Other,
}

/// The parts of a machine that jobs depend on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    /// Version of this form, [`VERSION`].
    pub version: u32,
    /// Version of tbccl on the machine.
    pub tbccl: String,
    /// The machine's own name.
    pub hostname: String,
    /// Whether the machine can resolve its own name.
    pub resolves_itself: Option<bool>,
    /// The operating system.
    pub system: System,
    /// Version of macOS, or release of the kernel.
    pub release: String,
    /// Model of the machine, or of its processor.
    pub model: String,
    /// Time of day in milliseconds since 1970.
    pub time_ms: Option<u64>,
    /// Memory and its limits.
    pub memory: Memory,
    /// Cores, caches and memories, if a source tells them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processors: Option<Processors>,
    /// Thunderbolt and USB4 ports.
    pub ports: Vec<Port>,
    /// Network interfaces.
    pub interfaces: Vec<Interface>,
    /// IPv4 routes.
    pub routes: Vec<Route>,
    /// RDMA devices.
    pub devices: Vec<Device>,
    /// The verbs library.
    pub verbs: Verbs,
    /// macOS's switch for RDMA.
    pub rdma: RdmaSwitch,
    /// Loaded kernel modules that concern cables and RDMA.
    pub modules: Vec<String>,
    /// Minutes without use after which the machine sleeps; 0 for never.
    pub sleep_minutes: Option<u32>,
    /// Name of the firewall that is on; empty where it is off.
    pub firewall: Option<String>,
    /// Sources that could not be read, one line each.
    pub problems: Vec<String>,
}

/// Memory and its limits, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Installed memory.
    pub total: Option<u64>,
    /// Memory that programs can still take.
    pub available: Option<u64>,
    /// Memory that a process may lock; `u64::MAX` without a limit.
    pub lockable: Option<u64>,
}

/// Generation of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Generation {
    /// Unknown.
    #[default]
    Unknown,
    /// Thunderbolt 1 to 3.
    Thunderbolt3,
    /// USB4 of a PC: Thunderbolt 4, or USB4 without that name.
    Usb4,
    /// Thunderbolt 4.
    Thunderbolt4,
    /// Thunderbolt 5.
    Thunderbolt5,
}

impl Generation {
    /// Returns the name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Generation::Unknown => "Thunderbolt",
            Generation::Thunderbolt3 => "Thunderbolt 3",
            Generation::Usb4 => "USB4",
            Generation::Thunderbolt4 => "Thunderbolt 4",
            Generation::Thunderbolt5 => "Thunderbolt 5",
        }
    }
}

/// A Thunderbolt or USB4 port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// Name for people: `Thunderbolt 2`, or `0-0/3` (router and adapter).
    pub name: String,
    /// Identifier of the controller: on macOS of the domain, which has one port; on Linux of the host router,
    /// which may have several.
    pub uid: String,
    /// Generation of the port.
    pub generation: Generation,
    /// The port's network interface.
    pub interface: Option<String>,
    /// The port's RDMA device.
    pub device: Option<String>,
    /// Rate of the link in Gb/s, if something is plugged in.
    pub gigabits: Option<f64>,
    /// The machine or hub at the other end of the cable.
    pub partner: Option<Partner>,
}

/// The machine or hub at the other end of a cable.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Partner {
    /// Its name.
    pub name: String,
    /// Identifier of the machine's controller; `None` for hubs, displays and disks.
    pub uid: Option<String>,
    /// Name of the hub between the port and the machine.
    pub hub: Option<String>,
}

/// Kind of a network interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InterfaceKind {
    /// IP over Thunderbolt.
    Thunderbolt,
    /// Ethernet.
    Ethernet,
    /// Wi-Fi.
    Wifi,
    /// A bridge.
    Bridge,
    /// The loopback interface.
    Loopback,
    /// Any other.
    #[default]
    Other,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: InterfaceKind,
    /// The name that the system shows to people: `Thunderbolt 1`.
    pub label: Option<String>,
    /// Whether it is up and has a carrier.
    pub up: bool,
    /// Maximum bytes of a packet.
    pub mtu: Option<u32>,
    /// Its addresses.
    pub addresses: Vec<Address>,
    /// The bridge of which it is a member.
    pub bridge: Option<String>,
}

impl Interface {
    /// Returns its IPv4 addresses, with the lengths of their prefixes.
    pub fn ipv4(&self) -> impl Iterator<Item = (Ipv4Addr, u8)> {
        self.addresses.iter().filter_map(|address| match address.ip {
            IpAddr::V4(ip) => Some((ip, address.prefix)),
            IpAddr::V6(_) => None,
        })
    }
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Length of the network's prefix in bits.
    pub prefix: u8,
}

/// An IPv4 route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Network of the destination; 0.0.0.0 for the default route.
    pub network: Ipv4Addr,
    /// Length of its prefix in bits.
    pub prefix: u8,
    /// The gateway, if there is one.
    pub gateway: Option<Ipv4Addr>,
    /// The interface.
    pub interface: String,
}

/// An RDMA device, with its only port or its first one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// The network interface of its port.
    pub interface: Option<String>,
    /// Link layer: `Ethernet`, `InfiniBand` or `Thunderbolt`.
    pub link: String,
    /// State of the port, as verbs name it: `ACTIVE`, `DOWN`.
    pub state: String,
    /// Rate of the port in Gb/s.
    pub gigabits: Option<f64>,
    /// The GIDs of the port that are in use.
    pub gids: Vec<Gid>,
    /// Queue pairs that the device grants, if the device was probed.
    pub queue_pairs: Option<u32>,
    /// Memory regions that the device grants, if the device was probed.
    pub regions: Option<u32>,
    /// Causes that the probe has found.
    pub faults: Vec<DeviceFault>,
}

/// A GID of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    /// Index in the port's table.
    pub index: u8,
    /// The GID, written as an IPv6 address; IPv4 addresses as `::ffff:10.0.0.1`.
    pub gid: String,
    /// Its type: `IB/RoCE v1`, `RoCE v2`; empty where the system names none.
    pub kind: String,
}

impl Gid {
    /// Whether the GID carries an IPv4 address.
    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        self.ipv4().is_some()
    }

    /// Returns the IPv4 address that the GID carries.
    #[must_use]
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        self.gid.parse::<core::net::Ipv6Addr>().ok()?.to_ipv4_mapped()
    }
}

/// A fault that the probe of a device has found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFault {
    /// Name of the cause, one word: `PortDown`.
    pub cause: String,
    /// The message.
    pub text: String,
}

/// The verbs library.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verbs {
    /// Name of the library that was loaded.
    pub library: Option<String>,
    /// Why it was not loaded, or lists no device.
    pub problem: Option<String>,
    /// Devices that it lists, which are merged into [`Inventory::devices`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
}

/// State of macOS's switch for RDMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RdmaSwitch {
    /// The system has no such switch.
    #[default]
    None,
    /// RDMA is enabled.
    On,
    /// RDMA is disabled.
    Off,
    /// The command that tells is not there.
    Missing,
}

/// Why JSON is not an inventory.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InventoryError {
    /// The text is not the JSON of an inventory.
    #[error("not an inventory: {0}")]
    Syntax(#[from] serde_json::Error),
    /// The form has another version.
    #[error(
        "an inventory of version {0}, and this tbccl reads version {VERSION}; install the same tbccl on both"
    )]
    Version(u32),
}

impl Inventory {
    /// Reads the JSON form.
    ///
    /// # Errors
    /// [`InventoryError::Version`] for the form of another version, [`InventoryError::Syntax`] for anything
    /// else.
    pub fn from_json(text: &str) -> Result<Inventory, InventoryError> {
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        let head: Head = serde_json::from_str(text)?;
        if head.version != VERSION {
            return Err(InventoryError::Version(head.version));
        }
        Ok(serde_json::from_str(text)?)
    }

    /// Returns the JSON form, in one line.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns an interface by name.
    #[must_use]
    pub fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }

    /// Returns an RDMA device by name.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// Returns the port of an RDMA device.
    #[must_use]
    pub fn port_of(&self, device: &Device) -> Option<&Port> {
        self.ports.iter().find(|port| port.device.as_deref() == Some(&device.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_of_another_version_is_refused_by_number() {
        let inventory = Inventory { version: VERSION, hostname: "a".into(), ..Inventory::default() };
        assert_eq!(Inventory::from_json(&inventory.to_json()).expect("ours"), inventory);
        let newer = inventory.to_json().replacen("\"version\":1", "\"version\":7", 1);
        let error = Inventory::from_json(&newer).expect_err("newer").to_string();
        assert!(error.starts_with("an inventory of version 7, and this tbccl reads version 1"), "{error}");
        assert!(Inventory::from_json("{}").is_err());
    }

    #[test]
    fn a_gid_may_carry_an_ipv4_address() {
        let gid = |text: &str| Gid { index: 0, gid: text.into(), kind: String::new() };
        assert_eq!(gid("::ffff:169.254.1.2").ipv4(), Some(Ipv4Addr::new(169, 254, 1, 2)));
        assert!(gid("0000:0000:0000:0000:0000:ffff:a9fe:0102").is_ipv4());
        assert!(!gid("fe80::1").is_ipv4());
    }
}
