//! Faults injected into recorded machines, each with the sentence that the report says about it.

use super::{
    check::{Cluster, Verdict},
    checks, diagnose,
};
use crate::commands::survey::Surveyed;
use inventory::{DeviceFault, Generation, Inventory, Partner, RdmaSwitch, Recording};
use topology::Hostfile;

fn machine(name: &str) -> Inventory {
    let path = format!("{}/tests/data/machines/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).expect("a recording of the repository");
    let mut inventory = Inventory::read(&Recording::from_text(&text).expect("valid"));
    inventory.tbccl = env!("CARGO_PKG_VERSION").to_owned();
    inventory
}

/// Two Mac minis with a cable between their first ports, without a fault.
fn two_minis() -> Vec<Surveyed> {
    let mut minis = [machine("mac-mini-m4-pro"), machine("mac-mini-m4-pro")];
    for (at, mini) in minis.iter_mut().enumerate() {
        mini.hostname = format!("mini{at}");
        for port in &mut mini.ports {
            port.uid = format!("{}-{at}", port.name);
        }
        let uid = Some(format!("Thunderbolt 1-{}", 1 - at));
        mini.ports[0].partner = Some(Partner { name: format!("mini{}", 1 - at), uid, hub: None });
    }
    let second = "10.42.0.2".parse().expect("an address");
    let en2 = minis[1].interfaces.iter_mut().find(|own| own.name == "en2").expect("a port");
    en2.addresses.iter_mut().filter(|address| address.ip.is_ipv4()).for_each(|address| address.ip = second);
    minis[1].devices[0].gids[1].gid = "::ffff:10.42.0.2".into();
    minis.map(|mini| Surveyed { name: mini.hostname.clone(), inventory: Ok(mini), skew_ms: Some(40) }).into()
}

fn one(name: &str) -> Vec<Surveyed> {
    let inventory = machine(name);
    vec![Surveyed { name: inventory.hostname.clone(), inventory: Ok(inventory), skew_ms: None }]
}

/// Returns all findings as `verdict check: observation | remedy`.
fn findings(hosts: &[Surveyed], hostfile: Option<&Hostfile>) -> Vec<String> {
    let empty = Inventory::default();
    let cluster = Cluster::new(hosts, &empty, hostfile.and_then(|file| file.devices.as_ref()));
    let report = diagnose(&cluster, &checks::ALL.iter().collect::<Vec<_>>());
    let lines = report.entries.iter().flat_map(|entry| {
        entry.outcome.findings.iter().map(|found| {
            format!("{} {}: {} | {}", found.verdict.name(), entry.check.name, found.seen, found.mend)
        })
    });
    lines.collect()
}

/// A fault: the altered hosts, and the beginning of its line, with a part of the remedy.
struct Fault {
    alter: fn(&mut Inventory),
    line: &'static str,
    mend: &'static str,
}

/// Faults of the first of two Mac minis.
const OF_A_MAC: &[Fault] = &[
    Fault {
        alter: |mac| mac.rdma = RdmaSwitch::Off,
        line: "red rdma: rdma_ctl says that RDMA is disabled",
        mend: "rdma_ctl enable",
    },
    Fault {
        alter: |mac| mac.rdma = RdmaSwitch::Missing,
        line: "red rdma: there is no rdma_ctl on this macOS",
        mend: "PATH",
    },
    Fault {
        alter: |mac| mac.release = "26.1".into(),
        line: "red macos: macOS is 26.1",
        mend: "softwareupdate",
    },
    Fault {
        alter: |mac| mac.ports.iter_mut().for_each(|port| port.generation = Generation::Thunderbolt4),
        line: "yellow generation: the cable at Thunderbolt 1 is at a Thunderbolt 4 port",
        mend: "--transport shm+tcp",
    },
    Fault {
        alter: |mac| mac.devices[0].state = "DOWN".into(),
        line: "red port: the port of rdma_en2 is DOWN, and its cable leads to `mini1`",
        mend: "replug",
    },
    Fault {
        alter: |mac| mac.devices[0].gids.truncate(1),
        line: "red gid: rdma_en2 has no GID with the address 10.42.0.1 of en2",
        mend: "sudo ifconfig en2 down && sudo ifconfig en2 up",
    },
    Fault {
        alter: |mac| mac.devices[0].gids[1].index = 2,
        line: "yellow gid: the GID of 10.42.0.1 is at index 2 of rdma_en2, and not at 1",
        mend: "JACCL",
    },
    Fault {
        alter: |mac| mac.devices[0].gids[1].gid = "::ffff:169.254.3.4".into(),
        line: "red gid: GID 1 of rdma_en2 has the address 169.254.3.4, which en2 has no longer",
        mend: "sudo ifconfig en2 down",
    },
    Fault {
        alter: |mac| {
            mac.devices[0].faults = vec![DeviceFault {
                cause: "NoDomain".into(),
                text: "rdma_en2/1: making a protection domain failed with ENODATA".into(),
            }];
        },
        line: "red domain: rdma_en2/1: making a protection domain failed with ENODATA",
        mend: "restart the machine",
    },
    Fault {
        alter: |mac| {
            let fault = DeviceFault { cause: "Permission".into(), text: "rdma_en2: EPERM".into() };
            mac.devices[0].faults = vec![fault];
        },
        line: "red permission: rdma_en2: EPERM",
        mend: "/dev/infiniband",
    },
    Fault {
        alter: |mac| mac.devices[0].queue_pairs = Some(3),
        line: "yellow limits: rdma_en2 grants 3 queue pairs and 100 regions",
        mend: "straight into the machine",
    },
    Fault {
        alter: |mac| {
            mac.verbs = inventory::Verbs { problem: Some("no librdma".into()), ..Default::default() }
        },
        line: "red library: no librdma",
        mend: "macOS 26.2",
    },
    Fault {
        alter: |mac| interface(mac, "en2").bridge = Some("bridge0".into()),
        line: "red bridge: en2 is a member of bridge0",
        mend: "sudo ifconfig bridge0 deletem en2",
    },
    Fault {
        alter: |mac| interface(mac, "en2").addresses.clear(),
        line: "red ipv4: en2 has a cable and no IPv4 address",
        mend: "sudo ifconfig en2 inet 169.254.",
    },
    Fault {
        alter: |mac| {
            interface(mac, "en2").addresses.iter_mut().for_each(|own| own.ip = [10, 42, 0, 2].into());
        },
        line: "red subnet: en2 and en2 of mini1, the two ends of a cable, have the same address 10.42.0.2",
        mend: "tbccl config",
    },
    Fault {
        alter: |mac| {
            interface(mac, "en2").addresses.iter_mut().for_each(|own| own.ip = [10, 42, 9, 1].into());
        },
        line: "red subnet: en2 and en2 of mini1, the two ends of a cable, are in different networks: ",
        mend: "tbccl config",
    },
    Fault {
        alter: |mac| {
            let address = interface(mac, "en0").addresses.clone();
            interface(mac, "en2").addresses.extend(address);
        },
        line: "yellow subnet: en0 and en2 are both in 192.168.7.0/24",
        mend: "tbccl config",
    },
    Fault {
        alter: |mac| interface(mac, "en2").mtu = Some(9000),
        line: "yellow mtu: en2 has an MTU of 9000, and en2 of mini1 at the other end 1500",
        mend: "on mini0: sudo ifconfig en2 mtu 1500",
    },
    Fault {
        alter: |mac| mac.routes[0].interface = "en1".into(),
        line: "yellow wifi: the default route is over en1, which is Wi-Fi",
        mend: "TBCCL_INTERFACE",
    },
    Fault {
        alter: |mac| mac.ports[0].gigabits = Some(40.0),
        line: "yellow link-speed: the link at Thunderbolt 1 runs at 40 Gb/s, and a Thunderbolt 5",
        mend: "80 Gb/s",
    },
    Fault {
        alter: |mac| mac.ports[0].partner.as_mut().expect("a cable").hub = Some("Dock".into()),
        line: "yellow hub: `mini1` is plugged into the hub `Dock` at Thunderbolt 1",
        mend: "straight",
    },
    Fault {
        alter: |mac| mac.ports[0].partner = None,
        line: "yellow cable: no cable leads from its 3 ports to another machine",
        mend: "tbccl plan wire",
    },
    Fault {
        alter: |mac| mac.ports[0].partner = None,
        line: "red cable: Thunderbolt 1 sees a cable to a host that does not see it",
        mend: "unplug the cable at both ends",
    },
    Fault {
        alter: |mac| {
            mac.ports[1].partner = Some(Partner { name: "mini7".into(), uid: Some("x".into()), hub: None });
        },
        line: "yellow cable: the cable at Thunderbolt 2 leads to `mini7`, which is none of the hosts",
        mend: "add that machine",
    },
    Fault {
        alter: |mac| mac.sleep_minutes = Some(10),
        line: "yellow sleep: the machine sleeps after 10 min without a user",
        mend: "sudo pmset -a sleep 0",
    },
    Fault {
        alter: |mac| mac.firewall = Some("the application firewall".into()),
        line: "yellow firewall: the application firewall is on",
        mend: "socketfilterfw",
    },
    Fault {
        alter: |mac| mac.memory.available = Some(512 << 20),
        line: "yellow memory: 512 MiB of memory are free, and each rank registers up to 1024 MiB",
        mend: "TBCCL_SLAB_BYTES",
    },
    Fault {
        alter: |mac| mac.resolves_itself = Some(false),
        line: "yellow hostname: the machine's own name, mini0, has no address",
        mend: "127.0.1.1 mini0",
    },
    Fault {
        alter: |mac| mac.tbccl = "0.0.9".into(),
        line: "red version: its tbccl is 0.0.9, and this one is ",
        mend: "same version",
    },
    Fault {
        alter: |mac| mac.problems.push("`pmset -g` gave no output".into()),
        line: "yellow inventory: `pmset -g` gave no output",
        mend: "by hand",
    },
];

fn interface<'a>(inventory: &'a mut Inventory, name: &str) -> &'a mut inventory::Interface {
    inventory.interfaces.iter_mut().find(|own| own.name == name).expect("an interface")
}

