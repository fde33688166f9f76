//! Each check of a device or a connection fails when its rule is broken: by settings of the software device
//! where it has such, and otherwise by a library that breaks the rule.

use super::{Tested, broken, fabric, test_on};
use std::{collections::BTreeSet, time::Instant};

/// Runs one check with a fault.
fn with_fault(profile: &str, fault: &str, check: &str) -> Tested {
    test_on(&fabric(profile, "", ""), &["--only", check, "--limit", "20"], |command| {
        command.env("SOFTRDMA_LIB", broken::library()).env("TBCCL_TEST_FAULT", fault);
    })
}

/// Checks that fail with a fault: profile, fault, check, and words of the line.
const FAULTS: &[(&str, &str, &str, &str)] = &[
    ("apple-tb5", "no-limits", "attributes", "reports no limits"),
    ("apple-tb5", "no-pairs", "capabilities", "making a queue pair"),
    ("apple-tb5", "slow-port", "port-queries", "us each"),
    ("apple-tb5", "few-pairs", "queue-pairs", "only 4 of 10"),
    ("apple-tb5", "shallow", "depths", "100 granted"),
    ("apple-tb5", "ghost", "empty-polls", "never posted"),
    ("apple-tb5", "slow-polls", "empty-polls", "enters the kernel"),
    ("apple-tb5", "few-regions", "regions", "only 50 of 100"),
    ("apple-tb5", "line", "registration", "pages that end at a 4 GiB line"),
    ("ib", "leak", "reopening", "cycle 10 of 20"),
    ("apple-tb5", "frame-lengths", "lengths", "completes with 4096 bytes"),
    ("apple-tb5", "order", "order", "out of order"),
    ("ib", "signals", "signals", "out of order"),
    ("apple-tb5", "lost-1000", "early-send", "completed within"),
    ("ib", "lazy-inline", "inline", "damaged"),
    ("usb4", "silent", "events", "no event within"),
    ("apple-tb5", "damage", "receive-depth", "damaged from byte 0"),
    ("apple-tb5", "stall", "independent-queues", "beside one that waits"),
    ("ib", "no-reset", "reset", "resetting a queue pair failed with EINVAL"),
    ("apple-tb5", "crash-48", "gone-peer", "killed by SIGSEGV, while rank 0: posting to a queue pair"),
    ("usb4", "leak", "reconnection", "ENODATA"),
    // The trailer of a lost piece does not fit the receive of the piece, if it gets there.
    ("apple-tb5", "lost-pieces", "pieces", "nothing moves any more|LOC_LEN_ERR"),
    ("ib", "late", "late-registration", "registering 4096 bytes"),
    ("apple-tb5", "line", "line", "registering 65536 bytes"),
    ("usb4", "shared", "shared-memory", "registering 1048576 bytes"),
    ("ib", "number", "remote-write", "came as"),
    ("usb4", "no-rights", "remote-write", "EINVAL"),
];

/// Runs a part of the table, since tests run in parallel.
fn check_part(part: usize, parts: usize) {
    for (profile, fault, check, words) in FAULTS.iter().skip(part).step_by(parts) {
        let tested = with_fault(profile, fault, check);
        let (verdict, text) = tested.check(&format!("/{check}"));
        let is_told = words.split('|').any(|words| text.contains(words));
        assert!(verdict == "fail" && is_told, "{fault}: {verdict}: {text}\n{}", tested.file);
        assert_eq!(tested.status, 1, "{fault}: {tested:?}");
    }
}

#[test]
fn a_broken_rule_is_a_failure_of_its_check_1_of_2() {
    check_part(0, 2);
}

#[test]
fn a_broken_rule_is_a_failure_of_its_check_2_of_2() {
    check_part(1, 2);
}

/// The search once failed on a busy machine, and the report advised to connect a second host.
#[test]
fn checks_without_a_cable_tell_why_the_search_has_found_none() {
    let fabric = fabric("apple-tb5", "", "");
    let apart = fabric.split("[[cable]]").next().expect("nodes");
    let tested = test_on(apart, &["--only", "line"], |_| ());
    let (verdict, text) = tested.check("/line");
    let why = "no cable was found: 0 of 0 pairs of devices are connected by a cable";
    assert!(verdict == "unknown" && text.contains(why), "{verdict}: {text}");
}

/// Settings of the software device that break a rule.
#[test]
fn a_device_of_other_limits_or_addresses_is_noticed() {
    for (settings, link, check, verdict, words) in [
        (", usable_depth = 100", "", "receives-before-connection", "fail", "only 100 of 160 receives"),
        (", gid = 'missing'", "", "gid", "fail", "no IPv4 address"),
        (", port = 'down'", "", "port", "unknown", "DOWN"),
        (", idle_ms = 50", "", "idle", "fail", "completed within"),
        ("", "loss = 1.0", "cables", "fail", "messages don't pass"),
    ] {
        let tested = test_on(&fabric("apple-tb5", settings, link), &["--only", check], |_| ());
        let name = if check == "cables" { "/x0--x1".to_owned() } else { format!("/{check}") };
        let (found, text) = tested.check(&name);
        assert!(found == verdict && text.contains(words), "{check}: {found}: {text}\n{}", tested.file);
        assert_eq!(tested.status, i32::from(verdict == "fail"), "{tested:?}");
    }
}

#[test]
fn the_page_has_every_check_with_its_reason() {
    let output = support::tbccl().args(["selftest", "--list"]).output().expect("it starts");
    let list = String::from_utf8(output.stdout).expect("text");
    let page = include_str!("../../../docs/selftest.md");
    let checks = list.lines().filter_map(|line| line.strip_prefix("  ")?.split_once(": "));
    for (name, relies) in checks {
        assert!(page.contains(&format!("| `{name}` | {relies} |")), "docs/selftest.md: {name}: {relies}");
    }
}

/// The check of link-local addresses never fails, since nothing relies on them.
#[test]
fn every_check_of_devices_and_connections_has_a_fault() {
    let output = support::tbccl().args(["selftest", "--list"]).output().expect("it starts");
    let list = String::from_utf8(output.stdout).expect("text");
    let listed: BTreeSet<&str> = list
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.split_once(':'))
        .map(|(name, _)| name)
        .collect();
    let elsewhere = ["receives-before-connection", "gid", "port", "idle", "link-local"];
    let tested: BTreeSet<&str> = FAULTS.iter().map(|(_, _, check, _)| *check).chain(elsewhere).collect();
    assert_eq!(listed, tested);
    let tested = with_fault("apple-tb5", "no-link-local", "link-local");
    assert_eq!(tested.check("/link-local").0, "unknown", "{tested:?}");
}

#[test]
fn a_crash_and_a_hang_of_the_driver_are_lines_of_the_report() {
    let crashed = with_fault("apple-tb5", "crash", "registration");
    let (verdict, text) = crashed.check("x0/registration");
    assert!(verdict == "fail" && text.contains("killed by SIGSEGV, while"), "{text}");
    let began = Instant::now();
    let hung =
        test_on(&fabric("apple-tb5", "", ""), &["--only", "port,order", "--limit", "0.5"], |command| {
            command.env("SOFTRDMA_LIB", broken::library()).env("TBCCL_TEST_FAULT", "hang");
        });
    let (verdict, text) = hung.check("x0/port");
    assert!(verdict == "fail" && text.contains("not done after 1 s, while opening the device"), "{text}");
    assert!(hung.status == 1 && began.elapsed().as_secs() < 20, "{hung:?}");
}
