//! Inventories of recorded machines, which stand in `tests/data/machines` of the repository.

use inventory::{CableGraph, Generation, InterfaceKind, Inventory, RdmaSwitch, Recording, System};
use std::{fs, path::Path};

fn text(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/machines");
    fs::read_to_string(folder.join(format!("{name}.txt"))).expect("a recording of the repository")
}

fn machine(name: &str) -> Inventory {
    let recording = Recording::from_text(&text(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let inventory = Inventory::read(&recording);
    assert_eq!(inventory.problems, Vec::<String>::new(), "{name}");
    inventory
}

/// A port in one line: name, interface, device, rate, and partner.
fn ports(inventory: &Inventory) -> Vec<String> {
    let or_dash = |text: Option<&str>| text.unwrap_or("-").to_owned();
    let line = |port: &inventory::Port| {
        let partner = port.partner.as_ref();
        format!(
            "{}, {}, {}, {}, {}, {}",
            port.name,
            or_dash(port.interface.as_deref()),
            or_dash(port.device.as_deref()),
            port.gigabits.map_or("-".to_owned(), |rate| rate.to_string()),
            or_dash(partner.map(|partner| partner.name.as_str())),
            or_dash(partner.and_then(|partner| partner.hub.as_deref())),
        )
    };
    inventory.ports.iter().map(line).collect()
}

#[test]
fn ports_of_all_machines_lead_where_the_recordings_say() {
    let cases: [(&str, Generation, &[&str]); 8] = [
        (
            "mac-studio-m3-ultra",
            Generation::Thunderbolt5,
            &[
                "Thunderbolt 1, en2, rdma_en2, 80, Mac Studio, -",
                "Thunderbolt 2, en3, rdma_en3, -, -, -",
                "Thunderbolt 3, en4, rdma_en4, 80, Mac Studio, -",
                "Thunderbolt 4, en5, rdma_en5, -, -, -",
                "Thunderbolt 5, en6, rdma_en6, -, -, -",
                "Thunderbolt 6, en7, rdma_en7, -, -, -",
            ],
        ),
        (
            "mac-mini-m4-pro",
            Generation::Thunderbolt5,
            &[
                "Thunderbolt 1, en2, rdma_en2, 80, Mac mini, -",
                "Thunderbolt 2, en3, rdma_en3, -, -, -",
                "Thunderbolt 3, en4, rdma_en4, -, -, -",
            ],
        ),
        (
            "mac-mini-m4-thunderbolt4",
            Generation::Thunderbolt4,
            &[
                "Thunderbolt 1, en2, -, -, -, -",
                "Thunderbolt 2, en3, -, 40, Mac mini, -",
                "Thunderbolt 3, en4, -, -, -, -",
            ],
        ),
        (
            "macbook-pro-m4-max-dock",
            Generation::Thunderbolt5,
            &[
                "Thunderbolt 1, en2, rdma_en2, 40, Mac mini, Example Dock",
                "Thunderbolt 2, en3, -, -, -, -",
                "Thunderbolt 3, en4, -, -, -, -",
            ],
        ),
        (
            "linux-strix-halo-usb4",
            Generation::Usb4,
            &["0-0/1, thunderbolt0, -, 40, Linux pc1, -", "1-0/1, -, -, -, -, -"],
        ),
        (
            "linux-thunderbolt-card",
            Generation::Usb4,
            &["0-0/1, thunderbolt0, -, 40, Linux pc1, -", "0-0/3, thunderbolt1, -, 40, Linux pc1, -"],
        ),
        ("linux-infiniband", Generation::Unknown, &[]),
        ("linux-roce", Generation::Unknown, &[]),
    ];
    for (name, generation, expected) in cases {
        let inventory = machine(name);
        assert_eq!(ports(&inventory), expected, "{name}");
        assert!(inventory.ports.iter().all(|port| port.generation == generation), "{name}");
        assert_eq!(Inventory::from_json(&inventory.to_json()).expect("its own JSON"), inventory, "{name}");
    }
}

#[test]
fn a_mac_tells_system_memory_and_switches() {
    let studio = machine("mac-studio-m3-ultra");
    assert_eq!((studio.system, studio.release.as_str()), (System::MacOs, "26.3"));
    assert_eq!((studio.hostname.as_str(), studio.model.as_str()), ("studio0", "Mac15,14, Apple M3 Ultra"));
    assert_eq!(studio.memory.total, Some(512 << 30));
    assert_eq!(studio.memory.available, Some((512 * 16384 + 192_900) * 16384));
    assert_eq!(
        (studio.rdma, studio.sleep_minutes, studio.firewall.as_deref()),
        (RdmaSwitch::On, Some(0), Some(""))
    );
    let en2 = studio.interface("en2").expect("a port");
    assert_eq!((en2.kind, en2.up, en2.bridge.as_deref()), (InterfaceKind::Thunderbolt, true, None));
    assert_eq!(en2.ipv4().map(|(ip, prefix)| format!("{ip}/{prefix}")).collect::<Vec<_>>(), ["10.42.0.1/30"]);
    assert_eq!(studio.interface("en1").map(|wifi| (wifi.kind, wifi.up)), Some((InterfaceKind::Wifi, false)));
    assert_eq!(studio.routes[0].interface, "en0");
    assert_eq!(studio.device("rdma_en4").map(|device| device.queue_pairs), Some(Some(10)));
}

#[test]
fn a_bridge_has_its_members_while_it_is_up() {
    let bridged = machine("mac-mini-m4-pro-bridge");
    for name in ["en2", "en3", "en4"] {
        assert_eq!(bridged.interface(name).and_then(|own| own.bridge.as_deref()), Some("bridge0"), "{name}");
    }
    let card = machine("linux-thunderbolt-card");
    assert_eq!(card.interface("thunderbolt1").and_then(|own| own.bridge.as_deref()), Some("br0"));
    assert_eq!(card.interface("br0").map(|bridge| bridge.kind), Some(InterfaceKind::Bridge));
}

#[test]
fn linux_tells_memory_limits_routes_and_modules() {
    let halo = machine("linux-strix-halo-usb4");
    assert_eq!((halo.system, halo.release.as_str()), (System::Linux, "6.17.4"));
    assert_eq!(halo.memory.total, Some(128 << 30));
    assert_eq!((halo.memory.available, halo.memory.lockable), (Some(96 << 30), Some(8_388_608)));
    assert_eq!(halo.modules, ["thunderbolt", "thunderbolt_net"]);
    assert_eq!(
        halo.interface("thunderbolt0").map(|own| (own.kind, own.mtu)),
        Some((InterfaceKind::Thunderbolt, Some(65520)))
    );
    let routes: Vec<String> = halo
        .routes
        .iter()
        .map(|r| format!("{}/{} {} {:?}", r.network, r.prefix, r.interface, r.gateway))
        .collect();
    assert_eq!(routes, ["0.0.0.0/0 enp1s0 Some(192.168.7.1)", "192.168.7.0/24 enp1s0 None"]);
    assert_eq!(machine("linux-infiniband").memory.lockable, Some(u64::MAX));
}

#[test]
fn adapters_have_gids_with_their_types() {
    let roce = machine("linux-roce");
    let device = roce.device("mlx5_0").expect("an adapter");
    assert_eq!(
        (device.state.as_str(), device.link.as_str(), device.gigabits),
        ("ACTIVE", "Ethernet", Some(100.0))
    );
    assert_eq!(device.interface.as_deref(), Some("enp65s0f0"));
    let gids: Vec<String> =
        device.gids.iter().map(|gid| format!("{} {} {}", gid.index, gid.gid, gid.kind)).collect();
    assert_eq!(
        gids[2..],
        ["2 ::ffff:10.8.0.2 IB/RoCE v1".to_owned(), "3 ::ffff:10.8.0.2 RoCE v2".to_owned()],
        "the unused entry is left out"
    );
    assert_eq!(device.queue_pairs, Some(131_072), "merged with the probe");
    assert_eq!(roce.devices.len(), 1);
}

#[test]
fn two_recorded_machines_that_name_each_other_have_a_cable() {
    let near = machine("mac-mini-m4-pro");
    // The other machine's identifiers are those that the recording names as its partner's.
    let other = text("mac-mini-m4-pro").replace("000000B0-", "000000X0-").replace("000000B1-", "000000B0-");
    let other =
        Inventory::read(&Recording::from_text(&other.replace("000000X0-", "000000B1-")).expect("valid"));
    let graph = CableGraph::of(&[&near, &other]);
    assert_eq!((graph.cables.len(), graph.foreign.len(), graph.one_sided.len()), (1, 0, 0));
    assert!(graph.cables[0].certain);
}

#[test]
fn texts_that_are_cut_anywhere_are_read_without_a_panic() {
    for name in ["mac-studio-m3-ultra", "macbook-pro-m4-max-dock", "linux-strix-halo-usb4", "linux-roce"] {
        let whole = text(name);
        for end in (0..whole.len()).step_by(37).filter(|end| whole.is_char_boundary(*end)) {
            if let Ok(recording) = Recording::from_text(&whole[..end]) {
                let _ = Inventory::read(&recording);
            }
        }
    }
}

#[test]
fn a_missing_output_is_a_problem_and_not_an_empty_machine() {
    let mut recording = Recording::from_text(&text("mac-mini-m4-pro")).expect("valid");
    recording.outputs.remove("ifconfig");
    recording.outputs.insert("system_profiler SPThunderboltDataType -json".into(), "{".into());
    let problems = Inventory::read(&recording).problems;
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].starts_with("`ifconfig` gave no output"), "{problems:?}");
}
