//! `tbccl config --apply` and `--undo` on hosts whose ports have no addresses.
//!
//! The hosts are network namespaces, which have no Thunderbolt ports: a script in the place of tbccl adds
//! them to the answers of the hosts. All else is real: ssh, the commands, the addresses, the ping over the
//! cables.

use crate::{
    TBCCL,
    network::{CableAddresses, Network, network_or_return},
};
use inventory::{Generation, Partner, Port};
use std::{os::unix::fs::PermissionsExt, process::Output};
use support::{Finished, Process};

/// Cables between hosts 1 to 3; host 0 runs tbccl.
const CABLES: [(usize, usize); 3] = [(1, 2), (2, 3), (3, 1)];
const HOSTS: &str = "h1,h2,h3";

/// Answers for tbccl, with the ports of its host.
const SCRIPT: &str = r#"#!/bin/sh
if [ "$*" = "doctor --inventory" ]; then
    "TBCCL" "$@" | sed "s|\"ports\":\[\]|\"ports\":$(cat "FOLDER/ports-$(cat /proc/sys/kernel/hostname)")|"
else
    exec "TBCCL" "$@"
fi
"#;

struct Rig {
    network: Network,
    script: String,
}

impl Rig {
    fn new(network: Network) -> Rig {
        let folder = network.path("").display().to_string();
        let text = SCRIPT.replace("TBCCL", TBCCL).replace("FOLDER/", &folder);
        let script = network.write("tbccl-with-ports", &text);
        std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).expect("ours");
        let rig = Rig { network, script };
        let mut ports = vec![Vec::new(); 4];
        for (a, b) in CABLES {
            let uid = |host: usize, port: usize| format!("port {port} of h{host}");
            let ends = [(a, ports[a].len()), (b, ports[b].len())];
            for ((host, port), (other, at)) in [(ends[0], ends[1]), (ends[1], ends[0])] {
                let partner = Partner { name: format!("h{other}"), uid: Some(uid(other, at)), hub: None };
                ports[host].push(Port {
                    name: format!("0-0/{port}"),
                    uid: uid(host, port),
                    generation: Generation::Usb4,
                    interface: Some(format!("thunderbolt{port}")),
                    partner: Some(partner),
                    ..Port::default()
                });
            }
        }
        for (host, ports) in ports.iter().enumerate().skip(1) {
            rig.set_ports(host, ports);
            rig.on(host, &["ip", "route", "add", "default", "via", "10.77.0.254", "dev", "eth0"]);
            // Look-ups of names fail at once, and not after their timeout.
            for half in ["0.0.0.0/1", "128.0.0.0/1"] {
                rig.on(host, &["ip", "route", "add", "unreachable", half]);
            }
        }
        rig
    }

    fn set_ports(&self, host: usize, ports: &[Port]) {
        let text = serde_json::to_string(ports).expect("no map");
        self.network.write(&format!("ports-h{host}"), &text);
    }

    /// Runs a program on a host.
    fn on(&self, host: usize, words: &[&str]) -> String {
        let Output { status, stdout, stderr } =
            self.network.enter(host, words[0]).args(&words[1..]).output().expect("ip");
        assert!(status.success(), "{words:?}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8_lossy(&stdout).into_owned()
    }

    /// Returns the IPv4 addresses of a host's ports, and their MTU.
    fn ports(&self, host: usize) -> Vec<(Vec<String>, u32)> {
        let port = |name: &str| {
            let text = self.on(host, &["ip", "addr", "show", "dev", name]);
            let words: Vec<&str> = text.split_whitespace().collect();
            let after = |word: &str| {
                words.windows(2).filter(|two| two[0] == word).map(|two| two[1].to_owned()).collect()
            };
            let mtu: Vec<String> = after("mtu");
            (after("inet"), mtu[0].parse().expect("a number"))
        };
        ["thunderbolt0", "thunderbolt1"].map(port).to_vec()
    }

    /// Runs `tbccl config` on host 0.
    fn config(&self, args: &[&str]) -> Finished {
        let mut command = self.network.command("config", &self.network.ssh());
        command.args(["--tbccl", &self.script]).args(args);
        command.env("XDG_STATE_HOME", self.network.path("state"));
        Process::start(command).finish()
    }
}

fn text(done: &Finished) -> String {
    String::from_utf8_lossy(&done.stdout).into_owned()
}

