//! A fabric: nodes, their devices, and the cables between them, read from a TOML file.
//!
//! Nodes and cables are numbered in the order of the file, and ports through all nodes. These numbers are
//! indices into the arrays of [`Control`](crate::control::Control). A [`Fabric`] is valid: names are unique,
//! cables end in ports that exist, and no port has two cables.
//!
//! A device has one port, like those of Thunderbolt; an adapter with two ports is two devices.

mod error;
mod file;
mod overrides;

pub use error::FabricError;
pub use overrides::{GidChange, Override};

use crate::{link_model::LinkModel, profile::Profile, suggestion};
use std::{fs, net::Ipv4Addr, path::Path};
use verbs_sys::Gid;

/// Maximum number of cables in a fabric.
pub const MAX_CABLES: usize = 512;

/// Maximum number of ports in a fabric.
pub const MAX_PORTS: usize = 1024;

/// Maximum number of nodes in a fabric.
pub const MAX_NODES: usize = 64;

/// Entries of a port's GID table.
pub const GID_TABLE_LEN: usize = 4;

/// A validated fabric file.
#[derive(Clone, Debug, PartialEq)]
pub struct Fabric {
    /// Hash of the file's text; equal for equal files.
    pub digest: u64,
    /// Nodes. Processes on a node use its devices.
    pub nodes: Vec<Node>,
    /// All devices, indexed by port number.
    pub devices: Vec<Device>,
    /// Cables between ports.
    pub cables: Vec<Cable>,
}

/// A node of a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Name, unique in the fabric.
    pub name: String,
    /// Port numbers of the node's devices.
    pub ports: std::ops::Range<usize>,
}

/// A device with its only port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Name as reported by `ibv_get_device_name`, unique in its node.
    pub name: String,
    /// Capabilities and behavior.
    pub profile: &'static Profile,
    /// Number of the node.
    pub node: usize,
    /// Number of the port.
    pub port: usize,
    /// Whether the file declares the port up. Without a cable the port is down anyway.
    pub is_up: bool,
    /// IPv4 address behind the IPv4-mapped GID.
    pub ipv4: Ipv4Addr,
    /// Availability of the IPv4-mapped GID.
    pub gid: GidAvailability,
    /// Index of the IPv4-mapped GID in the GID table.
    pub gid_index: u8,
    /// Idle time after which a connection stops working, in nanoseconds; 0 for never.
    pub idle_ns: u64,
    /// Requests that a queue accepts, or frames where those are counted, even if it reports a greater depth.
    pub usable_depth: u32,
    /// Queue pairs that all processes together can have.
    pub usable_queue_pairs: u32,
    /// The end of the cable in the port.
    pub cable_end: Option<CableEnd>,
}

/// The time from which a port has its IPv4-mapped GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidAvailability {
    /// From the beginning.
    Present,
    /// After this many nanoseconds since the first process joined the fabric.
    Late(u64),
    /// Never.
    Missing,
}

/// One end of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CableEnd {
    /// Number of the cable.
    pub cable: usize,
    /// 0 for the first end, 1 for the second; also the index of the lane that leaves from this end.
    pub side: usize,
}

/// A cable between two ports.
#[derive(Clone, Debug, PartialEq)]
pub struct Cable {
    /// Name, unique in the fabric; `a/x--b/y` unless the file gives one.
    pub name: String,
    /// Port numbers of both ends; equal for a loopback plug.
    pub ports: [usize; 2],
    /// The cable's properties, in both directions.
    pub model: LinkModel,
}

impl Fabric {
    /// Reads a fabric file.
    ///
    /// # Errors
    /// [`FabricError`] if the file can't be read or is not valid.
    pub fn load(path: &Path) -> Result<Fabric, FabricError> {
        let text = fs::read_to_string(path).map_err(|error| FabricError::unreadable(path, &error))?;
        Fabric::parse(&text, path)
    }

    /// Parses the text of a fabric file. `path` appears in errors only.
    ///
    /// # Errors
    /// [`FabricError`] if the text is not valid.
    pub fn parse(text: &str, path: &Path) -> Result<Fabric, FabricError> {
        file::read(text).map_err(|error| FabricError::at(path, text, error))
    }

