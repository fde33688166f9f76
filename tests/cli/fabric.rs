//! `tbccl fabric`: programs on software RDMA devices, with real processes.

use crate::TBCCL;
use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/fabrics").join(name)
}

fn tbccl(command: &str) -> Command {
    let mut tbccl = support::tbccl_with_software_device();
    tbccl.args(["fabric", command]);
    tbccl
}

/// Returns a command that runs a shell script on a fabric.
fn run(fabric: &str, options: &[&str], script: &str) -> Command {
    let mut tbccl = tbccl("run");
    tbccl.arg("--fabric").arg(shipped(fabric)).args(options).args(["--", "sh", "-c", script]);
    tbccl
}

/// Returns a folder for the fabrics of one test. Others run on this machine meanwhile, remove the folders of
/// killed runs, and would be found.
fn base() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// Returns status, sorted lines of stdout, and stderr.
fn outcome(command: &mut Command) -> (i32, Vec<String>, String) {
    let Output { status, stdout, stderr } = command.output().expect("it starts");
    let mut lines: Vec<String> = String::from_utf8_lossy(&stdout).lines().map(str::to_owned).collect();
    lines.sort();
    (status.code().expect("no signal"), lines, String::from_utf8_lossy(&stderr).into_owned())
}

#[test]
fn each_node_has_a_process_that_knows_where_it_is() {
    let script =
        "echo $SOFTRDMA_NODE $TBCCL_RANK/$TBCCL_SIZE $LD_PRELOAD $TBCCL_VERBS_LIB; cmp $SOFTRDMA_FABRIC $0";
    let mut run = run("apple-tb5-mesh3.toml", &[], script);
    let (status, lines, stderr) = outcome(run.arg(shipped("apple-tb5-mesh3.toml")));
    assert_eq!((status, stderr.as_str()), (0, ""));
    let library = Path::new(TBCCL).with_file_name("libsoftrdma.so");
    let expected: Vec<String> = (0..3).map(|k| format!("{k} {k}/3 {0} {0}", library.display())).collect();
    assert_eq!(lines, expected);
}

#[test]
fn a_node_has_as_many_processes_as_asked_for_and_they_share_memory_with_no_other_nodes() {
    let script = "echo $TBCCL_RANK/$TBCCL_SIZE on $SOFTRDMA_NODE, $TBCCL_HOST_ID";
    let (status, lines, stderr) = outcome(&mut run("apple-tb5-mesh2.toml", &["--per-node", "2"], script));
    assert_eq!((status, stderr.as_str()), (0, ""));
    assert_eq!(lines, ["0/4 on 0, 0", "1/4 on 0, 0", "2/4 on 1, 1", "3/4 on 1, 1"]);
    let (status, _, stderr) = outcome(&mut run("apple-tb5-mesh2.toml", &["--per-node", "9999999"], script));
    assert!(status == 2 && stderr.contains("--per-node 9999999: a job has at most"), "{stderr}");
}

#[test]
fn a_program_finds_the_device_by_the_library_path_too() {
    let script = "echo ${LD_LIBRARY_PATH%%:*} $SOFTRDMA_DIR/lib $LD_PRELOAD; readlink -e $SOFTRDMA_DIR/lib/*";
    let mut run = run("apple-tb5-mesh2.toml", &["--node", "0", "--inject", "library-path"], script);
    let (status, lines, stderr) = outcome(run.env("LD_LIBRARY_PATH", "/nowhere"));
    assert_eq!((status, stderr.as_str(), lines.len()), (0, "", 4), "{lines:?}");
    let (first, second) = lines.iter().find_map(|line| line.split_once(' ')).expect("two folders");
    assert_eq!(first, second);
    let verbs = format!("{first}/libibverbs.so.1");
    let library = Path::new(TBCCL).with_file_name("libsoftrdma.so").canonicalize().expect("it is built");
    let mut expected = [format!("{first} {second}"), verbs.clone(), verbs, library.display().to_string()];
    expected.sort();
    assert_eq!(lines, expected);
    assert!(!Path::new(first).exists());
    let (status, _, stderr) = outcome(tbccl("run").args(["--fabric", "x", "--inject", "preloaded", "true"]));
    assert!(status == 2 && stderr.contains("preload, library-path"), "{stderr}");
}

#[test]
fn the_folder_is_gone_however_a_run_ends() {
    let (status, lines, _) = outcome(&mut run("apple-tb5-mesh2.toml", &[], "echo $SOFTRDMA_DIR; exit 3"));
    assert_eq!(status, 3);
    assert!(!lines.is_empty() && !Path::new(&lines[0]).exists(), "{lines:?}");
    // The next run removes the folder of a killed one.
    let base = base();
    let run_script = |script| {
        let mut run = run("apple-tb5-mesh2.toml", &[], script);
        run.env("SOFTRDMA_BASE", base.path());
        run
    };
    let mut killed = run_script("exec sleep 100").spawn().expect("it starts");
    let folder = folder_in(base.path(), killed.id());
    wait_until(|| folder.exists());
    killed.kill().expect("it runs");
    killed.wait().expect("ours");
    assert!(folder.exists());
    assert_eq!(outcome(&mut run_script("true")).0, 0);
    assert!(!folder.exists());
}

#[test]
fn single_nodes_meet_in_one_folder() {
    let base = base();
    let run = |node, script| {
        let mut run = run("usb4-pair.toml", &["--node", node], script);
        run.env("SOFTRDMA_BASE", base.path());
        run
    };
    let script = "echo $SOFTRDMA_NODE $SOFTRDMA_DIR";
    let (status, lines, stderr) = outcome(&mut run("node1", script));
    assert_eq!((status, stderr.as_str()), (0, ""));
    let dir = lines[0].strip_prefix("1 ").expect("the second node").to_owned();
    assert!(!Path::new(&dir).exists());
    // The last process to leave removes the folder.
    let mut first = run("0", "exec sleep 100").spawn().expect("it starts");
    wait_until(|| Path::new(&dir).exists());
    let (_, lines, _) = outcome(&mut run("1", script));
    assert_eq!(lines, [format!("1 {dir}")]);
    assert!(Path::new(&dir).exists());
    let pid = rustix::process::Pid::from_child(&first);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    first.wait().expect("ours");
    assert!(!Path::new(&dir).exists());
}

