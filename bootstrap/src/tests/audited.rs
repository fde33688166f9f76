//! Entries of the audit for connections that no program of tbccl makes.
//!
//! A process has one audit, and other tests have their own strangers: the test runs in a process of its own.

use super::{strangers::at, *};
use crate::{unix::connect_to_name, wire::PROTOCOL};
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    process::Command,
};

/// Names the file of the audit in the process of the test.
const FILE: &str = "TBCCL_TEST_AUDIT";

/// Waits until the rendezvous ends a connection.
fn wait_for_end(mut stream: UnixStream) {
    stream.set_read_timeout(Some(SECOND * 5)).expect("a socket");
    let _ = stream.read_to_end(&mut Vec::new());
}

/// Connects as another user, as another version, and as a program that violates the protocol.
fn intrude(file: &Path) {
    events::open_audit(file).expect("our folder");
    let server = Server::start(&ServerSpec::local(2, None)).expect("a socket");
    let stranger = || connect_to_name(server.name()).expect("it listens");
    if let Some(stream) = support::as_another_user(stranger) {
        wait_for_end(stream);
    }
    let mut stream = stranger();
    stream.write_all(&[0xff; 300]).expect("sent");
    wait_for_end(stream);
    let newer = Hello { protocol: PROTOCOL + 1, ..hello(1, 2, 5000) };
    join(&at(server.name(), None), &newer).expect_err("another version");
    // Entries are written after the end of a connection.
    let until = Instant::now() + SECOND * 5;
    while events_of(file).len() < 3 && Instant::now() < until {
        thread::sleep(SECOND / 100);
    }
}

fn events_of(file: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let entry = |line: &str| {
        let entry: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let word = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        (word("event"), word("why"))
    };
    text.lines().map(entry).collect()
}

#[test]
fn other_users_other_versions_and_violations_are_told_apart() {
    if let Some(file) = std::env::var_os(FILE) {
        return intrude(Path::new(&file));
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("audit");
    let name = "tests::audited::other_users_other_versions_and_violations_are_told_apart";
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let output = command.args(["--exact", name]).env(FILE, &file).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let found = events_of(&file);
    let has = |event: &str, why: &str| found.iter().any(|entry| entry.0 == event && entry.1.contains(why));
    assert!(has("wrong_version", "use the same version of tbccl"), "{found:?}");
    assert!(has("violation", ""), "{found:?}");
    if support::as_another_user(|| ()).is_some() {
        assert!(has("other_user", "user"), "{found:?}");
    }
    assert!(!has("failed_proof", "") && !has("joined", ""), "{found:?}");
}
