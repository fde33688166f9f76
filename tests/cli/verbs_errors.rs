//! Error messages of the verbs transport: one line with rank, device and remedy.

use std::{
    process::Output,
    time::{Duration, Instant},
};
use support::tbccl_with_software_device as tbccl;

const BARRIER: &str = "exec $TBCCL bench barrier -n 2 --transport verbs";
const ERROR_PREFIX: &str = "tbccl: error: ";

/// Runs a shell script on each node of a fabric, with a device matrix in the file `$MATRIX`.
fn run_on_nodes(fabric: &str, matrix: &str, script: &str) -> Output {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("writable");
        path
    };
    let (fabric, matrix) = (write("fabric.toml", fabric), write("matrix.json", matrix));
    let mut tbccl = tbccl();
    tbccl.args(["fabric", "run", "--timeout", "60"]).arg("--fabric").arg(fabric);
    tbccl
        .arg("--dir")
        .arg(folder.path().join("shared"))
        .args(["--", "sh", "-c", script])
        .env("MATRIX", matrix);
    tbccl.output().expect("it starts")
}

/// Returns the error lines of ranks, without their prefix; asserts that the status is 2.
fn errors(output: &Output) -> Vec<String> {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    let lines: Vec<String> =
        stderr.lines().filter_map(|line| line.strip_prefix(ERROR_PREFIX)).map(str::to_owned).collect();
    assert!(
        !lines.is_empty() && !stderr.contains(": rank 0: rank 0") && !stderr.contains(": rank 1: rank 1"),
        "{stderr}"
    );
    lines
}

/// Returns a fabric of two Macs with two cables; `first` adds keys to the first device.
fn pair(first: &str) -> String {
    format!(
        "profile = 'apple-tb5'
        [[node]]
        name = 'a'
        device = [{{ name = 'en2'{first} }}, {{ name = 'en3' }}]
        [[node]]
        name = 'b'
        device = [{{ name = 'en2' }}, {{ name = 'en3' }}]
        [[cable]]
        ends = ['a/en2', 'b/en2']
        [[cable]]
        ends = ['a/en3', 'b/en3']"
    )
}

/// Asserts that a line contains all of these parts.
fn assert_error_line(errors: &[String], parts: &[&str]) {
    let fits = |line: &String| parts.iter().all(|part| line.contains(part));
    assert!(errors.iter().any(fits), "no line with {parts:?}: {errors:#?}");
}

#[test]
fn a_library_that_is_missing_or_none_is_named_by_each_rank() {
    for (library, parts) in [
        ("/no/such/library.so", ["rank 1 on ", "/no/such/library.so can't be loaded", "set TBCCL_VERBS_LIB"]),
        (
            "libc.so.6",
            ["rank 1 on ", "libc.so.6 has no function ibv_get_device_list", "TBCCL_VERBS_LIB is not set"],
        ),
    ] {
        let bench = ["bench", "barrier", "--ranks", "2", "-n", "2", "--transport", "verbs"];
        let output = tbccl().args(bench).env("TBCCL_VERBS_LIB", library).output().expect("it starts");
        assert_error_line(&errors(&output), &parts);
    }
}

#[test]
fn devices_that_can_not_be_used_are_named_with_the_remedy() {
    let no_device = pair("").replace("device = [{ name = 'en2' }, { name = 'en3' }]", "device = []");
    let no_device = no_device.split("[[cable]]").next().expect("nodes").to_owned();
    let single = "profile = 'apple-tb5'
        [[node]]
        name = 'a'
        device = [{ name = 'en2', port = 'down' }]
        [[node]]
        name = 'b'
        device = [{ name = 'en2' }]
        [[cable]]
        ends = ['a/en2', 'b/en2']";
    let leak = format!("$TBCCL fabric fault leak a/en3 && {BARRIER}");
    for (fabric, script, parts) in [
        (no_device.as_str(), BARRIER, ["rank 0 on ", "knows no RDMA device: ", "or set TBCCL_VERBS_LIB"]),
        (single, BARRIER, ["rank 0: ", "the port is down (en2); ", "plug in the cable"]),
        (&pair(""), &leak, ["rank 0 on ", "en3/1: making a protection domain failed", "restart the machine"]),
    ] {
        assert_error_line(&errors(&run_on_nodes(fabric, "", script)), &parts);
    }
}

#[test]
fn choices_that_leave_no_device_or_no_address_are_named_with_what_there_is() {
    for (variable, parts) in [
        ("TBCCL_RDMA_DEVICES=mlx*", ["rank 0: ", "TBCCL_RDMA_DEVICES=mlx* selects none", "en2, en3"]),
        ("TBCCL_GID_INDEX=7", ["rank 1", "no address at GID index 7 (TBCCL_GID_INDEX)", "0: fe80::"]),
        ("TBCCL_SERVICE_LEVEL=16", ["TBCCL_SERVICE_LEVEL", "16", "must be from 0 to 15"]),
    ] {
        let script = format!("{variable} TBCCL_TIMEOUT=1 {BARRIER}");
        assert_error_line(&errors(&run_on_nodes(&pair(""), "", &script.replace("exec ", ""))), &parts);
    }
}

