//! Texts, drawings and JSON of recorded machines.

use super::{Host, drawing, json, text};
use crate::commands::survey::Cables;
use inventory::{Inventory, Partner, Recording};

fn machine(name: &str) -> Inventory {
    let path = format!("{}/tests/data/machines/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("a recording of the repository");
    Inventory::read(&Recording::from_text(&text).expect("valid"))
}

fn shown<T>(inventories: &[Inventory], show: impl Fn(&[Host<'_>], &Cables) -> T) -> T {
    let hosts: Vec<Host<'_>> =
        inventories.iter().map(|inventory| Host { name: &inventory.hostname, inventory }).collect();
    show(&hosts, &Cables::of(hosts.iter().map(|host| (host.name, host.inventory))))
}

#[test]
fn devices_stand_below_the_socket_that_they_are_near() {
    assert_eq!(
        shown(&[machine("linux-xeon-two-sockets")], text::text),
        concat!(
            "xeon0: Example Server, 8 cores, 16 threads, 256 GiB, read by sysfs\n",
            "  package 0 (Intel(R) Xeon(R) Gold 6434) + NUMA node 0, 128 GiB\n",
            "    L3 22.5 MiB\n",
            "      4 x (L2 2 MiB + L1d 48 KiB + core): threads 0-3,8-11\n",
            "    Ethernet eno1, up, 192.168.7.51\n",
            "  package 1 (Intel(R) Xeon(R) Gold 6434) + NUMA node 1, 128 GiB\n",
            "    L3 22.5 MiB\n",
            "      4 x (L2 2 MiB + L1d 48 KiB + core): threads 4-7,12-15\n",
            "    RDMA mlx5_0 (ens9), active, 100 Gb/s\n",
        )
    );
}

#[test]
fn kinds_of_cores_and_cables_of_a_mac_are_shown() {
    assert_eq!(
        shown(&[machine("mac-studio-m3-ultra")], text::text),
        concat!(
            "studio0: Mac15,14, Apple M3 Ultra, 32 cores, 32 threads, 512 GiB, read by sysctl\n",
            "  package 0 (Apple M3 Ultra)\n",
            "    L2 16 MiB\n",
            "      6 x (L1d 128 KiB + performance core): threads 0-5\n",
            "    L2 16 MiB\n",
            "      6 x (L1d 128 KiB + performance core): threads 6-11\n",
            "    L2 16 MiB\n",
            "      6 x (L1d 128 KiB + performance core): threads 12-17\n",
            "    L2 16 MiB\n",
            "      6 x (L1d 128 KiB + performance core): threads 18-23\n",
            "    L2 4 MiB\n",
            "      4 x (L1d 64 KiB + efficiency core): threads 24-27\n",
            "    L2 4 MiB\n",
            "      4 x (L1d 64 KiB + efficiency core): threads 28-31\n",
            "  Thunderbolt 1 (en2, rdma_en2), 80 Gb/s -> Mac Studio\n",
            "  Thunderbolt 2 (en3, rdma_en3), no cable\n",
            "  Thunderbolt 3 (en4, rdma_en4), 80 Gb/s -> Mac Studio\n",
            "  Thunderbolt 4 (en5, rdma_en5), no cable\n",
            "  Thunderbolt 5 (en6, rdma_en6), no cable\n",
            "  Thunderbolt 6 (en7, rdma_en7), no cable\n",
            "  Ethernet en0, up, 192.168.7.11\n",
            "  Wi-Fi en1, down\n",
        )
    );
}

#[test]
fn caches_of_a_socket_stand_below_it() {
    assert_eq!(
        shown(&[machine("linux-epyc-four-caches")], text::text),
        concat!(
            "epyc0: Example Server, 8 cores, 16 threads, 128 GiB, read by sysfs\n",
            "  package 0 (AMD EPYC 9174F 16-Core Processor)\n",
            "    NUMA node 0, 32 GiB\n",
            "      L3 32 MiB\n",
            "        2 x (L2 1 MiB + L1d 32 KiB + core): threads 0-1,8-9\n",
            "      Ethernet eno1, up, 192.168.7.51\n",
            "    NUMA node 1, 32 GiB + L3 32 MiB\n",
            "      2 x (L2 1 MiB + L1d 32 KiB + core): threads 2-3,10-11\n",
            "    NUMA node 2, 32 GiB\n",
            "      L3 32 MiB\n",
            "        2 x (L2 1 MiB + L1d 32 KiB + core): threads 4-5,12-13\n",
            "      RDMA mlx5_0 (enp65s0), active, 100 Gb/s\n",
            "    NUMA node 3, 32 GiB + L3 32 MiB\n",
            "      2 x (L2 1 MiB + L1d 32 KiB + core): threads 6-7,14-15\n",
        )
    );
}

/// Two machines with a cable between the first ports.
fn pair() -> [Inventory; 2] {
    let mut pair = [machine("mac-mini-m4-pro"), machine("mac-mini-m4-pro")];
    for (at, inventory) in pair.iter_mut().enumerate() {
        inventory.hostname = format!("h{at}");
        inventory.ports[0].uid = format!("uid-{at}");
        let uid = Some(format!("uid-{}", 1 - at));
        inventory.ports[0].partner = Some(Partner { name: "Mac mini".into(), uid, hub: None });
    }
    pair
}

#[test]
fn cables_lead_to_the_ports_of_the_other_host() {
    let text = shown(&pair(), text::text);
    for line in [
        "  Thunderbolt 1 (en2, rdma_en2), 80 Gb/s -> h1 Thunderbolt 1\n",
        "  Thunderbolt 1 (en2, rdma_en2), 80 Gb/s -> h0 Thunderbolt 1\n",
        "2 hosts, 1 cable: mesh\n",
        "  h0 Thunderbolt 1 (en2, rdma_en2) -- h1 Thunderbolt 1 (en2, rdma_en2), 80 Gb/s\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let mut apart = pair();
    apart[1].ports[0].uid = "another".into();
    let text = shown(&apart, text::text);
    let line = "h0 Thunderbolt 1 leads to Mac mini, none of these hosts";
    assert!(text.contains(line), "{text}");
}

#[test]
fn a_machine_of_which_little_is_known_is_shown_with_its_interfaces() {
    assert_eq!(
        shown(&[machine("linux-roce")], text::text),
        concat!(
            "roce0: Example Server, 256 GiB\n",
            "  RDMA mlx5_0 (enp65s0f0), active, 100 Gb/s\n",
            "  Ethernet enp1s0, up, 192.168.7.42\n",
        )
    );
}

/// Texts of a drawing, with the class of the box before them.
fn drawn(inventories: &[Inventory]) -> Vec<String> {
    let svg = shown(inventories, drawing::svg);
    let document = roxmltree::Document::parse(&svg).expect("well-formed");
    document
        .descendants()
        .filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "text")))
        .filter_map(|node| node.text().map(str::to_owned))
        .collect()
}

#[test]
fn a_drawing_has_every_core_and_every_device_once() {
    for (name, cores) in [("linux-xeon-two-sockets", 8), ("mac-studio-m3-ultra", 32), ("linux-vm", 2)] {
        let machine = machine(name);
        let svg = shown(std::slice::from_ref(&machine), drawing::svg);
        assert_eq!(
            svg.matches("class=\"box core\"").count() + svg.matches("class=\"box core fast\"").count(),
            cores
        );
        assert_eq!(
            svg.matches("class=\"box remote\"").count(),
            machine.ports.iter().filter(|port| port.partner.is_some()).count()
        );
        let texts = drawn(&[machine]).join("\n");
        assert!(texts.contains("eno1") || texts.contains("en0"), "{texts}");
    }
}

#[test]
fn a_drawing_of_several_hosts_has_the_cables_between_them() {
    let texts = drawn(&pair());
    let rates = texts.iter().filter(|text| *text == "80 Gb/s").count();
    assert_eq!(rates, 3, "one in the picture of cables, one at each port: {texts:?}");
    assert!(texts.iter().any(|text| text == "h1 Thunderbolt 1"), "{texts:?}");
}

#[test]
fn json_has_processors_devices_and_cables() {
    let value: serde_json::Value = serde_json::from_str(&shown(&pair(), json::json)).expect("JSON");
    assert_eq!(value["hosts"][0]["processors"]["source"], "sysctl");
    assert_eq!(value["hosts"][0]["devices"][0]["name"], "Thunderbolt 1");
    assert_eq!(value["hosts"][1]["devices"][0]["leads_to"], "h0 Thunderbolt 1");
    assert_eq!((&value["shape"], &value["cables"][0]["ends"][1]["host"]), (&"mesh".into(), &"h1".into()));
}