fn expect(found: &[String], line: &str, mend: &str) {
    let is_it = |found: &&String| {
        found.starts_with(line) && found.split_once(" | ").is_some_and(|(_, remedy)| remedy.contains(mend))
    };
    assert_eq!(found.iter().filter(is_it).count(), 1, "{line} | {mend}\nfound: {found:#?}");
}

#[test]
fn two_macs_in_order_have_no_fault() {
    assert_eq!(findings(&two_minis(), None), Vec::<String>::new());
}

#[test]
fn each_fault_of_a_mac_has_its_sentence_and_its_remedy() {
    for Fault { alter, line, mend } in OF_A_MAC {
        let mut hosts = two_minis();
        alter(hosts[0].inventory.as_mut().expect("an inventory"));
        expect(&findings(&hosts, None), line, mend);
    }
}

#[test]
fn each_fault_of_a_pc_has_its_sentence_and_its_remedy() {
    type Alter = fn(&mut Inventory);
    let cases: [(&str, Alter, &str, &str); 8] = [
        (
            "linux-strix-halo-usb4",
            |pc| pc.modules.retain(|name| name != "thunderbolt_net"),
            "red modules: a cable leads to another machine, and the module thunderbolt_net is not loaded",
            "sudo modprobe thunderbolt-net",
        ),
        (
            "linux-roce",
            |pc| pc.modules.clear(),
            "red modules: there are RDMA devices, and the module ib_uverbs is not loaded",
            "sudo modprobe ib_uverbs",
        ),
        (
            "linux-roce",
            |pc| pc.devices[0].gids.retain(|gid| gid.kind.contains("v1")),
            "yellow gid-type: all GIDs of mlx5_0 are of RoCE v1",
            "cma_roce_mode",
        ),
        (
            "linux-infiniband",
            |pc| pc.memory.lockable = Some(8 << 20),
            "red memlock: 8192 KiB may be locked",
            "ulimit -l unlimited",
        ),
        (
            "linux-infiniband",
            |pc| pc.devices[0].state = "DOWN".into(),
            "yellow port: the port of mlx5_0 is DOWN",
            "plug in the cable",
        ),
        (
            "linux-infiniband",
            |pc| pc.verbs = inventory::Verbs { problem: Some("no libibverbs".into()), ..Default::default() },
            "red library: no libibverbs",
            "apt install libibverbs1",
        ),
        ("linux-roce", |pc| pc.firewall = Some("ufw".into()), "yellow firewall: ufw is on", "sudo ufw allow"),
        (
            "linux-strix-halo-usb4",
            |pc| interface(pc, "thunderbolt0").addresses.clear(),
            "yellow ipv4: thunderbolt0 has a cable and no IPv4 address",
            "sudo ip addr add",
        ),
    ];
    for (name, alter, line, mend) in cases {
        let mut hosts = one(name);
        assert!(findings(&hosts, None).iter().all(|found| !found.starts_with(line)), "{name} as recorded");
        alter(hosts[0].inventory.as_mut().expect("an inventory"));
        expect(&findings(&hosts, None), line, mend);
    }
}

