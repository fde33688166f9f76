//! Ports, RDMA devices and interfaces of a machine, with the cores near them.
//!
//! A port has its interface and its RDMA device, and an RDMA device its interface; each is listed once.

use super::Host;
use crate::commands::survey::Cables;
use inventory::{Interface, InterfaceKind, Inventory, Port};
use serde::Serialize;

/// A device of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Device {
    /// Name of the port, the RDMA device or the interface.
    pub(super) name: String,
    /// Kind for people: `Thunderbolt 5`, `RDMA`, `Ethernet`, `Wi-Fi`.
    pub(super) kind: &'static str,
    /// The network interface, if the device is another thing.
    pub(super) interface: Option<String>,
    /// The RDMA device of a port.
    pub(super) device: Option<String>,
    /// Facts for people, such as state and address.
    pub(super) facts: Vec<String>,
    /// Rate of the link in Gb/s.
    pub(super) gigabits: Option<f64>,
    /// Machine at the other end of the port's cable.
    pub(super) leads_to: Option<String>,
    /// Hardware threads near the device; empty if all are as near, or nothing is known.
    pub(super) near: Vec<u32>,
}

impl Device {
    /// Returns the rate for people.
    pub(super) fn rate(&self) -> Option<String> {
        self.gigabits.map(|rate| format!("{rate} Gb/s"))
    }

    /// Returns name and facts in one line.
    pub(super) fn title(&self) -> String {
        let names: Vec<&str> =
            [&self.interface, &self.device].into_iter().flatten().map(String::as_str).collect();
        let names = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
        let facts: Vec<&str> = self.facts.iter().map(String::as_str).collect();
        let facts = if facts.is_empty() { String::new() } else { format!(", {}", facts.join(", ")) };
        let kind = if self.name.starts_with(self.kind.split(' ').next().unwrap_or_default()) {
            String::new()
        } else {
            format!("{} ", self.kind)
        };
        format!("{kind}{}{names}{facts}", self.name)
    }
}

/// Returns the devices of a host, ports first.
pub(super) fn devices(position: usize, host: Host<'_>, cables: &Cables) -> Vec<Device> {
    let inventory = host.inventory;
    let ports = inventory.ports.iter().enumerate();
    let mut all: Vec<Device> =
        ports.map(|(index, port)| of_port(inventory, port, cables.partner(position, index))).collect();
    let of_port = |name: &str| inventory.ports.iter().any(|port| port.device.as_deref() == Some(name));
    let rdma = inventory.devices.iter().filter(|device| !of_port(&device.name));
    all.extend(rdma.map(|device| Device {
        name: device.name.clone(),
        kind: "RDMA",
        interface: device.interface.clone(),
        facts: vec![device.state.to_lowercase()],
        gigabits: device.gigabits,
        near: near(inventory, &[Some(&device.name), device.interface.as_deref()]),
        ..Device::default()
    }));
    let is_listed = |own: &Interface| all.iter().any(|device| device.interface.as_deref() == Some(&own.name));
    let interfaces = inventory.interfaces.iter().filter(|own| !is_listed(own));
    let interfaces: Vec<Device> = interfaces.filter_map(|own| of_interface(inventory, own)).collect();
    all.extend(interfaces);
    all
}

fn of_port(inventory: &Inventory, port: &Port, partner: Option<String>) -> Device {
    let (interface, device) = (port.interface.as_deref(), port.device.as_deref());
    let known = port.partner.as_ref().map(|partner| match &partner.hub {
        Some(hub) => format!("{}, behind {hub}", partner.name),
        None => partner.name.clone(),
    });
    let leads_to = partner.or(known);
    let router = port.name.split_once('/').map(|(router, _)| router);
    Device {
        name: port.name.clone(),
        kind: port.generation.name(),
        interface: port.interface.clone(),
        device: port.device.clone(),
        facts: if leads_to.is_none() { vec!["no cable".to_owned()] } else { Vec::new() },
        gigabits: port.gigabits,
        leads_to,
        near: near(inventory, &[router, device, interface]),
    }
}

fn of_interface(inventory: &Inventory, own: &Interface) -> Option<Device> {
    let kind = match own.kind {
        InterfaceKind::Ethernet => "Ethernet",
        InterfaceKind::Wifi => "Wi-Fi",
        InterfaceKind::Thunderbolt => "Thunderbolt",
        InterfaceKind::Bridge | InterfaceKind::Loopback | InterfaceKind::Other => return None,
    };
    let state = if own.up { "up" } else { "down" };
    let address = own.ipv4().next().map(|(address, _)| address.to_string());
    Some(Device {
        name: own.name.clone(),
        kind,
        facts: [Some(state.to_owned()), address].into_iter().flatten().collect(),
        near: near(inventory, &[Some(&own.name)]),
        ..Device::default()
    })
}

/// Returns the threads near the first of these names that has some.
fn near(inventory: &Inventory, names: &[Option<&str>]) -> Vec<u32> {
    let Some(processors) = &inventory.processors else { return Vec::new() };
    let known = names.iter().flatten().find_map(|name| processors.near.get(*name));
    known.map_or_else(Vec::new, |near| near.cpus.clone())
}
