//! Fabric folders that are read-only, full or of another version.
//!
//! Programs get an error and one line on standard error, never a signal or a wrong byte. The tests mount
//! small and read-only file systems in namespaces of their own, which the system must permit.

mod common;

use std::{
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// Runs a script with a file system of its own at `$SOFTRDMA_DIR`. Returns `None` if the system does not
/// permit mounts.
fn mounted(options: &str, remap: bool, script: &str) -> Option<Output> {
    let folder = tempfile::tempdir().expect("a folder");
    let namespace = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
        command.env("SOFTRDMA_DIR", folder.path()).stdin(Stdio::null());
        for name in ["SOFTRDMA_FABRIC", "SOFTRDMA_NODE", "LD_LIBRARY_PATH"] {
            command.env_remove(name);
        }
        command
    };
    let mount = format!("mount -t tmpfs -o {options} none \"$SOFTRDMA_DIR\"");
    let allowed = namespace(&mount).output().ok()?;
    if !allowed.status.success() {
        support::missing(&format!("user namespaces: {}", String::from_utf8_lossy(&allowed.stderr)));
        return None;
    }
    let mut command = namespace(&format!("{mount} || exit 99\nexport LD_PRELOAD=\"$LIBRARY\"\n{script}"));
    command.env("LIBRARY", common::library()).env("SOFTRDMA_REMAP", if remap { "1" } else { "0" });
    Some(command.output().expect("a shell"))
}

fn lines(output: &Output) -> Vec<String> {
    let message = String::from_utf8_lossy(&output.stderr);
    message.lines().filter(|line| line.starts_with("softrdma: ")).map(str::to_owned).collect()
}

fn is_signal(output: &Output) -> bool {
    // A shell reports a signal as an exit status above 128.
    output.status.signal().is_some() || output.status.code().is_some_and(|code| code > 128)
}

/// The program creates all kinds of objects and fails only when it connects to its peer. It runs in folders
/// of many sizes.
#[test]
fn a_folder_without_room_is_an_error() {
    let (mut refused, mut short, mut enough) = (0, 0, 0);
    // Small steps around the size that just fits a process without queues.
    for kib in [4, 64, 256, 1024].into_iter().chain((1100..1700).step_by(40)).chain([4096, 16384]) {
        for remap in [false, true] {
            let script = "exec timeout 20 ibv_srq_pingpong -g 1 -q 4 -s 400000 -p 1 localhost";
            let Some(output) = mounted(&format!("size={kib}k"), remap, script) else { return };
            let (message, all) = (lines(&output), String::from_utf8_lossy(&output.stderr).into_owned());
            assert!(!is_signal(&output) && !output.status.success(), "{kib} KiB: {all}");
            if all.contains("Couldn't connect") {
                assert!(message.is_empty(), "{kib} KiB: {all}");
                enough += 1;
            } else if message.iter().any(|line| line.contains("is full; set SOFTRDMA_DIR")) {
                refused += 1;
            } else {
                assert!(message.iter().any(|line| line.ends_with("no room for a queue")), "{kib} KiB: {all}");
                short += 1;
            }
            assert!(message.len() < 2, "one line: {all}");
        }
    }
    assert!(refused > 0 && short > 0 && enough > 0, "{refused}, {short} and {enough}");
}

/// Without room, pages are not shared but stay private to the program.
#[test]
fn pages_without_room_are_not_shared_and_arrive_all_the_same() {
    let port = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    let port = port.expect("a port").port();
    let ping_pong = format!("timeout 30 ibv_rc_pingpong -g 1 -c -n 20 -s 3000000 -p {port}");
    let client = format!("for try in 1 2 3 4 5 6 7 8 9; do {ping_pong} localhost && break; sleep 0.3; done");
    let script = format!("{ping_pong} & {client}; wait $!");
    for size in ["4m", "64m"] {
        let Some(output) = mounted(&format!("size={size}"), true, &script) else { return };
        assert!(output.status.success(), "{size}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(lines(&output), [""; 0], "{size}");
    }
}

#[test]
fn a_folder_that_can_not_be_written_is_an_error() {
    let Some(output) = mounted("ro", false, "exec ibv_devinfo") else { return };
    let message = lines(&output);
    assert!(!output.status.success() && !is_signal(&output) && message.len() == 1, "{message:?}");
    assert!(message[0].contains("cannot use") && message[0].contains("Read-only file system"), "{message:?}");
    let tool = env!("CARGO_BIN_EXE_softrdma");
    let fabric = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/fabrics/ib-pair.toml");
    let script = format!("LD_PRELOAD= exec {tool} env --node 0 --fabric {}", fabric.display());
    let script = format!("{script} --dir $SOFTRDMA_DIR --lib $LIBRARY");
    let output = mounted("ro", false, &script).expect("it was possible before");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), message.lines().count()), (Some(2), 1), "{message}");
    assert!(message.contains("Read-only file system"), "{message}");
}

/// All commands report a folder of another version.
#[test]
fn a_folder_of_another_version_is_an_error() {
    let home = tempfile::tempdir().expect("a folder");
    let folder: PathBuf = home.path().join("run");
    let fabric = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/fabrics/ib-pair.toml");
    let program = |name: &str, arguments: &[&str]| {
        let mut command = Command::new(name);
        command.args(arguments).env("SOFTRDMA_DIR", &folder).env("SOFTRDMA_FABRIC", &fabric);
        command.env_remove("SOFTRDMA_NODE").env_remove("LD_LIBRARY_PATH");
        command
    };
    let device = || program("ibv_devinfo", &[]).env("LD_PRELOAD", common::library()).output();
    // A process leaves only the fabric's own file in a foreign folder; the second word of the file is the
    // version.
    std::fs::create_dir(&folder).expect("a folder");
    assert!(device().expect("ibverbs-utils").status.success());
    let path = folder.join("fabric");
    let mut bytes = std::fs::read(&path).expect("a file");
    bytes[8] ^= 0x40;
    std::fs::write(&path, bytes).expect("ours");
    let output = device().expect("ibverbs-utils");
    let message = lines(&output);
    assert!(!output.status.success() && message.len() == 1, "{message:?}");
    assert!(message[0].contains("another version"), "{message:?}");
    let place = folder.to_str().expect("text");
    for arguments in [["stat", "--dir", place], ["fault", "--dir", place]] {
        let mut tool = program(env!("CARGO_BIN_EXE_softrdma"), &arguments);
        let more: &[&str] = if arguments[0] == "fault" { &["unplug", "0"] } else { &[] };
        let fabric = fabric.to_str().expect("text");
        let output = tool.args(["--fabric", fabric]).args(more).env_remove("SOFTRDMA_FABRIC").output();
        let output = output.expect("it starts");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), message.lines().count()), (Some(2), 1), "{message}");
        assert!(message.contains("another version"), "{message}");
    }
}