#[test]
fn a_named_folder_is_kept() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("fabric").display().to_string();
    let (status, lines, _) =
        outcome(&mut run("apple-tb5-mesh2.toml", &["--dir", &dir], "echo $SOFTRDMA_DIR"));
    assert_eq!((status, lines), (0, vec![dir.clone(), dir.clone()]));
    assert!(Path::new(&dir).join("fabric.toml").exists());
    let (status, _, stderr) = outcome(&mut run("apple-tb5-mesh3.toml", &["--dir", &dir], "true"));
    assert!(status == 2 && stderr.contains("belongs to another fabric"), "{stderr}");
}

#[test]
fn a_running_fabric_is_found_broken_and_looked_at() {
    let base = base();
    let tbccl = |command| {
        let mut tbccl = tbccl(command);
        tbccl.env("SOFTRDMA_BASE", base.path());
        tbccl
    };
    let (status, _, stderr) = outcome(&mut tbccl("stat"));
    assert!(
        status == 2 && stderr.starts_with("tbccl: error: no fabric is running on this machine"),
        "{stderr}"
    );
    let mut running = run("apple-tb5-mesh3.toml", &[], "exec sleep 100");
    let mut running = running.env("SOFTRDMA_BASE", base.path()).spawn().expect("it starts");
    let folder = folder_in(base.path(), running.id());
    wait_until(|| folder.join("fabric.toml").exists());
    assert_eq!(outcome(tbccl("fault").args(["unplug", "mac0/rdma_en3"])), (0, vec![], String::new()));
    let (status, lines, stderr) = outcome(&mut tbccl("stat"));
    assert_eq!((status, stderr.as_str()), (0, ""));
    assert_eq!(lines.iter().filter(|line| line.ends_with("unplugged")).count(), 2, "{lines:#?}");
    assert!(lines.contains(&"mac2/rdma_en2 is down".to_owned()), "{lines:#?}");
    let (status, _, stderr) = outcome(tbccl("fault").args(["unplug", "x"]));
    assert!(status == 2 && stderr.starts_with("tbccl: error: unknown cable `x`"), "{stderr}");
    let pid = rustix::process::Pid::from_child(&running);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    running.wait().expect("ours");
    assert!(!folder.exists());
}

#[test]
fn traffic_is_counted_per_cable_and_direction() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("fabric").display().to_string();
    let found = Command::new("sh").args(["-c", "command -v ibv_uc_pingpong"]).output().expect("a shell");
    assert!(
        found.status.success(),
        "no ibv_uc_pingpong: install ibverbs-utils, or run tools/install-missing"
    );
    // Uses the second cable, so the first stays unused. The client retries until the server listens.
    let port = 20_000 + std::process::id() % 10_000;
    let pingpong = format!("ibv_uc_pingpong -d rdma_en3 -g 1 -n 100 -s 5000 -p {port}");
    let script = format!(
        "[ $SOFTRDMA_NODE = 0 ] && exec {pingpong}\n\
         for k in 1 2 3 4 5 6 7 8 9 10; do {pingpong} localhost 2>&1 && exit; sleep 0.1; done; exit 1"
    );
    let options = ["--dir", &dir, "--timeout", "30"];
    let (status, lines, stderr) = outcome(&mut run("apple-tb5-mesh2-two-cables.toml", &options, &script));
    assert_eq!(status, 0, "{lines:#?} {stderr}");
    let (status, lines, stderr) = outcome(tbccl("stat").args(["--json", "--dir", &dir]));
    assert_eq!((status, stderr.as_str()), (0, ""));
    let zeroes = |name: &str| lines.iter().filter(|line| line.contains(&format!("\"{name}\": 0"))).count();
    assert_eq!([zeroes("messages"), zeroes("bytes"), zeroes("lost"), zeroes("corrupted")], [2, 2, 4, 4]);
    let is_counted = |count: &str| lines.iter().filter(|line| line.trim() == count).count();
    assert_eq!(is_counted("\"messages\": 100,"), 2, "{lines:#?}");
    assert_eq!(is_counted("\"bytes\": 500000,"), 2, "{lines:#?}");
}

#[test]
fn errors_are_one_line_with_the_remedy() {
    let cases = [
        (run("mesh-9.toml", &[], "true"), "mesh-9.toml: can't be read: "),
        (run("apple-tb5-mesh2.toml", &["--node", "mac2"], "true"), "unknown node `mac2`, did you mean `mac"),
        (
            tbccl("chek"),
            "unknown command `chek`, did you mean `check`?; known: run, check, nodes, fault, stat",
        ),
        (tbccl("run"), "--fabric <FILE>"),
    ];
    for (mut command, expected) in cases {
        let (status, lines, stderr) = outcome(&mut command);
        assert_eq!((status, lines.len(), stderr.lines().count()), (2, 0, 1), "{stderr}");
        assert!(stderr.starts_with("tbccl: error: ") && stderr.contains(expected), "{stderr}");
    }
}

/// Returns the folder of a run by this process.
fn folder_in(base: &Path, run: u32) -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    base.join(format!("tbccl-fabric-{user}-{run}"))
}

fn wait_until(condition: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < until, "not within ten seconds");
        std::thread::sleep(Duration::from_millis(5));
    }
}
