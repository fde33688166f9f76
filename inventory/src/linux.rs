//! Reader of Linux's files: sysfs, procfs, and the configuration of firewalls.
//!
//! Paths and formats are those of the kernel's documentation: `sysfs-bus-thunderbolt`, `sysfs-class-net` and
//! `sysfs-class-infiniband` in `Documentation/ABI`.

use crate::{
    Address, Device, Generation, Gid, Interface, InterfaceKind, Inventory, Memory, Partner, Port, Recording,
    Route, System,
};
use core::net::{Ipv4Addr, Ipv6Addr};

const BUS: &str = "sys/bus/thunderbolt/devices";
const NET: &str = "sys/class/net";
const RDMA: &str = "sys/class/infiniband";

/// Kernel modules that concern cables and RDMA.
const MODULES: [&str; 7] =
    ["ib_core", "ib_uverbs", "mlx5_ib", "rdma_rxe", "thunderbolt", "thunderbolt_net", "usb4_rdma"];

/// Reads a recording of a Linux machine.
pub(crate) fn read(recording: &Recording) -> Inventory {
    let text = |path: &str| recording.file(path).unwrap_or_default().to_owned();
    let interfaces = interfaces(recording);
    let product = text("sys/class/dmi/id/product_name");
    let modules = MODULES.iter().filter(|name| recording.has(&format!("sys/module/{name}")));
    let mut problems = Vec::new();
    for path in ["proc/meminfo", "proc/self/limits", "proc/net/route"] {
        if !recording.files.contains_key(path) {
            problems.push(format!("/{path} could not be read"));
        }
    }
    Inventory {
        hostname: text("proc/sys/kernel/hostname"),
        system: System::Linux,
        release: text("proc/sys/kernel/osrelease"),
        model: if product.is_empty() { cpu_model(recording) } else { product },
        memory: memory(recording),
        ports: ports(recording),
        devices: devices(recording),
        interfaces,
        routes: routes(recording),
        modules: modules.map(|name| (*name).to_owned()).collect(),
        firewall: Some(firewall(recording).to_owned()),
        problems,
        ..Inventory::default()
    }
}

fn cpu_model(recording: &Recording) -> String {
    let info = recording.file("proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or(String::new(), |(_, name)| name.trim().to_owned())
}

fn memory(recording: &Recording) -> Memory {
    let info = recording.file("proc/meminfo").unwrap_or_default();
    let bytes = |key: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
    };
    let limits = recording.file("proc/self/limits").unwrap_or_default();
    let lockable = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let lockable = lockable.and_then(|rest| match rest.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        bytes => bytes.parse().ok(),
    });
    let lockable = if may_lock_everything(recording) { Some(u64::MAX) } else { lockable };
    Memory { total: bytes("MemTotal"), available: bytes("MemAvailable"), lockable }
}