#[test]
fn a_selection_of_devices_leaves_the_cables_of_others_idle() {
    let rails = |variable: &str| {
        let script = format!("{variable} $TBCCL ping --transport verbs --size 64K --time 0.01 --json");
        let output = run_on_nodes(&pair(""), "", &script);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ["en2", "en3"].map(|device| text.matches(&format!("\"{device}\"")).count() > 0)
    };
    assert_eq!(rails("TBCCL_GID_INDEX=0"), [true, true]);
    assert_eq!(rails("TBCCL_RDMA_DEVICES=^en3"), [true, false]);
    assert_eq!(
        rails("TBCCL_SERVICE_LEVEL=3 TBCCL_TRAFFIC_CLASS=104 TBCCL_RDMA_DEVICES='en3'"),
        [false, true]
    );
}

#[test]
fn cables_that_lead_elsewhere_are_named_with_both_ends() {
    let apart = pair("").replace("'b/en2']", "'a/en3']").replace("['a/en3', 'b/en3']", "['b/en2', 'b/en3']");
    let apart = errors(&run_on_nodes(&apart, "", BARRIER));
    assert_error_line(
        &apart,
        &[": none of its devices (en2, en3) reaches one of rank", "; check that there is a cable"],
    );
    let script = format!("TBCCL_IBV_DEVICES=$MATRIX {BARRIER}");
    for (matrix, parts) in [
        (r#"[[null, "en2"], ["en3", null]]"#, [" of rank 0", "leads elsewhere", "device matrix"]),
        (
            r#"[[null, "en7"], ["en2", null]]"#,
            ["rank 0: the device matrix names an unknown", "`en7`", "known: en2, en3"],
        ),
        (r#"[[null, "en2"], [null, null]]"#, ["matrix.json", "row 0, column 1", "name both"]),
        ("{", ["matrix.json", "is not JSON", "line 1"]),
    ] {
        assert_error_line(&errors(&run_on_nodes(&pair(""), matrix, &script)), &parts);
    }
    let gone = format!("TBCCL_IBV_DEVICES=$MATRIX.gone {BARRIER}");
    assert_error_line(
        &errors(&run_on_nodes(&pair(""), "", &gone)),
        &["matrix.json.gone: the device matrix can't be read", "TBCCL_IBV_DEVICES"],
    );
}

#[test]
fn a_device_without_queue_pairs_for_all_ranks_is_named_with_the_remedy() {
    // All ranks on one node, with a loopback plug.
    let loopback = "profile = 'apple-tb5'
        [[node]]
        name = 'a'
        device = [{ name = 'en2' }]
        [[cable]]
        ends = ['a/en2', 'a/en2']";
    let alone = "unset TBCCL_SIZE TBCCL_RANK TBCCL_BOOTSTRAP TBCCL_LOCAL_RANK TBCCL_LOCAL_SIZE \
    TBCCL_NODE_RANK; \
                 exec $TBCCL bench barrier -n 2 --transport verbs --ranks";
    // Each rank alone could get its queue pairs, but not all ranks together.
    let four = errors(&run_on_nodes(loopback, "", &format!("{alone} 4")));
    assert_error_line(
        &four,
        &["en2/1: making a queue pair (UC) failed with EBUSY", "are taken", "fewer ranks on this machine"],
    );
}

/// Runs all-reduces on three Macs in a mesh; rank 0 executes `fault` meanwhile.
fn while_running(fault: &str) -> (Output, Duration) {
    let mesh = "profile = 'apple-tb5'
        [[node]]
        name = 'a'
        device = [{ name = 'en2' }, { name = 'en3' }]
        [[node]]
        name = 'b'
        device = [{ name = 'en2' }, { name = 'en3' }]
        [[node]]
        name = 'c'
        device = [{ name = 'en2' }, { name = 'en3' }]
        [[cable]]
        ends = ['a/en2', 'b/en2']
        [[cable]]
        ends = ['a/en3', 'c/en2']
        [[cable]]
        ends = ['b/en3', 'c/en3']";
    let script = format!(
        "echo $$ > $SOFTRDMA_DIR/$TBCCL_RANK\n\
         [ $TBCCL_RANK = 0 ] && {{ (until [ -s $SOFTRDMA_DIR/report ]; do sleep 0.02; done; sleep 0.3; \
         {fault}) & }}\n\
         exec $TBCCL bench all_reduce -b 256K -e 256K --time 20 --transport verbs >> $SOFTRDMA_DIR/report"
    );
    let start = Instant::now();
    (run_on_nodes(mesh, "", &script), start.elapsed())
}

#[test]
fn a_broken_cable_is_told_of_the_peer_that_it_leads_to() {
    let (output, elapsed) = while_running("$TBCCL fabric fault unplug b/en3");
    assert!(elapsed < Duration::from_secs(15), "{elapsed:?}");
    let lines = errors(&output);
    let rank = |line: &str, before: &str| {
        line.split(before).nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok())
    };
    for line in &lines {
        let (link, cable) = (rank(line, "the link to rank "), rank(line, "no cable to rank "));
        assert!(link.is_some() && link == cable, "{line}");
    }
    // The error names both ends, the state of the port, and the remedy.
    assert_error_line(
        &lines,
        &["en3 of rank 1", "en3 of rank 2", "our port is DOWN", "check the cables and the ports"],
    );
}

#[test]
fn a_dead_process_is_told_of_rather_than_its_cables() {
    let (output, elapsed) = while_running("kill -9 $(cat $SOFTRDMA_DIR/2)");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(elapsed < Duration::from_secs(15) && output.status.code() == Some(137), "{stderr}");
    let lines: Vec<&str> = stderr.lines().filter_map(|line| line.strip_prefix(ERROR_PREFIX)).collect();
    assert_eq!(lines.len(), 2, "{stderr}");
    for line in lines {
        assert!(line.contains("rank 2 (process ") && line.contains("was killed by SIGKILL"), "{line}");
    }
}
