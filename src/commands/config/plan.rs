//! The plan: cables, their addresses, and the changes that each host needs. A function of inventories.

use super::{
    change::Change,
    make::shown,
    networks::{Networks, are_ends},
};
use core::net::Ipv4Addr;
use inventory::{CableGraph, End, Generation, Interface, Inventory, Port, RdmaSwitch, Shape, System};
use topology::cablings;

/// MTU of cables between Linux hosts.
const MTU: u32 = 9000;

/// A host of the plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Host<'a> {
    /// The name that ssh takes.
    pub(super) name: &'a str,
    pub(super) inventory: &'a Inventory,
}

/// One end of a cable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plug {
    /// The host's position.
    pub(super) host: usize,
    pub(super) port: String,
    pub(super) interface: Option<String>,
    pub(super) device: Option<String>,
    pub(super) address: Option<Ipv4Addr>,
}

/// A cable between two hosts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wire {
    pub(super) ends: [Plug; 2],
    pub(super) gigabits: Option<f64>,
}

/// Cables, changes and remarks.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub(super) hosts: Vec<Host<'a>>,
    pub(super) shape: Shape,
    pub(super) wires: Vec<Wire>,
    /// Changes of each host, in order.
    pub(super) changes: Vec<Vec<Change>>,
    /// Remarks, one line each: faults of the cabling, and actions of a person.
    pub(super) remarks: Vec<String>,
}

impl<'a> Plan<'a> {
    /// Plans for hosts whose cables are used.
    pub(super) fn new(hosts: Vec<Host<'a>>) -> Result<Plan<'a>, String> {
        let inventories: Vec<&Inventory> = hosts.iter().map(|host| host.inventory).collect();
        let graph = CableGraph::of(&inventories);
        let mut networks = Networks::new(inventories.iter().copied());
        let mut plan = Plan {
            changes: vec![Vec::new(); hosts.len()],
            remarks: remarks(&hosts, &graph),
            shape: graph.shape(),
            wires: Vec::new(),
            hosts,
        };
        for cable in &graph.cables {
            plan.add_cable([cable.low, cable.high], cable.gigabits, &mut networks)?;
        }
        Ok(plan)
    }

    /// Plans for hosts that use the LAN only.
    pub(super) fn lan(hosts: Vec<Host<'a>>) -> Plan<'a> {
        let changes = vec![Vec::new(); hosts.len()];
        Plan { hosts, shape: Shape::Apart, wires: Vec::new(), changes, remarks: Vec::new() }
    }

    /// Returns the commands of a host, in order.
    pub(super) fn commands(&self, host: usize) -> Vec<String> {
        let system = self.hosts[host].inventory.system;
        self.changes[host].iter().map(|change| shown(&change.command(system))).collect()
    }

    /// Whether a host needs a change.
    pub(super) fn has_changes(&self) -> bool {
        self.changes.iter().any(|changes| !changes.is_empty())
    }

    fn port(&self, end: End) -> &'a Port {
        &self.hosts[end.host].inventory.ports[end.port]
    }

    fn interface(&self, end: End) -> Option<&'a Interface> {
        self.hosts[end.host].inventory.interface(self.port(end).interface.as_ref()?)
    }

    /// Adds a cable, and the changes for both of its ends.
    fn add_cable(
        &mut self,
        ends: [End; 2],
        gigabits: Option<f64>,
        networks: &mut Networks,
    ) -> Result<(), String> {
        let interfaces = ends.map(|end| self.interface(end));
        let own = |at: usize| interfaces[at].iter().flat_map(|own| own.ipv4()).collect::<Vec<_>>();
        let (low, high) = (own(0), own(1));
        let existing =
            low.iter().flat_map(|a| high.iter().map(move |b| (*a, *b))).find(|(a, b)| are_ends(*a, *b));
        let addresses = match existing {
            Some((a, b)) => [a.0, b.0],
            None => networks
                .take()
                .ok_or("all private networks are in use on these hosts; free one of 10.42.0.0/16")?,
        };
        let large = self.takes_large_packets(ends);
        for (at, end) in ends.into_iter().enumerate() {
            let inventory = self.hosts[end.host].inventory;
            let mut changes = prepare(inventory, self.port(end), interfaces[at]);
            if let Some(interface) = self.interface_name(end) {
                if existing.is_none() {
                    changes.extend(assign(inventory.system, &interface, addresses[at]));
                }
                if large && interfaces[at].is_none_or(|own| own.mtu.is_none_or(|mtu| mtu < MTU)) {
                    changes.push(Change::Mtu { interface, bytes: MTU });
                }
            }
            let all = &mut self.changes[end.host];
            changes.into_iter().for_each(|change| {
                if !all.contains(&change) {
                    all.push(change);
                }
            });
        }
        let plug = |at: usize| Plug {
            host: ends[at].host,
            port: self.port(ends[at]).name.clone(),
            interface: self.interface_name(ends[at]),
            device: self.port(ends[at]).device.clone(),
            address: self.interface_name(ends[at]).map(|_| addresses[at]),
        };
        let ends = [plug(0), plug(1)];
        self.wires.push(Wire { ends, gigabits });
        Ok(())
    }

    /// Returns the name of a port's interface.
    fn interface_name(&self, end: End) -> Option<String> {
        self.port(end).interface.clone()
    }

    /// Whether both ends of a cable are known to take packets of [`MTU`] bytes: those of Linux's driver do.
    fn takes_large_packets(&self, ends: [End; 2]) -> bool {
        ends.iter().all(|end| self.hosts[end.host].inventory.system == System::Linux)
    }

