//! `tbccl devices` on software devices, and without devices.

use crate::TBCCL;
use serde_json::Value;
use std::process::{Command, Output};
use support::tbccl_with_software_device as tbccl;

/// Returns status, stdout and stderr.
fn outcome(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (status.code().expect("no signal"), text(&stdout), text(&stderr))
}

/// Runs `tbccl devices` on the first node of a fabric.
fn run_devices(fabric: &str, options: &[&str]) -> (i32, String, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("fabric.toml");
    std::fs::write(&file, fabric).expect("writable");
    let file = file.to_str().expect("text");
    let dir = folder.path().join("shared");
    let dir = dir.to_str().expect("text");
    let run = ["fabric", "run", "--fabric", file, "--dir", dir, "--node", "0", "--", TBCCL, "devices"];
    outcome(tbccl().args([&run, options].concat()))
}

/// A Mac with a cable between two ports, a port without a cable, and a port without an IPv4 address.
const MAC: &str = "
    profile = 'apple-tb5'
    [[node]]
    name = 'mac'
    device = [
        { name = 'rdma_en2' }, { name = 'rdma_en3', gid_index = 3 }, { name = 'rdma_en4' },
        { name = 'rdma_en5', gid = 'missing' },
    ]
    [[cable]]
    ends = ['mac/rdma_en2', 'mac/rdma_en3']
    [[cable]]
    ends = ['mac/rdma_en5', 'mac/rdma_en5']
";

/// Returns the words of a device's line.
fn words<'a>(text: &'a str, device: &str) -> Vec<&'a str> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(device));
    line.unwrap_or_else(|| panic!("no {device}: {text}")).split_whitespace().collect()
}

#[test]
fn each_device_has_a_line_and_each_problem_another() {
    let (status, text, stderr) = run_devices(MAC, &[]);
    assert_eq!((status, stderr.as_str()), (0, ""), "{text}");
    assert_eq!(
        words(&text, "rdma_en3"),
        "rdma_en3 ACTIVE ::ffff:169.254.1.2 3 4096 80 UC 10 100 UC, framed sends into posted receives"
            .split(' ')
            .collect::<Vec<_>>()
    );
    assert_eq!(words(&text, "rdma_en4")[..2], ["rdma_en4", "DOWN"]);
    assert_eq!(words(&text, "rdma_en4").last(), Some(&"-"));
    let problems: Vec<&str> = text.lines().skip(5).collect();
    assert_eq!(problems.len(), 2, "{text}");
    assert!(problems[0].starts_with("rdma_en4/1: making a protection domain failed with ENODATA"), "{text}");
    assert!(problems[0].contains("the port is down; plug in the cable"), "{text}");
    assert!(
        problems[1].starts_with("rdma_en5: the port has no IPv4 address; wait until one is assigned"),
        "{text}"
    );
}

#[test]
fn adapters_write_into_the_memory_of_peers() {
    let fabric = "
        [[node]]
        name = 'a'
        device = [{ name = 'x0', profile = 'ib' }, { name = 'x1', profile = 'usb4' }]
        [[cable]]
        ends = ['a/x0', 'a/x0']
        [[cable]]
        ends = ['a/x1', 'a/x1']
    ";
    let (status, text, stderr) = run_devices(fabric, &[]);
    assert_eq!((status, stderr.as_str()), (0, ""), "{text}");
    for device in ["x0", "x1"] {
        let line = words(&text, device).join(" ");
        assert!(line.ends_with("RC, UC 1024 4096 RC, remote write + imm, zero-copy both sides"), "{text}");
    }
}

#[test]
fn programs_get_all_of_it() {
    let (status, text, stderr) = run_devices(MAC, &["--json"]);
    assert_eq!((status, stderr.as_str()), (0, ""), "{text}");
    let whole: Value = serde_json::from_str(&text).expect("JSON");
    assert!(whole["library"].as_str().is_some_and(|path| path.ends_with("libsoftrdma.so")), "{text}");
    assert!(whole["problem"].is_null());
    let [cable, moved, down, _] = whole["devices"].as_array().expect("devices").as_slice() else {
        panic!("{text}")
    };
    assert_eq!((&cable["transport"], &cable["state"]), (&"THUNDERBOLT".into(), &"ACTIVE".into()));
    assert_eq!(cable["abilities"]["max_regions"], 100);
    assert_eq!(cable["abilities"]["region_line"], 1u64 << 32);
    assert_eq!(cable["abilities"]["one_sided"], false);
    assert_eq!(moved["gid"]["index"], 3);
    assert!(down["abilities"].is_null() && down["protocol"].is_null());
    assert_eq!(down["problems"].as_array().map(Vec::len), Some(1), "{text}");
}

#[test]
fn no_devices_are_no_error() {
    let fabric = "
        [[node]]
        name = 'a'
        device = []
        [[node]]
        name = 'b'
        device = [{ name = 'x0', profile = 'ib' }]
    ";
    let (status, text, stderr) = run_devices(fabric, &[]);
    assert_eq!((status, stderr.as_str(), text.lines().count()), (0, "", 1), "{text}");
    assert!(text.contains("libsoftrdma.so knows no RDMA device: "), "{text}");
    let (status, text, _) = run_devices(fabric, &["--json"]);
    let whole: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((status, whole["devices"].as_array().map(Vec::len)), (0, Some(0)));
    assert!(whole["problem"].as_str().is_some_and(|why| why.contains("knows no RDMA device")), "{text}");
}

#[test]
fn no_library_is_an_error_with_a_remedy() {
    for (library, parts) in [
        ("/there/is/no/libverbs.so", ["cannot open shared object file", "set TBCCL_VERBS_LIB to the path"]),
        (
            "libc.so.6",
            ["libc.so.6 has no function ibv_get_device_list", "see that TBCCL_VERBS_LIB is not set"],
        ),
    ] {
        let (status, text, stderr) = outcome(tbccl().arg("devices").env("TBCCL_VERBS_LIB", library));
        assert_eq!((status, text.as_str(), stderr.lines().count()), (2, "", 1), "{stderr}");
        assert!(
            stderr.starts_with("tbccl: error: ") && parts.iter().all(|part| stderr.contains(part)),
            "{stderr}"
        );
    }
}