#[test]
fn cables_get_addresses_that_carry_a_ping_and_are_taken_back() {
    let network = network_or_return!(4, &CABLES, CableAddresses::LinkLocal);
    let rig = Rig::new(network);
    let before: Vec<_> = (1..4).map(|host| rig.ports(host)).collect();
    let file = rig.network.path("hosts.toml").display().to_string();
    let apply = ["--hosts", HOSTS, "--over", "tcp", "--apply", "-o", &file];

    let done = rig.config(&apply);
    let said = text(&done);
    assert_eq!(done.code(), 0, "{said}{}", done.stderr);
    assert!(said.contains("on h2:\n  sudo ip addr replace 10.42.0.2/30 dev thunderbolt0\n"), "{said}");
    assert!(said.contains("all hosts are as planned\nwrote ") && said.contains("Gb/s"), "{said}");
    let own =
        |host: usize| rig.ports(host).into_iter().flat_map(|(addresses, _)| addresses).collect::<Vec<_>>();
    assert_eq!(own(1), ["10.42.0.1/30", "10.42.0.5/30"]);
    assert!((1..4).all(|host| rig.ports(host).iter().all(|(_, mtu)| *mtu == 9000)));
    let carried: Vec<u64> = (1..4).flat_map(|host| rig.network.cable_bytes(host)).collect();
    assert!(carried.iter().all(|bytes| *bytes > 1 << 20), "{carried:?}; {said}");

    let done = rig.config(&[&apply[..], &["--no-ping"]].concat());
    assert_eq!(done.code(), 0, "{}", done.stderr);
    assert!(text(&done).contains("no host needs a command"), "{}", text(&done));

    // One host first, then those that are left.
    let done = rig.config(&["--undo", "--hosts", "h2"]);
    assert_eq!((done.code(), text(&done)), (0, "h2: 4 changes taken back\n".to_owned()), "{}", done.stderr);
    assert!(own(2).is_empty() && own(3).len() == 2);
    let done = rig.config(&["--undo"]);
    assert_eq!(done.sorted_lines(), ["h1: 4 changes taken back", "h3: 4 changes taken back"]);
    assert_eq!((1..4).map(|host| rig.ports(host)).collect::<Vec<_>>(), before);
    let done = rig.config(&["--undo"]);
    assert!(
        done.code() == 0 && text(&done).starts_with("nothing to take back is noted in "),
        "{}",
        text(&done)
    );
}

#[test]
fn a_command_that_fails_is_named_with_its_host_and_the_others_are_taken_back() {
    let network = network_or_return!(4, &CABLES, CableAddresses::LinkLocal);
    let rig = Rig::new(network);
    let mut ports: Vec<Port> =
        serde_json::from_str(&std::fs::read_to_string(rig.network.path("ports-h2")).expect("ours"))
            .expect("ours");
    ports[1].interface = Some("thunderbolt9".to_owned());
    rig.set_ports(2, &ports);
    let done = rig.config(&["--hosts", HOSTS, "--over", "tcp", "--apply"]);
    assert_eq!(done.code(), 1, "{}", text(&done));
    let failed = "warning: host h2: `sudo ip addr replace 10.42.0.9/30 dev thunderbolt9`: Cannot find device";
    assert!(done.stderr.contains(failed), "{}", done.stderr);
    assert!(done.stderr.contains("is taken back by `tbccl config --undo`"), "{}", done.stderr);
    let addresses = |host: usize| rig.ports(host).iter().map(|(own, _)| own.len()).collect::<Vec<_>>();
    assert_eq!((addresses(1), addresses(2)), (vec![1, 1], vec![1, 0]));
    // What was never made is not needed.
    let done = rig.config(&["--undo"]);
    assert_eq!(done.code(), 0, "{}", done.stderr);
    assert_eq!((addresses(1), addresses(2)), (vec![0, 0], vec![0, 0]));
}

#[test]
fn changes_of_a_host_that_does_not_answer_stay_noted() {
    let network = network_or_return!(4, &CABLES, CableAddresses::LinkLocal);
    let rig = Rig::new(network);
    let done = rig.config(&["--hosts", HOSTS, "--over", "tcp", "--apply", "--no-ping"]);
    assert_eq!(done.code(), 0, "{}", done.stderr);
    rig.network.cut(3);
    let done = rig.config(&["--undo", "--limit", "20"]);
    assert_eq!(done.code(), 1, "{}", done.stderr);
    assert!(done.stderr.contains("warning: host h3: "), "{}", done.stderr);
    assert_eq!(done.sorted_lines(), ["h1: 4 changes taken back", "h2: 4 changes taken back"]);
    let noted = std::fs::read_to_string(rig.network.path("state/tbccl/config-undo.json")).expect("kept");
    assert!(
        noted.contains("h3") && !noted.contains("h1") && noted.contains("no-address:thunderbolt0:"),
        "{noted}"
    );
}