    /// Returns the address of a host on the LAN: that of the default route's interface.
    pub(super) fn lan_address(&self, host: usize) -> Option<Ipv4Addr> {
        let inventory = self.hosts[host].inventory;
        let route = inventory.routes.iter().find(|route| route.prefix == 0)?;
        inventory.interface(&route.interface)?.ipv4().next().map(|(ip, _)| ip)
    }

    /// Returns the ends of the cables from one host to another, in the order of the cables.
    pub(super) fn plugs(&self, from: usize, to: usize) -> impl Iterator<Item = (&Plug, &Plug)> {
        self.wires.iter().filter_map(move |wire| match &wire.ends {
            [a, b] if (a.host, b.host) == (from, to) => Some((a, b)),
            [a, b] if (b.host, a.host) == (from, to) => Some((b, a)),
            _ => None,
        })
    }

    /// Returns the RDMA devices of a host that lead to another, for cables with a device at both ends.
    pub(super) fn devices(&self, from: usize, to: usize) -> Vec<&str> {
        let both =
            self.plugs(from, to).filter_map(|(own, other)| own.device.as_deref().zip(other.device.as_ref()));
        both.map(|(own, _)| own).collect()
    }

    /// Whether RDMA connects each pair of hosts with a cable.
    pub(super) fn has_rdma(&self) -> bool {
        !self.wires.is_empty()
            && self.wires.iter().all(|wire| wire.ends.iter().all(|end| end.device.is_some()))
    }
}

/// Returns the changes that a port needs before it gets an address.
fn prepare(inventory: &Inventory, port: &Port, interface: Option<&Interface>) -> Vec<Change> {
    let mut changes = Vec::new();
    if inventory.system == System::Linux && port.interface.is_none() {
        changes.push(Change::Load { module: "thunderbolt-net".to_owned() });
    }
    if let Some((own, bridge)) = interface.and_then(|own| Some((own, own.bridge.clone()?))) {
        changes.push(Change::Leave { interface: own.name.clone(), bridge });
    }
    changes
}

/// Returns the changes that give an interface its address.
fn assign(system: System, interface: &str, address: Ipv4Addr) -> Vec<Change> {
    let interface = interface.to_owned();
    let mut changes = vec![Change::Address { interface: interface.clone(), address }];
    // macOS brings an interface up with its address.
    if system != System::MacOs {
        changes.push(Change::Up { interface });
    }
    changes
}

/// Returns the remarks on hosts and cables.
fn remarks(hosts: &[Host<'_>], graph: &CableGraph) -> Vec<String> {
    let mut remarks = Vec::new();
    let name =
        |end: &End| format!("{} of {}", hosts[end.host].inventory.ports[end.port].name, hosts[end.host].name);
    for (a, b, cables) in graph.doubled() {
        remarks.push(format!(
            "{cables} cables connect {} and {}: they share the load",
            hosts[a].name, hosts[b].name
        ));
    }
    for cable in graph.cables.iter().filter(|cable| !cable.certain) {
        let (low, high) = (name(&cable.low), name(&cable.high));
        remarks.push(format!(
            "{low} and {high} may not be the ends of one cable: if `tbccl ping` fails, swap two cables"
        ));
    }
    for end in &graph.foreign {
        remarks.push(format!("the cable at {} leads to a machine that is none of the hosts", name(end)));
    }
    for end in &graph.one_sided {
        remarks.push(format!("{} sees a cable that the other end does not see: plug it in again", name(end)));
    }
    for host in hosts {
        remarks.extend(host.inventory.ports.iter().filter_map(|port| of_port(host, port)));
        let is_five = |port: &Port| port.generation == Generation::Thunderbolt5;
        if host.inventory.rdma == RdmaSwitch::Off && host.inventory.ports.iter().any(is_five) {
            remarks
                .push(format!("{}: only a person can enable RDMA: `rdma_ctl enable` in Recovery", host.name));
        }
    }
    remarks.extend(better(hosts, graph));
    remarks
}

fn of_port(host: &Host<'_>, port: &Port) -> Option<String> {
    let partner = port.partner.as_ref().filter(|partner| partner.uid.is_some())?;
    let at = format!("{} of {}", port.name, host.name);
    if let Some(hub) = &partner.hub {
        return Some(format!(
            "the cable at {at} goes through the hub `{hub}`: plug it straight into the machine"
        ));
    }
    let is_old = host.inventory.system == System::MacOs && port.generation < Generation::Thunderbolt5;
    is_old.then(|| format!("{at} is a {} port: TCP only", port.generation.name()))
}

/// Returns the advice to wire a mesh, where the ports suffice and the hosts are no mesh.
fn better(hosts: &[Host<'_>], graph: &CableGraph) -> Option<String> {
    let count = u32::try_from(hosts.len()).ok()?;
    let ports = hosts.iter().map(|host| host.inventory.ports.len()).min()?;
    let ports = u32::try_from(ports).ok().filter(|ports| *ports > 0)?;
    let (possible, _) = cablings(count, ports);
    let best = possible.first()?;
    (graph.shape() != Shape::Mesh).then(|| {
        format!(
            "shape of the cabling: {}; with {ports} ports each a {} is possible, see `tbccl plan wire \
             --hosts {count} --ports {ports}`",
            graph.shape().name(),
            best.name
        )
    })
}
