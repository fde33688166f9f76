//! The command `softrdma`, on fabric files and on the folder of a fabric.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn softrdma() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softrdma"));
    for name in ["SOFTRDMA_DIR", "SOFTRDMA_FABRIC", "LD_PRELOAD"] {
        command.env_remove(name);
    }
    // Any existing file will do.
    command.env("SOFTRDMA_LIB", env!("CARGO_BIN_EXE_softrdma"));
    command
}

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/fabrics").join(name)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// Returns the output of a command that succeeds.
fn printed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("it starts");
    assert!(status.success(), "{command:?}: {}", text(&stderr));
    assert_eq!(text(&stderr), "");
    text(&stdout)
}

/// Returns the one-line error of a command that fails.
fn complaint(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("it starts");
    let message = text(&stderr);
    assert_eq!(
        (status.code(), stdout.len(), message.lines().count()),
        (Some(2), 0, 1),
        "{command:?}: {message}"
    );
    message.strip_prefix("softrdma: error: ").expect("our name").trim_end().to_owned()
}

#[test]
fn files_are_checked_and_listed() {
    let mesh = shipped("apple-tb5-mesh3.toml");
    let message = printed(softrdma().arg("check").arg(&mesh));
    assert_eq!(message, format!("{}: 3 nodes, 6 devices, 3 cables\n", mesh.display()));
    let message = printed(softrdma().arg("nodes").arg(&mesh));
    assert!(message.contains("rdma_en2     apple-tb5  169.254.1.1      -> mac1/rdma_en2"), "{message}");
    let message = printed(softrdma().args(["nodes", "--json"]).arg(&mesh));
    let json: serde_json::Value = serde_json::from_str(&message).expect("JSON");
    assert_eq!(json["nodes"][2]["devices"][0]["peer"], "mac0/rdma_en3");
    let message = complaint(softrdma().args(["check", "/nowhere.toml"]));
    assert_eq!(message, "/nowhere.toml: can't be read: No such file or directory (os error 2)");
}

#[test]
fn a_shell_can_take_over_the_environment() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("it's");
    let message = printed(
        softrdma()
            .args(["env", "--node", "mac1", "--fabric"])
            .arg(shipped("apple-tb5-mesh2.toml"))
            .arg("--dir")
            .arg(&dir),
    );
    let script = format!("{message}\nLD_PRELOAD=; echo $SOFTRDMA_NODE; cat \"$SOFTRDMA_DIR/fabric.toml\"");
    let copied = printed(Command::new("sh").args(["-c", &script]));
    let original = std::fs::read_to_string(shipped("apple-tb5-mesh2.toml")).expect("text");
    assert_eq!(copied, format!("1\n{original}"));
    let mut other = softrdma();
    other.args(["env", "--json", "--fabric"]).arg(shipped("apple-tb5-mesh3.toml")).arg("--dir").arg(&dir);
    assert!(complaint(&mut other).contains("belongs to another fabric"));
    let mut unknown = softrdma();
    unknown.args(["env", "--node", "mac7", "--fabric"]).arg(shipped("apple-tb5-mesh2.toml"));
    assert_eq!(complaint(&mut unknown), "unknown node `mac7`, did you mean `mac1`?; known: mac0, mac1");
}

#[test]
fn faults_are_seen_by_others() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("fabric");
    printed(
        softrdma()
            .args(["env", "--json", "--fabric"])
            .arg(shipped("apple-tb5-mesh3.toml"))
            .arg("--dir")
            .arg(&dir),
    );
    let fault = |arguments: &str| {
        let mut command = softrdma();
        command.arg("fault").arg("--dir").arg(&dir).args(arguments.split(' '));
        command
    };
    let state = || {
        let message = printed(softrdma().args(["stat", "--json", "--dir"]).arg(&dir));
        let json: serde_json::Value = serde_json::from_str(&message).expect("JSON");
        assert_eq!(json["cables"][0]["lanes"][1]["messages"], 0);
        (json["cables"][1]["unplugged"].clone(), json["down"].to_string(), json["stalled"].to_string())
    };
    let leaks = || {
        let message = printed(softrdma().args(["stat", "--json", "--dir"]).arg(&dir));
        serde_json::from_str::<serde_json::Value>(&message).expect("JSON")["leaks"].to_string()
    };
    assert_eq!(leaks(), "[]");
    assert_eq!(state(), (false.into(), "[]".into(), "[]".into()));
    for arguments in
        ["unplug mac2/rdma_en2", "port-down mac1/rdma_en3", "stall mac2", "fail-qp mac0/rdma_en2"]
    {
        assert_eq!(printed(&mut fault(arguments)), "", "{arguments}");
    }
    for arguments in ["unplug 1 --crash", "sleep mac0/rdma_en2", "leak mac0/rdma_en2 --domains 3"] {
        assert_eq!(printed(&mut fault(arguments)), "", "{arguments}");
    }
    assert_eq!(leaks(), r#"[{"domains":3,"port":"mac0/rdma_en2"}]"#);
    let message = printed(softrdma().args(["stat", "--dir"]).arg(&dir));
    assert!(message.contains("\nmac0/rdma_en2 has leaked 3 protection domains\n"), "{message}");
    assert_eq!(printed(&mut fault("leak mac0/rdma_en2")), "");
    assert_eq!(leaks(), r#"[{"domains":11,"port":"mac0/rdma_en2"}]"#, "all that there are");
    assert_eq!(printed(&mut fault("leak mac0/rdma_en2 --domains 0")), "");
    assert_eq!(leaks(), "[]");
    let down = r#"["mac0/rdma_en3","mac1/rdma_en3","mac2/rdma_en2","mac2/rdma_en3"]"#;
    assert_eq!(state(), (true.into(), down.into(), r#"["mac2"]"#.into()));
    for arguments in ["replug 1", "port-up mac1/rdma_en3", "resume 2", "gid mac0/rdma_en2 --index 2"] {
        assert_eq!(printed(&mut fault(arguments)), "", "{arguments}");
    }
    assert_eq!(state(), (false.into(), "[]".into(), "[]".into()));
    assert!(
        complaint(&mut fault("port-up mac1/rdma_en4"))
            .starts_with("unknown port `mac1/rdma_en4`, did you mean")
    );
    assert!(complaint(&mut fault("unplug mac9")).starts_with("unknown cable `mac9`"));
    assert!(complaint(&mut fault("gid mac0/rdma_en2 --index 0")).contains("not in 1..4"));
    let message = complaint(softrdma().args(["stat", "--dir"]).arg(folder.path()));
    assert!(message.contains("fabric.toml: can't be read"), "{message}");
    assert!(complaint(softrdma().arg("stat")).starts_with("no fabric is named;"));
}

#[test]
fn only_macs_crash() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut crash = softrdma();
    crash.args(["fault", "--fabric"]).arg(shipped("ib-pair.toml")).arg("--dir").arg(folder.path());
    let message = complaint(crash.args(["unplug", "0", "--crash"]));
    assert!(message.ends_with("crashes when it is unplugged; leave out --crash"), "{message}");
}
