//! Complete tests on every kind of device; the file, interrupts and errors.

use super::{fabric, test_on, tested};
use std::{
    fs,
    time::{Duration, Instant},
};
use support::{Process, eventually, tbccl, tbccl_with_software_device};

/// Runs all sections on a profile.
fn whole(profile: &str) {
    let tested = test_on(&fabric(profile, "", ""), &[], |command| {
        command.env("TBCCL_SECRET", "0123456789abcdef0123456789abcdef").env("USER", "adalovelace");
    });
    assert_eq!((tested.status, tested.names("fail"), tested.stderr.as_str()), (0, vec![], ""), "{tested:?}");
    let passed = tested.names("pass");
    for name in ["devices/x0/queue-pairs", "cables/x0--x1", "assumptions/order", "speed/sizes"] {
        assert!(passed.contains(&name), "{name}: {tested:?}");
    }
    for name in ["collectives/all_reduce", "messages/tagged", "unplug/cable", "failures/killed-rank"] {
        assert!(passed.contains(&name), "{name}: {tested:?}");
    }
    // The same lines are on stdout, in the file, and in its JSON.
    for line in tested.stdout.lines().filter(|line| line.starts_with("pass ")) {
        assert!(tested.file.contains(line), "{line}: {tested:?}");
    }
    assert!(tested.file.contains("tbccl relies on: the k-th send meets the k-th receive"), "{tested:?}");
    assert!(tested.json["summary"]["fail"] == 0 && tested.json["summary"]["interrupted"] == false);
    for private in ["0123456789abcdef0123456789abcdef", "adalovelace"] {
        assert!(!tested.file.contains(private) && !tested.stdout.contains(private), "{private}: {tested:?}");
    }
    let has_frames = profile == "apple-tb5";
    assert_eq!(passed.contains(&"assumptions/pieces"), has_frames, "{tested:?}");
    assert_eq!(passed.contains(&"assumptions/remote-write"), !has_frames, "{tested:?}");
}

#[test]
fn nothing_fails_on_devices_like_those_of_macs() {
    whole("apple-tb5");
}

#[test]
fn nothing_fails_on_usb4_devices() {
    whole("usb4");
}

#[test]
fn nothing_fails_on_adapters() {
    whole("ib");
}

#[test]
fn without_devices_everything_about_them_is_unknown_and_the_rest_is_tested() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("report.txt");
    let mut command = tbccl();
    command.args(["selftest", "--quick", "--skip", "mlx,torch,speed", "--out"]).arg(&out);
    command.env("TBCCL_VERBS_LIB", "/there/is/no/libverbs.so");
    let tested = tested(&command.output().expect("it starts"), &out);
    assert_eq!((tested.status, tested.names("fail")), (0, vec![]), "{tested:?}");
    assert_eq!(tested.check("assumptions/order").0, "unknown");
    assert!(tested.names("pass").contains(&"collectives/all_reduce"), "{tested:?}");
}

#[test]
fn an_interrupt_leaves_a_file_that_says_so() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, out) = (folder.path().join("fabric.toml"), folder.path().join("report.txt"));
    fs::write(&file, fabric("apple-tb5", "", "")).expect("writable");
    let mut command = tbccl_with_software_device();
    command.args(["selftest", "--fabric"]).arg(&file).arg("--out").arg(&out);
    let process = Process::start(command);
    let is_there = |text: &str| fs::read_to_string(&out).unwrap_or_default().contains(text);
    eventually("the first line of a device", || is_there("devices/x0/attributes"));
    process.signal(rustix::process::Signal::INT);
    let done = process.finish_within(Duration::from_secs(30));
    assert_eq!(done.code(), 130, "{}", done.stderr);
    assert!(is_there("s, interrupted\n") && is_there("\"interrupted\": true"));
}

#[test]
fn a_full_disk_loses_nothing() {
    let mut command = tbccl();
    command.args(["selftest", "--only", "machine", "--out", "/dev/full"]);
    let output = command.env("TBCCL_VERBS_LIB", "/there/is/no/libverbs.so").output().expect("it starts");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stdout}{stderr}");
    assert!(stderr.contains("/dev/full: ") && stderr.contains("printed on stdout instead"), "{stderr}");
    let (_, json) = stdout.split_once("---- the same as JSON ----").expect("the whole report");
    let json: serde_json::Value = serde_json::from_str(json).expect("JSON");
    assert!(json["checks"].as_array().is_some_and(|checks| checks.len() >= 4), "{stdout}");
}

#[test]
fn wrong_arguments_are_refused_in_one_line() {
    let began = Instant::now();
    for (arguments, expected) in [
        (&["--only", "odrer"][..], "unknown check `odrer`, did you mean `order`?"),
        (&["--hostfile", "/there/is/none"], "the hostfile /there/is/none: "),
        (&["--fabric", "/there/is/none"], "/there/is/none"),
        (&["--out", "/there/is/no/folder/x"], "name another file with --out"),
        (&["-n", "0"], "at least one rank"),
        (&["--fabric", "x", "--hosts", "a,b"], "cannot be used with"),
    ] {
        let output =
            tbccl_with_software_device().arg("selftest").args(arguments).output().expect("it starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), stderr.lines().count()), (Some(2), 1), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("tbccl: error: ") && stderr.contains(expected), "{stderr}");
    }
    let output = tbccl().args(["selftest"]).env("TBCCL_SIZE", "2").output().expect("it starts");
    assert!(String::from_utf8_lossy(&output.stderr).contains("starts its own ranks"));
    assert!(began.elapsed() < Duration::from_secs(30));
}
