//! Readers of the output of macOS's commands.
//!
//! The keys of `system_profiler SPThunderboltDataType -json` are documented nowhere; those used here are the
//! ones that public tools for clusters of Macs read. A bus has one receptacle and an identifier of its
//! domain. A machine at the other end has the identifier of its own domain, a hub or display has none.

use crate::{
    Address, Generation, Interface, InterfaceKind, Inventory, Memory, Partner, Port, RdmaSwitch, Recording,
    Route, System, linux::leading_number,
};
use core::net::{IpAddr, Ipv4Addr};
use serde_json::Value;

/// Command that lists Thunderbolt ports.
const PROFILER: &str = "system_profiler SPThunderboltDataType -json";
/// Command that names interfaces as people see them.
const HARDWARE_PORTS: &str = "networksetup -listallhardwareports";
/// Command that tells whether the firewall is on.
const FIREWALL: &str = "/usr/libexec/ApplicationFirewall/socketfilterfw --getglobalstate";

/// Reads a recording of a Mac.
pub(crate) fn read(recording: &Recording) -> Inventory {
    let line = |command: &str| recording.output(command).unwrap_or_default().trim().to_owned();
    let problems = [PROFILER, HARDWARE_PORTS, "ifconfig", "sw_vers"]
        .into_iter()
        .filter(|command| recording.output(command).is_none())
        .map(|command| format!("`{command}` gave no output"));
    let mut problems: Vec<String> = problems.collect();
    let labels = hardware_ports(recording.output(HARDWARE_PORTS).unwrap_or_default());
    let chip = line("sysctl -n machdep.cpu.brand_string");
    let ports = recording.output(PROFILER).map(|text| ports(text, &labels, &chip));
    let ports = ports.unwrap_or_else(|| Ok(Vec::new())).unwrap_or_else(|error| {
        problems.push(format!("`{PROFILER}`: {error}"));
        Vec::new()
    });
    Inventory {
        hostname: line("hostname"),
        system: System::MacOs,
        release: version(recording.output("sw_vers").unwrap_or_default()).unwrap_or_default(),
        model: [line("sysctl -n hw.model"), chip].join(", ").trim_matches([',', ' ']).to_owned(),
        memory: memory(recording),
        ports,
        interfaces: interfaces(recording.output("ifconfig").unwrap_or_default(), &labels),
        routes: default_route(recording.output("netstat -rn -f inet").unwrap_or_default()),
        rdma: rdma_switch(recording.output("rdma_ctl status")),
        sleep_minutes: recording.output("pmset -g").and_then(sleep_minutes),
        firewall: recording.output(FIREWALL).map(firewall),
        problems,
        ..Inventory::default()
    }
}

/// Returns the value of `ProductVersion`.
fn version(sw_vers: &str) -> Option<String> {
    sw_vers.lines().find_map(|line| Some(line.strip_prefix("ProductVersion:")?.trim().to_owned()))
}

fn rdma_switch(status: Option<&str>) -> RdmaSwitch {
    match status.map(str::to_lowercase) {
        None => RdmaSwitch::Missing,
        Some(text) if text.contains("disabled") => RdmaSwitch::Off,
        Some(text) if text.contains("enabled") => RdmaSwitch::On,
        Some(_) => RdmaSwitch::None,
    }
}

/// Returns the value of the line `sleep` of `pmset -g`.
fn sleep_minutes(pmset: &str) -> Option<u32> {
    pmset.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("sleep")).then(|| words.next()?.parse().ok())?
    })
}

fn firewall(state: &str) -> String {
    let is_off = state.contains("State = 0") || state.to_lowercase().contains("disabled");
    if is_off { String::new() } else { "the application firewall".to_owned() }
}

fn memory(recording: &Recording) -> Memory {
    let total = recording.output("sysctl -n hw.memsize").and_then(|text| text.trim().parse().ok());
    let stat = recording.output("vm_stat").unwrap_or_default();
    let page = stat.split_once("page size of ").and_then(|(_, rest)| leading_number(rest));
    let pages = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().trim_end_matches('.').parse::<u64>().ok()
    };
    let names = ["Pages free", "Pages inactive", "Pages speculative", "Pages purgeable"];
    let free: u64 = names.iter().filter_map(|name| pages(name)).sum();
    Memory {
        total,
        available: page.map(|page| page as u64 * free).filter(|bytes| *bytes > 0),
        lockable: None,
    }
}

