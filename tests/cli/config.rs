//! `tbccl config` on recorded machines.

use crate::TBCCL;
use serde_json::Value;
use std::{
    collections::BTreeSet,
    process::{Command, Output},
};

/// Returns status, stdout and stderr.
fn config(args: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } =
        Command::new(TBCCL).arg("config").args(args).output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (status.code().expect("no signal"), text(&stdout), text(&stderr))
}

/// Writes the recordings of two Macs whose first ports are the ends of one cable; returns their files.
fn two_macs(folder: &std::path::Path) -> String {
    let path = format!("{}/tests/data/machines/mac-mini-m4-pro.txt", env!("CARGO_MANIFEST_DIR"));
    let first = std::fs::read_to_string(path).expect("a recording of the repository");
    let second = first.replace("000000B0-", "000000X0-").replace("000000B1-", "000000B0-");
    let second =
        second.replace("000000X0-", "000000B1-").replace("mini0", "mini1").replace("10.42.0.1", "10.42.0.9");
    let files = [("mini0.txt", first), ("mini1.txt", second)].map(|(name, text)| {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("our folder");
        path.to_str().expect("text").to_owned()
    });
    files.join(",")
}

#[test]
fn the_plan_is_shown_and_the_hostfiles_start_jobs_on_the_same_hosts() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let macs = two_macs(folder.path());
    let (status, text, stderr) = config(&["--replay", &macs, "--dry-run"]);
    assert_eq!((status, stderr.as_str()), (0, ""), "{text}");
    let cable = "mini0 Thunderbolt 1 (en2, rdma_en2, 10.42.0.5)  --  mini1 Thunderbolt 1 (en2, rdma_en2, \
                 10.42.0.6)  80 Gb/s";
    for part in [
        "2 hosts, 1 cable: mesh",
        cable,
        "on mini1:\n  sudo ifconfig en2 inet 10.42.0.6 netmask 255.255.255.252 up",
        "rdma = { \"mini1\" = \"rdma_en2\" }",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let (native, mlx) = (path("hosts.toml"), path("hosts.json"));
    let (status, text, stderr) = config(&["--replay", &macs, "-o", &native, "--mlx", &mlx]);
    assert_eq!((status, stderr.as_str()), (0, ""), "{text}");
    let mlx: Value = serde_json::from_str(&std::fs::read_to_string(mlx).expect("written")).expect("JSON");
    assert_eq!(mlx["backend"], "jaccl", "{mlx}");
    let mlx = &mlx["hosts"];
    assert_eq!(mlx[0]["rdma"], serde_json::json!([null, "rdma_en2"]));
    assert_eq!(mlx[1]["ips"], serde_json::json!(["192.168.7.11"]));
    let native = std::fs::read_to_string(native).expect("written");
    assert!(native.contains("addresses = [\"10.42.0.6\", \"192.168.7.11\"]"), "{native}");
    let (status, text, _) = config(&["--replay", &macs, "--json", "--over", "rdma"]);
    let whole: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((status, &whole["shape"]), (0, &"mesh".into()), "{text}");
    assert_eq!(whole["cables"][0]["ends"][1]["address"], "10.42.0.6", "{text}");
}

#[test]
fn options_of_mlx_distributed_config_are_accepted_with_their_meaning() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let macs = two_macs(folder.path());
    let (status, text, stderr) = config(&["--replay", &macs, "--dot", "--verbose"]);
    assert_eq!((status, stderr.as_str()), (0, ""), "{text}");
    let nodes = "graph cables {\n  node [shape=box];\n  0 [label=\"mini0\"];\n  1 [label=\"mini1\"];\n";
    assert_eq!(text, format!("{nodes}  0 -- 1 [label=\"en2/en2\"];\n}}\n"));
    let path = folder.path().join("hosts.json");
    let path = path.to_str().expect("text");
    let (status, text, stderr) =
        config(&["--replay", &macs, "--over", "ethernet", "--no-auto-setup", "--output-hostfile", path]);
    assert_eq!((status, stderr.as_str()), (0, ""), "{text}");
    let hosts: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("written")).expect("JSON");
    assert_eq!(hosts["hosts"][0]["ips"], serde_json::json!(["192.168.7.11"]), "{hosts}");
    let (status, _, stderr) = config(&["--replay", &macs, "--auto-setup"]);
    assert!(status == 2 && stderr.contains("--apply"), "{stderr}");
}

