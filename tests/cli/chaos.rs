//! `tbccl chaos`: short campaigns with fixed seeds, and the report of a violation.

use serde_json::Value;
use std::process::Output;

/// Runs a campaign.
fn chaos(args: &[&str]) -> Output {
    let mut command = support::tbccl_with_software_device();
    command.arg("chaos").args(args).output().expect("it starts")
}

/// Runs a campaign of a third of a minute that violates no rule; returns its summary.
fn campaign(seed: &str, transports: &str, faults: &[&str]) -> Value {
    let args = ["--minutes", "0.33", "--seed", seed, "--transport", transports, "--json", "-"];
    let output = chaos(&[&args, faults].concat());
    let lines: Vec<Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let violating: Vec<&Value> = lines
        .iter()
        .filter(|line| line["violations"].as_array().is_some_and(|all| !all.is_empty()))
        .collect();
    assert!(violating.is_empty(), "{violating:#?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), stderr.as_ref()), (Some(0), ""));
    lines.last().expect("a summary").clone()
}

#[test]
fn a_campaign_over_shared_memory_and_tcp_finds_nothing() {
    let summary = campaign("1", "shm,tcp,shm+tcp", &[]);
    assert!(summary["rounds"].as_u64().is_some_and(|rounds| rounds >= 3), "{summary}");
    assert_eq!(summary["failing_rounds"], 0);
}

#[test]
fn a_campaign_over_software_devices_finds_nothing() {
    let summary = campaign("1", "verbs,shm+verbs", &[]);
    assert!(summary["rounds"].as_u64().is_some_and(|rounds| rounds >= 3), "{summary}");
}

/// No rank joins within a millisecond, and no fault excuses that.
#[test]
fn a_violation_is_printed_with_the_command_that_repeats_it() {
    let args =
        ["--round", "0", "--seed", "5", "--transport", "tcp", "--faults", "pause", "--timeout", "0.001"];
    let output = chaos(&args);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let again = "again: tbccl chaos --seed 5 --round 0 --timeout 0.001 --transport tcp --faults pause\n";
    assert!(text.contains("violation: process 0 failed to join without a fault"), "{text}");
    assert!(text.contains(again), "{text}");
}

#[test]
fn a_round_leaves_no_folder() {
    let output = chaos(&["--round", "3", "--transport", "shm"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    let user = rustix::process::getuid().as_raw();
    let prefix = format!("chaos-{user}-");
    let folders = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let is_orphan = |name: &str| {
        let owner = name.strip_prefix(&prefix).and_then(|owner| owner.parse::<i32>().ok());
        owner.is_some_and(|owner| !std::path::Path::new(&format!("/proc/{owner}")).exists())
    };
    let left: Vec<_> = folders.filter(|f| is_orphan(&f.file_name().to_string_lossy())).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn names_that_are_misspelt_are_answered_with_the_nearest() {
    for (args, nearest) in [
        (["--faults", "kil"], "kill"),
        (["--transport", "auto"], "shm+tcp"),
        (["--fabric", "usb3,ib"], "usb4"),
    ] {
        let output = chaos(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.starts_with("tbccl: error: ") && text.contains(nearest), "{text}");
    }
}
