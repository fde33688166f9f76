//! Plans for recorded machines that are wired in several shapes.

use super::{
    files,
    mlx::{self, Backend, Settings},
    plan::{Host, Plan},
    report,
};
use inventory::{Inventory, Partner, Recording};
use topology::{HostIndex, Hostfile, Wiring};

fn machine(name: &str) -> Inventory {
    let path = format!("{}/tests/data/machines/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("a recording of the repository");
    Inventory::read(&Recording::from_text(&text).expect("valid"))
}

/// Returns machines of a kind with these cables, each from the next free port to the next free port.
fn wired(name: &str, hosts: usize, cables: &[(usize, usize)]) -> Vec<Inventory> {
    let mut all = vec![machine(name); hosts];
    let mut used = vec![0; hosts];
    for (at, inventory) in all.iter_mut().enumerate() {
        inventory.hostname = format!("h{at}");
        for port in &mut inventory.ports {
            port.uid = format!("{} of h{at}", port.name);
            (port.partner, port.gigabits) = (None, None);
            port.device = port.interface.as_ref().map(|interface| format!("rdma_{interface}"));
        }
        // Each host begins without addresses at its cables.
        let cable = |own: &&mut inventory::Interface| own.kind == inventory::InterfaceKind::Thunderbolt;
        inventory.interfaces.iter_mut().filter(cable).for_each(|own| own.addresses.clear());
    }
    for (a, b) in cables {
        let ports = [(*a, used[*a]), (*b, used[*b])];
        for (own, other) in [(0, 1), (1, 0)] {
            let uid = all[ports[other].0].ports[ports[other].1].uid.clone();
            let port = &mut all[ports[own].0].ports[ports[own].1];
            port.partner = Some(Partner { name: "h".into(), uid: Some(uid), hub: None });
            port.gigabits = Some(80.0);
        }
        used[*a] += 1;
        used[*b] += 1;
    }
    all
}

fn plan(inventories: &[Inventory]) -> Plan<'_> {
    let hosts = inventories.iter().map(|inventory| Host { name: &inventory.hostname, inventory });
    Plan::new(hosts.collect()).expect("networks are free")
}

fn native(plan: &Plan<'_>, with_rdma: bool) -> String {
    files::native(plan, with_rdma, &Settings::default())
}

fn for_mlx(plan: &Plan<'_>, with_rdma: bool, backend: Option<Backend>) -> Hostfile {
    let text = mlx::hostfile(plan, with_rdma, &Settings { backend, env: &[] });
    Hostfile::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {text}"))
}

const MESH: [(usize, usize); 6] = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];

#[test]
fn a_mesh_of_four_macs_gets_a_network_per_cable_and_hostfiles_that_are_read_back() {
    let macs = wired("mac-mini-m4-pro", 4, &MESH);
    let plan = plan(&macs);
    assert_eq!((plan.shape.name(), plan.wires.len()), ("mesh", 6));
    assert_eq!(plan.remarks, Vec::<String>::new());
    assert_eq!(
        plan.commands(3),
        [
            "sudo ifconfig en2 inet 10.42.0.10 netmask 255.255.255.252 up",
            "sudo ifconfig en3 inet 10.42.0.18 netmask 255.255.255.252 up",
            "sudo ifconfig en4 inet 10.42.0.22 netmask 255.255.255.252 up",
        ]
    );
    let own = Hostfile::parse(native(&plan, true).as_bytes()).expect("a hostfile");
    for file in [own, for_mlx(&plan, true, None)] {
        let wiring = Wiring::from_matrix(file.devices.as_ref().expect("a matrix"));
        assert_eq!((file.hosts.len(), wiring.rails().len()), (4, 6), "{file:?}");
        assert_eq!(wiring.width(HostIndex(1), HostIndex(3)), 1);
        assert_eq!(file.hosts[0].addresses[0], "192.168.7.11", "all hosts reach it there");
    }
    assert!(!native(&plan, false).contains("rdma"));
}

