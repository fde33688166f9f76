//! The log of a job (`TBCCL_LOG`): its facts, its files and its filters.

use crate::TBCCL;
use serde_json::Value;
use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

/// Runs a job of two ranks that makes a few calls; returns its exit status and its stderr.
fn job(variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = Command::new(TBCCL);
    command.args([
        "bench",
        "all_reduce",
        "--ranks",
        "2",
        "-b",
        "64K",
        "-e",
        "64K",
        "-n",
        "2",
        "--tries",
        "1",
    ]);
    command.env("TBCCL_CALIBRATE", "0").envs(variables.iter().copied()).stdin(Stdio::null());
    let Output { status, stderr, .. } = command.output().expect("the program was built for this test");
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

/// Runs a job that writes its log to the folder, and returns the log of each rank.
fn logs(folder: &Path, name: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let file = folder.join(name);
    let mut all = vec![("TBCCL_LOG_FILE", file.to_str().expect("a path"))];
    all.extend(variables);
    let (status, stderr) = job(&all);
    assert_eq!((status, stderr.as_str()), (Some(0), ""));
    let mut names: Vec<_> = fs::read_dir(folder).expect("ours").flatten().map(|entry| entry.path()).collect();
    names.sort();
    names.iter().map(|name| fs::read_to_string(name).expect("ours")).collect()
}

#[test]
fn info_tells_the_facts_of_a_job_in_about_twenty_lines_per_rank() {
    for (transport, facts) in [
        ("shm", &["transport shm", "messages may be read by system call"][..]),
        ("tcp", &["transport tcp", "listens at [127.0.0.1:"][..]),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let found =
            logs(folder.path(), "rank%r.log", &[("TBCCL_LOG", "info"), ("TBCCL_TRANSPORT", transport)]);
        assert_eq!(found.len(), 2);
        for (rank, log) in found.iter().enumerate() {
            let first = format!("INFO tbccl::init: tbccl {}, rank {rank} of 2 on", env!("CARGO_PKG_VERSION"));
            let general = [
                first.as_str(),
                "INFO tbccl::init: options that are set: TBCCL_",
                " TBCCL_LOG=info TBCCL_LOG_FILE=/",
                "tbccl::bootstrap: joins at unix",
                "joined in ",
                "the launcher runs the rendezvous; ranks by host: ",
                ": 0-1\n",
                "tbccl::calibration: thresholds by defaults: ",
                "tbccl::selection: algorithms by thresholds",
                "tbccl::selection: all_reduce of 65536 B per block: ",
                "communicator closed: ",
            ];
            for fact in general.iter().chain(facts) {
                assert!(log.contains(fact), "{fact} is missing:\n{log}");
            }
            assert!((10..=25).contains(&log.lines().count()), "{log}");
        }
    }
}

#[test]
fn a_log_of_json_has_an_object_per_line_and_a_file_per_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let variables =
        [("TBCCL_LOG", "warn,tbccl::tcp=debug"), ("TBCCL_LOG_FORMAT", "json"), ("TBCCL_TRANSPORT", "tcp")];
    let found = logs(folder.path(), "%r-%h-%p.json", &variables);
    assert_eq!(found.len(), 2);
    for (rank, log) in found.iter().enumerate() {
        let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        assert!(lines.iter().all(|line| line["target"] == "tbccl::tcp" && line["rank"] == rank), "{log}");
        let is_listening = |line: &Value| {
            line["level"] == "info"
                && line["message"].as_str().is_some_and(|text| text.starts_with("listens"))
        };
        assert!(lines.iter().any(is_listening), "{log}");
    }
}

#[test]
fn without_a_log_a_job_prints_nothing_on_stderr() {
    assert_eq!(job(&[("TBCCL_LOG", "")]), (Some(0), String::new()));
}

#[test]
fn a_filter_that_is_wrong_is_an_error_that_names_the_nearest_level() {
    for (name, value, hint) in [
        ("TBCCL_LOG", "inof", "did you mean `info`?"),
        ("TBCCL_LOG", "info,tbccl::verb=debug", "did you mean `tbccl::verbs`?"),
        ("TBCCL_LOG_FORMAT", "xml", "must be text or json"),
    ] {
        let (status, stderr) = job(&[(name, value)]);
        assert_eq!(status, Some(2), "{stderr}");
        assert!(stderr.starts_with(&format!("tbccl: error: {name}={value}: ")), "{stderr}");
        assert!(stderr.contains(hint) && stderr.lines().count() == 1, "{stderr}");
    }
}

#[test]
fn a_log_that_cannot_be_written_goes_to_stderr() {
    let (status, stderr) = job(&[("TBCCL_LOG", "info"), ("TBCCL_LOG_FILE", "/nowhere/at/all")]);
    assert_eq!(status, Some(0), "{stderr}");
    assert!(stderr.contains("tbccl: warning: can't write the log to /nowhere/at/all: "), "{stderr}");
    assert!(stderr.contains("rank 1 INFO tbccl::init: tbccl "), "{stderr}");
}
