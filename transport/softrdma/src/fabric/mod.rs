//! What a fabric consists of: nodes, their devices, and the cables between them, read from a TOML file.
//!
//! Everything has a number: nodes and cables in the order of the file, and ports through all nodes. These numbers
//! are the places of [`Control`](crate::control::Control)'s words. A [`Fabric`] has been checked: names are
//! unique, cables end in ports that exist, and no port has two cables.
//!
//! A device has one port, as those of Thunderbolt have; an adapter with two ports is two devices.

mod error;
mod file;
mod overrides;

pub use error::FabricError;
pub use overrides::{GidChange, Override};

use crate::{link_model::LinkModel, profile::Profile, suggestion};
use std::{fs, net::Ipv4Addr, path::Path};
use verbs_sys::Gid;

/// Cables that a fabric may have.
pub const MAX_CABLES: usize = 512;

/// Ports that a fabric may have.
pub const MAX_PORTS: usize = 1024;

/// Nodes that a fabric may have.
pub const MAX_NODES: usize = 64;

/// Places in a port's table of addresses.
pub const GID_TABLE_LEN: usize = 4;

/// A fabric.
#[derive(Clone, Debug, PartialEq)]
pub struct Fabric {
    /// Equal for equal files.
    pub digest: u64,
    /// The processes that share a node's devices run on it.
    pub nodes: Vec<Node>,
    /// All devices, by the numbers of their ports.
    pub devices: Vec<Device>,
    /// What connects ports.
    pub cables: Vec<Cable>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Unique in the fabric.
    pub name: String,
    /// The ports of its devices.
    pub ports: std::ops::Range<usize>,
}

/// A device with its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Unique in its node; what `ibv_get_device_name` says.
    pub name: String,
    /// What it can do.
    pub profile: &'static Profile,
    /// Where it is.
    pub node: usize,
    /// The number of its port.
    pub port: usize,
    /// Does the file say that the port is up, when there is a cable in it?
    pub is_up: bool,
    /// What its IPv4-mapped address maps.
    pub ipv4: Ipv4Addr,
    /// When the IPv4-mapped address is there.
    pub gid: GidAvailability,
    /// Where in the table it is.
    pub gid_index: u8,
    /// After so many nanoseconds without a message a connection stops working; 0 for never.
    pub idle_ns: u64,
    /// A queue takes no more requests, or frames where those are counted, whatever depth it is said to have.
    pub usable_depth: u32,
    /// The cable in its port.
    pub cable_end: Option<CableEnd>,
}

/// When an IPv4-mapped address is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidAvailability {
    /// From the beginning.
    Present,
    /// So many nanoseconds after the first process has joined the fabric.
    Late(u64),
    /// Never.
    Missing,
}

/// One end of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CableEnd {
    /// The cable.
    pub cable: usize,
    /// 0 for its first end, 1 for its second; also the number of the lane that leads away from here.
    pub side: usize,
}

/// A cable.
#[derive(Clone, Debug, PartialEq)]
pub struct Cable {
    /// Unique in the fabric; `a/x--b/y` unless the file names it.
    pub name: String,
    /// The ports it connects. Equal for a loopback plug.
    pub ports: [usize; 2],
    /// What it does, in both directions.
    pub model: LinkModel,
}

impl Fabric {
    /// Reads a file.
    ///
    /// # Errors
    /// A line that names the file, the place in it, and what would be valid there.
    pub fn load(path: &Path) -> Result<Fabric, FabricError> {
        let text = fs::read_to_string(path).map_err(|error| FabricError::unreadable(path, &error))?;
        Fabric::parse(&text, path)
    }

    /// Reads the text of a file; `path` is for messages.
    ///
    /// # Errors
    /// As [`Fabric::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Fabric, FabricError> {
        file::read(text).map_err(|error| FabricError::at(path, text, error))
    }

    /// The node with that name or number.
    ///
    /// # Errors
    /// The nearest name, and all of them.
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

    /// The device named `NODE/DEVICE`.
    ///
    /// # Errors
    /// The nearest name, and all of them.
    pub fn find_device(&self, text: &str) -> Result<&Device, String> {
        let names: Vec<String> = self.devices.iter().map(|device| self.port_name(device)).collect();
        let found = names.iter().position(|name| name == text);
        found.map(|port| &self.devices[port]).ok_or_else(|| {
            format!("unknown port `{text}`{}", suggestion::suggest(text, names.iter().map(String::as_str)))
        })
    }

    /// The cable with that name, number, or with an end in the port `NODE/DEVICE`.
    ///
    /// # Errors
    /// The nearest name, and all of them.
    pub fn find_cable(&self, text: &str) -> Result<usize, String> {
        let by_name = self.cables.iter().position(|cable| cable.name == text);
        let by_end = || self.find_device(text).ok().and_then(|device| device.cable_end).map(|end| end.cable);
        let by_number = || text.parse().ok().filter(|number| *number < self.cables.len());
        by_name.or_else(by_end).or_else(by_number).ok_or_else(|| {
            let known = self.cables.iter().map(|cable| cable.name.as_str());
            format!("unknown cable `{text}`{}", suggestion::suggest(text, known))
        })
    }

    /// `NODE/DEVICE`.
    #[must_use]
    pub fn port_name(&self, device: &Device) -> String {
        format!("{}/{}", self.nodes[device.node].name, device.name)
    }

    /// The devices of a node.
    #[must_use]
    pub fn devices_of(&self, node: usize) -> &[Device] {
        &self.devices[self.nodes[node].ports.clone()]
    }

    /// The device at the other end of a device's cable, itself when there is a loopback plug.
    #[must_use]
    pub fn peer(&self, device: &Device) -> Option<&Device> {
        let end = device.cable_end?;
        Some(&self.devices[self.cables[end.cable].ports[1 - end.side]])
    }
}

impl Device {
    /// `node_guid`, in host byte order: made of the port's number, with the bit of locally administered addresses.
    #[must_use]
    pub fn guid(&self) -> u64 {
        0x0200_00ff_fe00_0000 | (self.port as u64 + 1)
    }

    /// The addresses of its port when the fabric is so many nanoseconds old.
    ///
    /// First a link-local one, then the IPv4-mapped one at its place, then what the profile puts behind it. Places
    /// between them are holes.
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

    /// `fe80::` and an interface identifier.
    fn link_local(&self, which: u64) -> Gid {
        let identifier = u128::from(self.guid() ^ which << 40);
        Gid((0xfe80_u128 << 112 | identifier).to_be_bytes())
    }
}

#[cfg(test)]
mod tests;