#[test]
fn hosts_of_a_ring_are_written_for_mlx_in_the_order_of_the_cables() {
    let macs = wired("mac-mini-m4-pro", 4, &[(0, 2), (2, 1), (1, 3), (3, 0)]);
    let plan = plan(&macs);
    assert_eq!(plan.shape.name(), "ring");
    assert!(
        plan.remarks[0].starts_with("shape of the cabling: ring; with 3 ports each a mesh is possible"),
        "{:?}",
        plan.remarks
    );
    let hosts = for_mlx(&plan, false, None).hosts;
    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    assert_eq!(names, ["h0", "h2", "h1", "h3"]);
    // The cable between h0 and h2 is the first, so h2 is reached from h0 at its second address.
    assert_eq!(hosts[1].addresses, ["10.42.0.2"]);
}

#[test]
fn the_backend_for_mlx_is_the_first_that_the_cables_allow() {
    let ring = [(0, 2), (2, 1), (1, 3), (3, 0)];
    let shapes = [
        (&MESH[..], true, Some("jaccl")),
        (&MESH[..], false, Some("ring")),
        (&ring[..], true, Some("jaccl-ring")),
        (&ring[..], false, Some("ring")),
        (&ring[..3], true, None),
    ];
    for (cables, with_rdma, backend) in shapes {
        let macs = wired("mac-mini-m4-pro", 4, cables);
        let file = for_mlx(&plan(&macs), with_rdma, None);
        assert_eq!(file.backend.as_deref(), backend, "{cables:?}");
    }
}

#[test]
fn the_backend_jaccl_ring_gets_hosts_in_the_order_of_the_ring_and_equally_many_devices_per_neighbor() {
    // The cable from h0 to h2 is doubled, and one leads across the ring.
    let macs = wired("mac-studio-m3-ultra", 4, &[(0, 2), (0, 2), (2, 1), (1, 3), (3, 0), (0, 1)]);
    let file = for_mlx(&plan(&macs), true, Some(Backend::JacclRing));
    let names: Vec<&str> = file.hosts.iter().map(|host| host.name.as_str()).collect();
    assert_eq!(names, ["h0", "h2", "h1", "h3"]);
    let wiring = Wiring::from_matrix(file.devices.as_ref().expect("a matrix"));
    let widths: Vec<u32> = (1..4).map(|to| wiring.width(HostIndex(0), HostIndex(to))).collect();
    assert_eq!((widths, wiring.rails().len()), (vec![1, 0, 1], 4), "{file:?}");
    assert!(file.hosts.iter().all(|host| host.addresses == ["192.168.7.11"]), "{file:?}");
}

#[test]
fn the_backend_ring_gets_equally_many_addresses_of_each_host() {
    let doubled_once = wired("mac-studio-m3-ultra", 3, &[(0, 1), (0, 1), (1, 2), (2, 0)]);
    let file = for_mlx(&plan(&doubled_once), true, Some(Backend::Ring));
    assert!(file.hosts.iter().all(|host| host.addresses.len() == 1), "MLX refuses other files: {file:?}");
    let doubled = wired("mac-studio-m3-ultra", 3, &[(0, 1), (0, 1), (1, 2), (1, 2), (2, 0), (2, 0)]);
    let file = for_mlx(&plan(&doubled), true, Some(Backend::Ring));
    assert!(file.hosts.iter().all(|host| host.addresses.len() == 2), "{file:?}");
    assert_eq!((file.backend.as_deref(), file.devices), (Some("ring"), None));
}

#[test]
fn doubled_cables_are_two_rails_in_the_same_order_at_both_ends() {
    let macs = wired("mac-studio-m3-ultra", 2, &[(0, 1), (0, 1)]);
    let plan = plan(&macs);
    assert_eq!(plan.remarks, ["2 cables connect h0 and h1: they share the load"]);
    let file = Hostfile::parse(native(&plan, true).as_bytes()).expect("a hostfile");
    assert_eq!(Wiring::from_matrix(file.devices.as_ref().expect("a matrix")).rails().len(), 2);
    assert_eq!(file.hosts[0].addresses, ["10.42.0.1", "10.42.0.5", "192.168.7.11"], "the cables come first");
}