#[test]
fn backend_and_variables_are_written_to_both_hostfiles() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let macs = two_macs(folder.path());
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let (native, mlx) = (path("hosts.toml"), path("hosts.json"));
    let files = ["--replay", &macs, "-o", &native, "--mlx", &mlx];
    let settings = ["--env", "A=1", "--env", "B=x=\"y\"", "--env", "A=2"];
    for backend in ["ring", "jaccl", "jaccl-ring"] {
        let (status, text, stderr) = config(&[&files[..], &settings, &["--backend", backend]].concat());
        assert_eq!((status, stderr.as_str()), (0, ""), "{text}");
        let whole: Value =
            serde_json::from_str(&std::fs::read_to_string(&mlx).expect("written")).expect("JSON");
        assert_eq!(whole["backend"], backend);
        assert_eq!(whole["envs"], serde_json::json!(["B=x=\"y\"", "A=2"]), "{whole}");
        assert_eq!(whole["hosts"][0]["rdma"].is_array(), backend != "ring", "{whole}");
        let addresses = if backend == "ring" { ["10.42.0.6"] } else { ["192.168.7.11"] };
        assert_eq!(whole["hosts"][1]["ips"], serde_json::json!(addresses), "{whole}");
        for file in [&native, &mlx] {
            let file = topology::Hostfile::parse(&std::fs::read(file).expect("written")).expect("valid");
            assert_eq!(file.backend.as_deref(), Some(backend));
            let variables = [("B", "x=\"y\""), ("A", "2")].map(|(key, value)| (key.into(), value.into()));
            assert_eq!(file.env.iter().cloned().collect::<BTreeSet<(String, String)>>(), variables.into());
        }
    }
    let (status, _, stderr) = config(&["--replay", &macs, "--env", "A"]);
    assert!(status == 2 && stderr.contains("--env TBCCL_TIMEOUT=60"), "{stderr}");
}

#[test]
fn a_backend_that_the_cables_do_not_allow_gives_status_1_and_its_reason() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let macs = two_macs(folder.path());
    let path = folder.path().join("hosts.json");
    let file = path.to_str().expect("text");
    let cases: [(&[&str], &str); 2] = [
        (&["--backend", "jaccl", "--over", "tcp"], "problem: the backend jaccl needs RDMA: use --over"),
        (&["--backend", "jaccl-ring", "--over", "ethernet"], "problem: the backend jaccl-ring needs RDMA"),
    ];
    for (options, reason) in cases {
        let (status, text, _) = config(&[&["--replay", &macs, "--mlx", file][..], options].concat());
        assert!(status == 1 && text.contains(reason) && !path.exists(), "{text}");
    }
    let (status, text, _) = config(&["--replay", &macs, "--backend", "ring", "--over", "ethernet"]);
    assert_eq!(status, 0, "{text}");
}

#[test]
fn cables_that_are_not_as_asked_for_give_status_1_and_the_check_that_says_more() {
    let machine = |name: &str| format!("{}/tests/data/machines/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let apart = format!("{},{}", machine("mac-mini-m4-pro"), machine("linux-roce"));
    let (status, text, _) = config(&["--replay", &apart, "--dry-run"]);
    assert_eq!(status, 1, "{text}");
    assert!(
        text.contains("problem: no cable connects two of the hosts; see `tbccl doctor --check cable`"),
        "{text}"
    );
    let (status, text, _) = config(&["--replay", &apart, "--dry-run", "--over", "lan"]);
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("addresses = [\"192.168.7.42\"]"), "{text}");
    let (status, _, stderr) = config(&["--replay", &machine("mac-mini-m4-pro")]);
    assert!(status == 2 && stderr.contains("name two or more"), "{stderr}");
}
