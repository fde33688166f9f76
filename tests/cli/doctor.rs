//! `tbccl doctor` on this machine, on software devices, and on recorded machines.

use crate::TBCCL;
use serde_json::Value;
use std::process::{Command, Output};
use support::tbccl_with_software_device;

/// Returns status, stdout and stderr.
fn outcome(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("it starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (status.code().expect("no signal"), text(&stdout), text(&stderr))
}

fn doctor(args: &[&str]) -> (i32, String, String) {
    outcome(Command::new(TBCCL).arg("doctor").args(args))
}

fn recording(name: &str) -> String {
    format!("{}/tests/data/machines/{name}.txt", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn this_machine_is_checked_and_says_whether_it_has_ports() {
    let (status, text, stderr) = doctor(&["--check", "thunderbolt,inventory,version"]);
    assert_eq!((status, stderr.as_str()), (0, ""), "{text}");
    let line = text.lines().find(|line| line.contains(" thunderbolt ")).expect("the check");
    let says =
        ["this machine has no Thunderbolt port and no RDMA device", " ports, ", "no Thunderbolt port, RDMA"];
    assert!(says.iter().any(|part| line.contains(part)), "{text}");
    assert!(text.lines().any(|line| line.starts_with("green   inventory")), "{text}");
    assert!(text.lines().last().is_some_and(|line| line.starts_with("0 red, ")), "{text}");
}

#[test]
fn a_recording_of_this_machine_has_the_same_faults_as_the_machine() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("here.txt");
    let file = file.to_str().expect("text");
    let (status, text, stderr) = doctor(&["--record", file]);
    assert_eq!((status, stderr.as_str()), (0, ""), "{text}");
    // Free memory changes meanwhile.
    let checks = ["--check", "thunderbolt,rdma,bridge,subnet,memlock,firewall,hostname"];
    let (here, replayed) = (doctor(&checks), doctor(&[&checks[..], &["--replay", file]].concat()));
    assert_eq!(here, replayed);
}

#[test]
fn a_red_check_gives_status_1_and_names_fault_reason_and_command() {
    let bridged = recording("mac-mini-m4-pro-bridge");
    let (status, text, stderr) = doctor(&["--replay", &bridged]);
    assert_eq!((status, stderr.as_str()), (1, ""), "{text}");
    for part in [
        "red     bridge",
        "why:  a bridged port",
        "mend: sudo ifconfig bridge0 deletem en2",
        "2 red, 2 yellow",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (status, text, _) = doctor(&["--replay", &bridged, "--json", "--check", "bridge"]);
    let whole: Value = serde_json::from_str(&text).expect("JSON");
    let check = &whole["checks"][0];
    assert_eq!((status, &whole["red"], &check["verdict"]), (1, &1.into(), &"red".into()), "{text}");
    assert_eq!(check["findings"].as_array().map(Vec::len), Some(3), "{text}");
    assert_eq!(check["findings"][0]["mend"], "sudo ifconfig bridge0 deletem en2");
    let (status, text, _) = doctor(&["--replay", &recording("mac-mini-m4-thunderbolt4")]);
    assert_eq!(status, 0, "yellow is no failure: {text}");
}

#[test]
fn faults_of_software_devices_are_found_through_the_verbs_library() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let (file, dir) = (path("fabric.toml"), path("shared"));
    let fabric = "
        profile = 'apple-tb5'
        [[node]]
        name = 'mac'
        device = [{ name = 'rdma_en2', gid_index = 3 }, { name = 'rdma_en5', gid = 'missing' }]
        [[cable]]
        ends = ['mac/rdma_en2', 'mac/rdma_en2']
        [[cable]]
        ends = ['mac/rdma_en5', 'mac/rdma_en5']
    ";
    std::fs::write(&file, fabric).expect("writable");
    let run = ["fabric", "run", "--fabric", &file, "--dir", &dir, "--node", "0", "--", TBCCL, "doctor"];
    let mut command = tbccl_with_software_device();
    let (status, text, stderr) = outcome(command.args(run).args(["--check", "gid,limits,domain", "--json"]));
    // `fabric run` tells the status of its only rank.
    assert!(status == 1 && stderr.ends_with("exited with status 1\n"), "{stderr}");
    let whole: Value = serde_json::from_str(&text).expect("JSON");
    let seen = |check: usize, finding: usize| whole["checks"][check]["findings"][finding]["seen"].as_str();
    assert!(seen(0, 0).is_some_and(|seen| seen.contains("is at index 3 of rdma_en2")), "{text}");
    assert!(
        seen(0, 1).is_some_and(|seen| seen.starts_with("rdma_en5 has no GID with an IPv4 address")),
        "{text}"
    );
    assert_eq!(whole["checks"][1]["verdict"], "green", "{text}");
    assert_eq!(whole["checks"][2]["verdict"], "green", "{text}");
}

/// Runs `tbccl doctor --check gid` on a Mac of the software device; its port's GID is as the text says.
fn check_gid(gid: &str, wait: &str) -> (i32, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let (file, dir) = (path("fabric.toml"), path("shared"));
    let fabric = format!(
        "profile = 'apple-tb5'\n[[node]]\nname = 'mac'\ndevice = [{{ name = 'rdma_en2', {gid} }}]\n\
         [[cable]]\nends = ['mac/rdma_en2', 'mac/rdma_en2']\n"
    );
    std::fs::write(&file, fabric).expect("writable");
    let run = ["fabric", "run", "--fabric", &file, "--dir", &dir, "--node", "0", "--", TBCCL, "doctor"];
    let mut command = tbccl_with_software_device();
    let (status, text, _) = outcome(command.args(run).args(["--check", "gid", "--address-wait", wait]));
    (status, text)
}

#[test]
fn an_address_that_comes_late_is_waited_for_and_one_that_stays_missing_says_for_how_long() {
    let (status, text) = check_gid("gid = 'late', gid_after_ms = 2500", "60");
    assert_eq!(status, 0, "{text}");
    assert!(text.starts_with("green   gid "), "{text}");
    let (status, text) = check_gid("gid = 'missing'", "1");
    assert_eq!(status, 1, "{text}");
    let rest = text.split_once("rdma_en2 has no GID with an IPv4 address after ").expect("the finding").1;
    let seconds: f64 = rest.split_once(" s, since ").expect("a time").0.parse().expect("a number");
    assert!(seconds >= 1.0, "{text}");
    let (status, text) = check_gid("gid = 'missing'", "0");
    assert!(status == 1 && text.contains("with an IPv4 address, since "), "{text}");
}

#[test]
fn wrong_usage_is_answered_with_the_nearest_name() {
    let (status, _, stderr) = doctor(&["--check", "brige"]);
    assert_eq!((status, stderr.lines().count()), (2, 1), "{stderr}");
    assert!(stderr.contains("brige") && stderr.contains("`bridge`"), "{stderr}");
    let (status, _, stderr) = doctor(&["--replay", "/no/such/file"]);
    assert!(status == 2 && stderr.contains("the recording /no/such/file: "), "{stderr}");
    let (status, text, _) = doctor(&["--list"]);
    assert!(status == 0 && text.contains("memlock"), "{text}");
}