#[test]
fn recorded_machines_have_the_faults_that_they_were_recorded_for() {
    let cases: [(&str, &[&str]); 9] = [
        ("mac-studio-m3-ultra", &[]),
        ("mac-mini-m4-pro", &[]),
        (
            "mac-mini-m4-pro-half-enabled",
            &["red rdma: rdma_ctl says that RDMA is enabled, and no RDMA device is listed"],
        ),
        (
            "mac-mini-m4-pro-bridge",
            &[
                "red bridge: en2 is a member of bridge0",
                "red bridge: en3 is a member of bridge0",
                "red bridge: en4 is a member of bridge0",
                "red gid: rdma_en2 has no GID with an IPv4 address, since en2 has none",
                "yellow sleep: ",
                "yellow firewall: ",
            ],
        ),
        (
            "mac-mini-m4-thunderbolt4",
            &["yellow generation: the cable at Thunderbolt 2 is at a Thunderbolt 4 port"],
        ),
        (
            "macbook-pro-m4-max-dock",
            &[
                "yellow hub: `Mac mini` is plugged into the hub `Example Dock`",
                "yellow link-speed: the link at Thunderbolt 1 runs at 40 Gb/s",
                "yellow limits: rdma_en2 grants 3 queue pairs",
                "yellow sleep: ",
            ],
        ),
        ("linux-strix-halo-usb4", &[]),
        (
            "linux-thunderbolt-card",
            &[
                "yellow bridge: thunderbolt0 is a member of br0 | sudo ip link set thunderbolt0 nomaster",
                "yellow bridge: thunderbolt1 is a member of br0",
            ],
        ),
        ("linux-roce", &[]),
    ];
    for (name, expected) in cases {
        let found = findings(&one(name), None);
        let same = found.len() == expected.len() && found.iter().zip(expected).all(|(f, e)| f.starts_with(e));
        assert!(same, "{name}: {found:#?}");
    }
}