    /// Returns the number of the node with this name or number.
    ///
    /// # Errors
    /// A message with the nearest name and the list of all.
    pub fn find_node(&self, text: &str) -> Result<usize, String> {
        let by_name = self.nodes.iter().position(|node| node.name == text);
        let by_number = || text.parse().ok().filter(|number| *number < self.nodes.len());
        by_name.or_else(by_number).ok_or_else(|| {
            format!(
                "unknown node `{text}`{}",
                suggestion::suggest(text, self.nodes.iter().map(|n| n.name.as_str()))
            )
        })
    }

    /// Returns the device named `NODE/DEVICE`.
    ///
    /// # Errors
    /// A message with the nearest name and the list of all.
    pub fn find_device(&self, text: &str) -> Result<&Device, String> {
        let names: Vec<String> = self.devices.iter().map(|device| self.port_name(device)).collect();
        let found = names.iter().position(|name| name == text);
        found.map(|port| &self.devices[port]).ok_or_else(|| {
            format!("unknown port `{text}`{}", suggestion::suggest(text, names.iter().map(String::as_str)))
        })
    }

    /// Returns the number of the cable with this name or number, or with an end in the port `NODE/DEVICE`.
    ///
    /// # Errors
    /// A message with the nearest name and the list of all.
    pub fn find_cable(&self, text: &str) -> Result<usize, String> {
        let by_name = self.cables.iter().position(|cable| cable.name == text);
        let by_end = || self.find_device(text).ok().and_then(|device| device.cable_end).map(|end| end.cable);
        let by_number = || text.parse().ok().filter(|number| *number < self.cables.len());
        by_name.or_else(by_end).or_else(by_number).ok_or_else(|| {
            let known = self.cables.iter().map(|cable| cable.name.as_str());
            format!("unknown cable `{text}`{}", suggestion::suggest(text, known))
        })
    }

    /// Returns the name of a device's port, `NODE/DEVICE`.
    #[must_use]
    pub fn port_name(&self, device: &Device) -> String {
        format!("{}/{}", self.nodes[device.node].name, device.name)
    }

    /// Returns the devices of a node.
    #[must_use]
    pub fn devices_of(&self, node: usize) -> &[Device] {
        &self.devices[self.nodes[node].ports.clone()]
    }

    /// Returns the device at the other end of a device's cable; the device itself for a loopback plug.
    #[must_use]
    pub fn peer(&self, device: &Device) -> Option<&Device> {
        let end = device.cable_end?;
        Some(&self.devices[self.cables[end.cable].ports[1 - end.side]])
    }
}

impl Device {
    /// Returns `node_guid` in host byte order: the port number, with the bit of locally administered
    /// addresses.
    #[must_use]
    pub fn guid(&self) -> u64 {
        0x0200_00ff_fe00_0000 | (self.port as u64 + 1)
    }

    /// Returns the port's GID table, `age` nanoseconds after the first process joined the fabric.
    ///
    /// Index 0 is a link-local address. The IPv4-mapped one follows at its index, then the profile's second
    /// link-local one. Other entries are empty.
    #[must_use]
    pub fn gids(&self, age: u64, state: Override, change: GidChange) -> [Gid; GID_TABLE_LEN] {
        let mut table = [Gid::default(); GID_TABLE_LEN];
        table[0] = self.link_local(0);
        let index = usize::from(change.index.unwrap_or(self.gid_index)).clamp(1, GID_TABLE_LEN - 1);
        let in_file = match self.gid {
            GidAvailability::Present => true,
            GidAvailability::Late(after) => age >= after,
            GidAvailability::Missing => false,
        };
        if state.apply(in_file) {
            table[index] = Gid::from_ipv4(change.ipv4.unwrap_or(self.ipv4));
        }
        if let Some(behind) = table.get_mut(index + 1).filter(|_| self.profile.second_link_local) {
            *behind = self.link_local(1);
        }
        table
    }

    /// Returns `fe80::` with the device's interface identifier.
    fn link_local(&self, which: u64) -> Gid {
        let identifier = u128::from(self.guid() ^ which << 40);
        Gid((0xfe80_u128 << 112 | identifier).to_be_bytes())
    }
}

#[cfg(test)]
mod tests;