/// Whether the process has the capability CAP_IPC_LOCK, for which no limit holds.
fn may_lock_everything(recording: &Recording) -> bool {
    const CAP_IPC_LOCK: u64 = 1 << 14;
    let status = recording.file("proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|text| u64::from_str_radix(text.trim(), 16).ok())
        .is_some_and(|caps| caps & CAP_IPC_LOCK != 0)
}

/// Returns domain and route of a device on the Thunderbolt bus, whose name is e.g. `0-301`.
fn domain_and_route(name: &str) -> Option<(u32, u64)> {
    let (domain, route) = name.split_once('-')?;
    Some((domain.parse().ok()?, u64::from_str_radix(route, 16).ok()?))
}

/// Returns the adapter of the host router through which a route begins.
fn first_adapter(route: u64) -> u64 {
    route & 0xff
}

/// Returns the route of the router one step nearer to the host; 0 for the host router.
fn nearer(route: u64) -> u64 {
    let bytes = (64 - route.leading_zeros()).div_ceil(8);
    route & !(0xff << (8 * (bytes.max(1) - 1)))
}

fn ports(recording: &Recording) -> Vec<Port> {
    let mut ports = Vec::new();
    let names = recording.entries(BUS);
    let attribute = |name: &str, key: &str| recording.file(&format!("{BUS}/{name}/{key}"));
    for router in names.iter().filter(|name| matches!(domain_and_route(name), Some((_, 0)))) {
        let Some((domain, _)) = domain_and_route(router) else { continue };
        let inside = recording.entries(&format!("{BUS}/{router}"));
        let mut adapters: Vec<u64> =
            inside.iter().filter_map(|entry| entry.strip_prefix("usb4_port")?.parse().ok()).collect();
        // Routers older than USB4 list no ports: those in use are known by the routes that begin there.
        let routes = names.iter().filter_map(|name| domain_and_route(name));
        let routes: Vec<u64> = routes.filter(|(of, _)| *of == domain).map(|(_, route)| route).collect();
        adapters.extend(routes.iter().filter(|route| **route != 0).map(|route| first_adapter(*route)));
        adapters.sort_unstable();
        adapters.dedup();
        let generation = match attribute(router, "generation").and_then(|text| text.parse::<u32>().ok()) {
            Some(1..=3) => Generation::Thunderbolt3,
            Some(4..) => Generation::Usb4,
            _ => Generation::Unknown,
        };
        let uid = attribute(router, "unique_id").unwrap_or_default();
        ports.extend(adapters.into_iter().map(|adapter| {
            let mut port = Port {
                name: format!("{router}/{adapter}"),
                uid: uid.to_owned(),
                generation,
                ..Port::default()
            };
            let here: Vec<u64> =
                routes.iter().copied().filter(|r| *r != 0 && first_adapter(*r) == adapter).collect();
            plug_in(recording, domain, &here, &mut port);
            port
        }));
    }
    ports
}

/// Completes a port by the devices whose routes begin there.
fn plug_in(recording: &Recording, domain: u32, routes: &[u64], port: &mut Port) {
    let name_of = |route: u64| format!("{domain}-{route:x}");
    let attribute = |route: u64, key: &str| recording.file(&format!("{BUS}/{}/{key}", name_of(route)));
    // Only routers can be authorized; another machine has an identifier and no such attribute.
    let is_machine =
        |route: u64| attribute(route, "unique_id").is_some() && attribute(route, "authorized").is_none();
    let title = |route: u64| {
        let part = |key: &str| attribute(route, key).unwrap_or_default();
        format!("{} {}", part("vendor_name"), part("device_name")).trim().to_owned()
    };
    let machine = routes.iter().copied().find(|route| is_machine(*route));
    let Some(route) = machine.or(routes.iter().copied().min()) else { return };
    let lanes = attribute(route, "rx_lanes").and_then(|text| text.parse::<f64>().ok()).unwrap_or(1.0);
    let speed = attribute(route, "rx_speed").and_then(leading_number);
    port.gigabits = speed.map(|speed| speed * lanes);
    if port.gigabits.is_some_and(|rate| rate > 40.0) {
        port.generation = Generation::Thunderbolt5;
    }
    let hub = Some(nearer(route)).filter(|hub| machine.is_some() && *hub != 0);
    port.partner = Some(Partner {
        name: title(route),
        uid: machine.and_then(|route| attribute(route, "unique_id")).map(str::to_owned),
        hub: hub.map(title),
    });
    let service = format!("{}.", name_of(route));
    let of_service = |name: &&str| {
        let device = recording.link_name(&format!("{NET}/{name}/device"));
        device.is_some_and(|device| device.starts_with(&service))
    };
    port.interface = recording.entries(NET).into_iter().find(|name| of_service(name)).map(str::to_owned);
    let of_port = |device: &Device| device.interface.is_some() && device.interface == port.interface;
    port.device = devices(recording).into_iter().find(of_port).map(|device| device.name);
}

/// Returns the number with which a text such as `20.0 Gb/s` begins.
pub(crate) fn leading_number(text: &str) -> Option<f64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text[..end].parse().ok()
}

fn interfaces(recording: &Recording) -> Vec<Interface> {
    let listed = recording.output("addresses").unwrap_or_default();
    let address = |line: &str| {
        let (name, address) = line.split_once(' ')?;
        let (ip, prefix) = address.trim().split_once('/')?;
        Some((name.to_owned(), Address { ip: ip.parse().ok()?, prefix: prefix.parse().ok()? }))
    };
    let addresses: Vec<(String, Address)> = listed.lines().filter_map(address).collect();
    let own = |name: &str| {
        addresses.iter().filter(|(of, _)| of == name).map(|(_, address)| *address).collect::<Vec<_>>()
    };
    let one = |name: &str| {
        let path = format!("{NET}/{name}");
        let text = |key: &str| recording.file(&format!("{path}/{key}"));
        Interface {
            name: name.to_owned(),
            kind: kind(recording, &path),
            label: None,
            up: text("operstate") == Some("up") || (text("operstate") == Some("unknown") && name == "lo"),
            mtu: text("mtu").and_then(|text| text.parse().ok()),
            addresses: own(name),
            bridge: recording.link_name(&format!("{path}/brport/bridge")).map(str::to_owned),
        }
    };
    recording
        .entries(NET)
        .into_iter()
        .filter(|name| recording.has(&format!("{NET}/{name}/mtu")))
        .map(one)
        .collect()
}