#[test]
fn a_host_that_does_not_answer_is_red_with_the_way_to_it() {
    let cases = [
        ("ssh failed: mini1: Permission denied (publickey)", "ssh-copy-id mini1"),
        ("ssh failed: ssh: Could not resolve hostname mini1", "add mini1 to /etc/hosts"),
        ("ssh failed: Host key verification failed.", "accept the key"),
        ("there is neither /a/tbccl nor a tbccl in PATH", "install tbccl on mini1"),
        ("an inventory of version 2, and this tbccl reads version 1", "install the same tbccl on mini1"),
        ("no answer within 60s; is it overloaded?", "ssh -v mini1 true"),
    ];
    for (why, mend) in cases {
        let mut hosts = two_minis();
        hosts[1].inventory = Err(why.to_owned());
        expect(&findings(&hosts, None), &format!("red ssh: {why}"), mend);
    }
}

#[test]
fn clocks_that_differ_are_told() {
    let mut hosts = two_minis();
    hosts[1].skew_ms = Some(-3500);
    expect(&findings(&hosts, None), "yellow clock: its clock is 3.5 s behind this host's", "sntp");
}

#[test]
fn a_hostfile_is_compared_with_the_cables() {
    let file = |device: &str| {
        let second = r#"{"ssh": "mini1", "rdma": ["rdma_en2", null]}"#;
        let text = format!(r#"[{{"ssh": "mini0", "rdma": [null, "{device}"]}}, {second}]"#);
        Hostfile::parse(text.as_bytes()).expect("a hostfile")
    };
    assert_eq!(findings(&two_minis(), Some(&file("rdma_en2"))), Vec::<String>::new());
    expect(
        &findings(&two_minis(), Some(&file("rdma_en3"))),
        "red cable-map: the hostfile says that rdma_en3 leads to mini1; it has no cable",
        "tbccl config",
    );
}

#[test]
fn a_machine_without_ports_is_told_so_plainly() {
    let bare = Inventory { tbccl: env!("CARGO_PKG_VERSION").into(), ..Inventory::default() };
    let hosts = [Surveyed { name: "a".into(), inventory: Ok(bare), skew_ms: None }];
    expect(
        &findings(&hosts, None),
        "yellow thunderbolt: this machine has no Thunderbolt port and no RDMA device",
        "nothing, if TCP over the LAN is meant",
    );
}

#[test]
fn names_are_distinct_and_documented() {
    let page =
        std::fs::read_to_string(format!("{}/docs/doctor.md", env!("CARGO_MANIFEST_DIR"))).expect("the page");
    for (at, check) in checks::ALL.iter().enumerate() {
        assert!(checks::ALL[..at].iter().all(|other| other.name != check.name), "{}", check.name);
        let row = format!("| `{}` | {} | {} |", check.name, check.about, check.why);
        assert!(page.contains(&row), "docs/doctor.md has no row\n{row}");
    }
    assert!(Verdict::Green < Verdict::Yellow && Verdict::Yellow < Verdict::Red);
}