/// An interface with the name that people see.
struct HardwarePort {
    label: String,
    interface: String,
}

fn hardware_ports(text: &str) -> Vec<HardwarePort> {
    let mut ports = Vec::new();
    let mut label = None;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("Hardware Port: ") {
            label = Some(name.trim().to_owned());
        } else if let Some(name) = line.strip_prefix("Device: ")
            && let Some(label) = label.take()
        {
            ports.push(HardwarePort { label, interface: name.trim().to_owned() });
        }
    }
    ports
}

/// Rate in a text such as `80 Gb/s` or `Up to 120 Gb/s`.
fn rate(text: &str) -> Option<f64> {
    leading_number(text.trim_start_matches("Up to "))
}

/// Whether Macs with this processor have Thunderbolt 5.
fn has_thunderbolt_5(chip: &str) -> bool {
    let Some((_, rest)) = chip.split_once("Apple M") else { return false };
    let number = leading_number(rest).unwrap_or(0.0);
    let kind = rest.split_whitespace().nth(1).unwrap_or_default();
    (number >= 4.0 && ["Pro", "Max", "Ultra"].contains(&kind)) || (number >= 3.0 && kind == "Ultra")
}

fn ports(text: &str, labels: &[HardwarePort], chip: &str) -> Result<Vec<Port>, serde_json::Error> {
    let whole: Value = serde_json::from_str(text)?;
    let buses = whole["SPThunderboltDataType"].as_array().cloned().unwrap_or_default();
    let fastest = buses.iter().filter_map(|bus| rate(bus["receptacle_1_tag"]["current_speed_key"].as_str()?));
    let generation = match fastest.fold(0.0, f64::max) {
        _ if has_thunderbolt_5(chip) => Generation::Thunderbolt5,
        fastest if fastest > 40.0 => Generation::Thunderbolt5,
        40.0 => Generation::Thunderbolt4,
        fastest if fastest > 0.0 => Generation::Thunderbolt3,
        _ => Generation::Unknown,
    };
    let mut ports: Vec<Port> = buses.iter().filter_map(|bus| port(bus, labels, generation)).collect();
    ports.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(ports)
}

fn port(bus: &Value, labels: &[HardwarePort], generation: Generation) -> Option<Port> {
    let receptacle = &bus["receptacle_1_tag"];
    // A bus without a receptacle is inside the machine.
    receptacle.as_object()?;
    let name = match receptacle["receptacle_id_key"].as_str() {
        Some(number) => format!("Thunderbolt {number}"),
        None => bus["_name"].as_str().unwrap_or("Thunderbolt").to_owned(),
    };
    let is_connected = receptacle["receptacle_status_key"] == "receptacle_connected";
    let speed = receptacle["current_speed_key"].as_str().filter(|_| is_connected);
    let interface = labels.iter().find(|port| port.label == name).map(|port| port.interface.clone());
    let items = bus["_items"].as_array().map_or([].as_slice(), Vec::as_slice);
    Some(Port {
        uid: bus["domain_uuid_key"].as_str().unwrap_or_default().to_owned(),
        name,
        generation,
        interface,
        device: None,
        gigabits: speed.and_then(rate),
        partner: items.iter().find_map(|item| partner(item, None)),
    })
}

/// Returns the machine in a tree of devices, or the hub at its root.
fn partner(item: &Value, hub: Option<&str>) -> Option<Partner> {
    let text = |key: &str| item[key].as_str().map(str::to_owned);
    let name = text("_name").or(text("device_name_key")).unwrap_or_default();
    if let Some(uid) = text("domain_uuid_key") {
        return Some(Partner { name, uid: Some(uid), hub: hub.map(str::to_owned) });
    }
    let inside = item["_items"].as_array().map_or([].as_slice(), Vec::as_slice);
    let machine =
        inside.iter().find_map(|item| partner(item, Some(hub.unwrap_or(&name))).filter(|p| p.uid.is_some()));
    machine.or(Some(Partner { name, uid: None, hub: None }))
}