fn kind(recording: &Recording, path: &str) -> InterfaceKind {
    let has = |key: &str| recording.has(&format!("{path}/{key}"));
    let device = recording.link_name(&format!("{path}/device")).unwrap_or_default();
    let of_service = device.rsplit_once('.').is_some_and(|(router, _)| domain_and_route(router).is_some());
    match recording.file(&format!("{path}/type")) {
        Some("772") => InterfaceKind::Loopback,
        _ if of_service => InterfaceKind::Thunderbolt,
        _ if has("wireless") || has("phy80211") => InterfaceKind::Wifi,
        _ if has("bridge") || has("bridge/bridge_id") => InterfaceKind::Bridge,
        Some("1") if has("device") => InterfaceKind::Ethernet,
        _ => InterfaceKind::Other,
    }
}

/// Reads the kernel's table of IPv4 routes, whose addresses are hexadecimal in the machine's byte order.
fn routes(recording: &Recording) -> Vec<Route> {
    let table = recording.file("proc/net/route").unwrap_or_default();
    let ip = |text: &str| Some(Ipv4Addr::from(u32::from_str_radix(text, 16).ok()?.swap_bytes()));
    let row = |line: &str| {
        let cells: Vec<&str> = line.split_whitespace().collect();
        let gateway = ip(cells.get(2)?)?;
        Some(Route {
            network: ip(cells.get(1)?)?,
            prefix: u32::from_str_radix(cells.get(7)?, 16).ok()?.count_ones() as u8,
            gateway: (!gateway.is_unspecified()).then_some(gateway),
            interface: (*cells.first()?).to_owned(),
        })
    };
    table.lines().skip(1).filter_map(row).collect()
}

fn devices(recording: &Recording) -> Vec<Device> {
    let one = |name: &str| {
        let path = format!("{RDMA}/{name}/ports/1");
        let text = |key: &str| recording.file(&format!("{path}/{key}"));
        let gids = gids(recording, &path);
        let interface = recording.entries(&format!("{path}/gid_attrs/ndevs")).into_iter().find_map(|index| {
            recording.file(&format!("{path}/gid_attrs/ndevs/{index}")).filter(|name| !name.is_empty())
        });
        Device {
            name: name.to_owned(),
            interface: interface.map(str::to_owned),
            link: text("link_layer").unwrap_or_default().to_owned(),
            state: text("state").and_then(|text| text.split_once(": ")).map_or("unknown", |s| s.1).to_owned(),
            gigabits: text("rate").and_then(leading_number),
            gids,
            ..Device::default()
        }
    };
    recording.entries(RDMA).into_iter().map(one).collect()
}

fn gids(recording: &Recording, path: &str) -> Vec<Gid> {
    let one = |index: &str| {
        let gid: Ipv6Addr = recording.file(&format!("{path}/gids/{index}"))?.parse().ok()?;
        let kind = recording.file(&format!("{path}/gid_attrs/types/{index}")).unwrap_or_default();
        let used = !gid.is_unspecified() && gid.segments() != [0xfe80, 0, 0, 0, 0, 0, 0, 0];
        used.then(|| Some(Gid { index: index.parse().ok()?, gid: gid.to_string(), kind: kind.to_owned() }))?
    };
    let mut gids: Vec<Gid> = recording.entries(&format!("{path}/gids")).into_iter().filter_map(one).collect();
    gids.sort_by_key(|gid| gid.index);
    gids
}

/// Returns the name of the firewall that is on; empty without one.
fn firewall(recording: &Recording) -> &'static str {
    let ufw = recording.file("etc/ufw/ufw.conf").unwrap_or_default();
    if ufw.lines().any(|line| line.trim() == "ENABLED=yes") {
        "ufw"
    } else if recording.has("run/firewalld.pid") {
        "firewalld"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_on_the_bus_lead_from_the_host_outwards() {
        assert_eq!(domain_and_route("1-301"), Some((1, 0x301)));
        assert_eq!(domain_and_route("domain0"), None);
        assert_eq!((first_adapter(0x301), nearer(0x301), nearer(0x1)), (1, 1, 0));
        assert_eq!(domain_and_route("0-1.0"), None, "a service");
    }

    #[test]
    fn numbers_begin_texts() {
        assert_eq!(leading_number("20.0 Gb/s"), Some(20.0));
        assert_eq!(leading_number("100 Gb/sec (4X EDR)"), Some(100.0));
        assert_eq!(leading_number("Up to 40"), None);
    }
}
