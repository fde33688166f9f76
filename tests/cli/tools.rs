//! The scripts under `tools/` that need a nightly toolchain.

use std::{fs, os::unix::fs::PermissionsExt, process::Command};

/// Returns the exit status and the errors of a script that finds this `rustc`, as a shell script.
fn run_with(script: &str, rustc: &str) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("rustc");
    fs::write(&program, format!("#!/bin/sh\n{rustc}\n")).expect("our folder");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("our file");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").expect("a path"));
    let mut command = Command::new(format!("{}/tools/{script}", env!("CARGO_MANIFEST_DIR")));
    let output = command.env("PATH", path).env("NIGHTLY", "some-day").output().expect("it starts");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_script_that_lacks_a_toolchain_names_the_command_that_installs_it() {
    for script in ["fuzz", "miri", "tsan"] {
        let (status, text) = run_with(script, "exit 1");
        let expected =
            format!("{script}: a nightly toolchain is missing: rustup toolchain install nightly\n");
        assert_eq!((status, text), (Some(2), expected));
    }
}

#[test]
fn a_script_that_lacks_the_source_of_the_standard_library_names_the_command_that_installs_it() {
    let (status, text) = run_with("tsan", "echo /nowhere");
    let expected = "tsan: a component is missing: rustup component add rust-src --toolchain some-day\n";
    assert_eq!((status, text.as_str()), (Some(2), expected));
}