#[test]
fn addresses_that_are_in_place_stay_and_need_no_command() {
    let mut macs = wired("mac-mini-m4-pro", 2, &[(0, 1)]);
    for (at, mac) in macs.iter_mut().enumerate() {
        let en2 = mac.interfaces.iter_mut().find(|own| own.name == "en2").expect("a port");
        let ip = [10, 9, 8, 1 + at as u8].into();
        en2.addresses = vec![inventory::Address { ip, prefix: 30 }];
    }
    let plan = plan(&macs);
    assert!(!plan.has_changes(), "{:?}", plan.changes);
    assert!(native(&plan, true).contains("\"10.9.8.2\""));
}

#[test]
fn bridges_missing_modules_and_small_packets_are_mended_on_linux() {
    let mut pcs = wired("linux-thunderbolt-card", 2, &[(0, 1)]);
    pcs[1].ports[0].interface = None;
    let plan = plan(&pcs);
    assert_eq!(
        plan.commands(0),
        [
            "sudo ip link set thunderbolt0 nomaster",
            "sudo ip addr replace 10.42.0.1/30 dev thunderbolt0",
            "sudo ip link set thunderbolt0 up",
            "sudo ip link set thunderbolt0 mtu 9000",
        ]
    );
    assert_eq!(plan.commands(1), ["sudo modprobe thunderbolt-net"]);
}

#[test]
fn a_bridge_of_a_mac_loses_the_ports_with_cables() {
    let macs = wired("mac-mini-m4-pro-bridge", 3, &[(0, 1), (1, 2)]);
    let plan = plan(&macs);
    assert_eq!(plan.shape.name(), "chain");
    let removed = plan.commands(1).iter().filter(|command| command.contains("bridge0 deletem")).count();
    assert_eq!(removed, 2, "{:?}", plan.changes);
}

#[test]
fn thunderbolt_4_and_hubs_are_told() {
    let mut macs = wired("mac-mini-m4-thunderbolt4", 2, &[(0, 1)]);
    macs[0].ports[0].partner.as_mut().expect("a cable").hub = Some("Dock".into());
    let remarks = plan(&macs).remarks;
    assert!(remarks[0].contains("goes through the hub `Dock`"), "{remarks:?}");
    assert!(remarks[1].ends_with("of h1 is a Thunderbolt 4 port: TCP only"), "{remarks:?}");
}

#[test]
fn pictures_have_every_host_and_cable_with_its_ports() {
    let ring = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)];
    let shapes: [(usize, &[(usize, usize)]); 4] =
        [(4, &MESH), (5, &ring), (3, &[(0, 1), (1, 2)]), (2, &[(0, 1), (0, 1)])];
    for (hosts, cables) in shapes {
        let macs = wired("mac-studio-m3-ultra", hosts, cables);
        let svg = report::svg(&plan(&macs));
        let document = roxmltree::Document::parse(&svg).expect("well-formed");
        let texts: Vec<&str> = document
            .descendants()
            .filter(|node| node.tag_name().name() == "text")
            .filter_map(|node| node.text())
            .collect();
        let count = |is: &dyn Fn(&str) -> bool| texts.iter().filter(|text| is(text)).count();
        assert_eq!(count(&|text| text == "80 Gb/s"), cables.len(), "{hosts} hosts: {texts:?}");
        assert_eq!(count(&|text| text.len() == 3 && text.starts_with("en")), 2 * cables.len(), "{texts:?}");
        assert!((0..hosts).all(|host| texts.contains(&format!("h{host}").as_str())), "{texts:?}");
    }
}