fn interfaces(ifconfig: &str, labels: &[HardwarePort]) -> Vec<Interface> {
    let mut interfaces: Vec<Interface> = Vec::new();
    let mut members: Vec<(String, String)> = Vec::new();
    for line in ifconfig.lines() {
        if !line.starts_with([' ', '\t']) {
            interfaces.extend(head(line, labels));
        } else if let Some(interface) = interfaces.last_mut() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["inet" | "inet6", ..] => interface.addresses.extend(address(&words)),
                ["member:", member, ..] if interface.up => {
                    members.push(((*member).to_owned(), interface.name.clone()));
                }
                ["status:", status, ..] => interface.up &= *status == "active",
                _ => {}
            }
        }
    }
    for interface in &mut interfaces {
        interface.bridge =
            members.iter().find(|(member, _)| *member == interface.name).map(|(_, bridge)| bridge.clone());
    }
    interfaces
}

/// Reads the first line of an interface.
fn head(line: &str, labels: &[HardwarePort]) -> Option<Interface> {
    let (name, rest) = line.split_once(": flags=")?;
    let flags = rest.split_once('<')?.1.split_once('>')?.0;
    let label = labels.iter().find(|port| port.interface == name).map(|port| port.label.clone());
    let kind = match label.as_deref() {
        Some("Wi-Fi") => InterfaceKind::Wifi,
        Some("Thunderbolt Bridge") => InterfaceKind::Bridge,
        Some(label) if label.starts_with("Thunderbolt ") => InterfaceKind::Thunderbolt,
        Some(label) if label.contains("Ethernet") || label.contains("LAN") => InterfaceKind::Ethernet,
        _ if name.starts_with("bridge") => InterfaceKind::Bridge,
        _ if name.starts_with("lo") => InterfaceKind::Loopback,
        _ => InterfaceKind::Other,
    };
    let mtu = rest.split_once("mtu ").and_then(|(_, mtu)| mtu.split_whitespace().next()?.parse().ok());
    let up = flags.split(',').any(|flag| flag == "UP");
    Some(Interface { name: name.to_owned(), kind, label, up, mtu, ..Interface::default() })
}

/// Reads an address from the words of a line.
fn address(words: &[&str]) -> Option<Address> {
    let ip: IpAddr = words.get(1)?.split('%').next()?.parse().ok()?;
    let value = |key: &str| words.iter().position(|word| *word == key).and_then(|at| words.get(at + 1));
    let prefix = match ip {
        IpAddr::V4(_) => {
            u32::from_str_radix(value("netmask")?.trim_start_matches("0x"), 16).ok()?.count_ones() as u8
        }
        IpAddr::V6(_) => value("prefixlen")?.parse().ok()?,
    };
    Some(Address { ip, prefix })
}

fn default_route(netstat: &str) -> Vec<Route> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.split_whitespace().collect();
        (cells.first() == Some(&"default") && cells.len() >= 4).then(|| Route {
            network: Ipv4Addr::UNSPECIFIED,
            prefix: 0,
            gateway: cells[1].parse().ok(),
            interface: cells[3].to_owned(),
        })
    };
    netstat.lines().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thunderbolt_5_follows_from_the_processor() {
        for chip in ["Apple M4 Pro", "Apple M4 Max", "Apple M3 Ultra", "Apple M5 Max"] {
            assert!(has_thunderbolt_5(chip), "{chip}");
        }
        for chip in ["Apple M4", "Apple M3 Max", "Apple M2 Ultra", "Apple M5", "Intel(R) Core(TM)", ""] {
            assert!(!has_thunderbolt_5(chip), "{chip}");
        }
    }

    #[test]
    fn sleep_and_switch_are_read_from_their_lines() {
        let pmset = "System-wide power settings:\n displaysleep 10\n sleep   1 (sleep prevented by powerd)\n";
        assert_eq!(sleep_minutes(pmset), Some(1));
        assert_eq!(rdma_switch(Some("RDMA is disabled.\n")), RdmaSwitch::Off);
        assert_eq!(rdma_switch(None), RdmaSwitch::Missing);
        assert_eq!(firewall("Firewall is disabled. (State = 0)"), "");
    }
}
