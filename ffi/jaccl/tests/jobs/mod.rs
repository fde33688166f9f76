//! Jobs of C++ programs that are compiled against the interface, and the fabrics on which they run.

#[allow(dead_code)] // These tests use only a part of the harness.
#[path = "../../../tests/harness/mod.rs"]
mod harness;

#[allow(unused_imports)] // Each test uses a part of them.
pub(crate) use harness::{binary_dir, command, package_dir, run, tbccl};

use serde::Deserialize;
use std::{
    fs,
    net::{IpAddr, TcpListener, UdpSocket},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
};
use tempfile::TempDir;

/// Folder with a compiled program, and the files of jobs.
pub(crate) struct Programs {
    folder: TempDir,
}

/// A program, and the folder that is removed with it.
pub(crate) struct Compiled {
    pub(crate) path: PathBuf,
    _folder: TempDir,
}

impl AsRef<Path> for Compiled {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// A fabric file, as far as the devices between nodes go.
#[derive(Deserialize)]
pub(crate) struct Fabric {
    node: Vec<Node>,
    cable: Vec<Cable>,
}

#[derive(Deserialize)]
pub(crate) struct Node {
    name: String,
}

#[derive(Deserialize)]
pub(crate) struct Cable {
    ends: [String; 2],
}

pub(crate) fn library() -> PathBuf {
    binary_dir().join(if cfg!(target_os = "macos") { "libjaccl.dylib" } else { "libjaccl.so" })
}

impl Programs {
    pub(crate) fn new() -> Programs {
        // Builds the library first.
        binary_dir();
        Programs { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Compiles the source beside this file with these options, and returns the program.
    pub(crate) fn compile(&self, name: &str, options: &[String]) -> PathBuf {
        let program = self.path(name);
        let folder = binary_dir().display();
        let mut command = Command::new("c++");
        command.args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-pthread"]).args(options);
        command.arg("-I").arg(package_dir().join("cpp")).arg(package_dir().join("tests/calls.cpp"));
        command.arg("-o").arg(&program).args([format!("-L{folder}"), format!("-Wl,-rpath,{folder}")]);
        run(command.arg("-ljaccl"));
        program
    }

    /// Returns the compiled program, which tests that run at the same time share.
    pub(crate) fn program() -> Arc<Compiled> {
        static SHARED: Mutex<Weak<Compiled>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiled) = shared.upgrade() {
            return compiled;
        }
        let programs = Programs::new();
        let path = programs.compile("calls", &[]);
        let compiled = Arc::new(Compiled { path, _folder: programs.folder });
        *shared = Arc::downgrade(&compiled);
        compiled
    }

    /// Writes a file with devices, and returns its path.
    pub(crate) fn devices(&self, name: &str, rows: &[Vec<Vec<String>>]) -> PathBuf {
        let cell = |names: &Vec<String>| match names.as_slice() {
            [] => "null".to_owned(),
            [name] => format!("{name:?}"),
            names => format!("{names:?}"),
        };
        let row =
            |row: &Vec<Vec<String>>| format!("[{}]", row.iter().map(cell).collect::<Vec<_>>().join(", "));
        let rows: Vec<String> = rows.iter().map(row).collect();
        let path = self.path(name);
        fs::write(&path, format!("[{}]", rows.join(", "))).expect("our folder");
        path
    }

    /// Returns an empty folder, in which ranks exchange bytes.
    pub(crate) fn exchange(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir(&path).expect("our folder");
        path
    }
}

/// Returns devices with names of no machine between all ranks.
pub(crate) fn mesh(ranks: usize) -> Vec<Vec<Vec<String>>> {
    let cell = |from, to| if from == to { vec![] } else { vec![format!("device{to}")] };
    (0..ranks).map(|from| (0..ranks).map(|to| cell(from, to)).collect()).collect()
}

/// Returns the path of a fabric, and the devices between its nodes.
pub(crate) fn fabric(name: &str) -> (PathBuf, Vec<Vec<Vec<String>>>) {
    let path = package_dir().join(format!("../../configs/fabrics/{name}.toml"));
    let fabric: Fabric = toml::from_str(&fs::read_to_string(&path).expect("a fabric")).expect("a fabric");
    let count = fabric.node.len();
    let mut rows = vec![vec![vec![]; count]; count];
    for Cable { ends } in &fabric.cable {
        let end = |end: &str| {
            let (node, device) = end.split_once('/').expect("node/device");
            (fabric.node.iter().position(|known| known.name == node).expect("a node"), device.to_owned())
        };
        let ((a, device_a), (b, device_b)) = (end(&ends[0]), end(&ends[1]));
        rows[a][b].push(device_a);
        rows[b][a].push(device_b);
    }
    (path, rows)
}

/// Returns a port of 127.0.0.1 that no other job of these tests uses. Ranks only derive a name from it.
pub(crate) fn local_coordinator() -> String {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    format!("127.0.0.1:{}", (std::process::id() % 30_000) as u16 + 2000 + TAKEN.fetch_add(1, Relaxed))
}

/// Returns the address from which this machine reaches others, and a free port; `None` without a network.
pub(crate) fn host_and_free_port() -> Option<(IpAddr, u16)> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Connecting sends nothing.
    socket.connect("203.0.113.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    let port = TcpListener::bind((ip, 0)).ok()?.local_addr().ok()?.port();
    (!ip.is_loopback()).then_some((ip, port))
}

/// Runs a job, and checks that every rank passes its checks. Returns stderr.
pub(crate) fn passes(job: &mut Command, ranks: usize) -> String {
    let output = run(job);
    assert_eq!(output.stdout.matches("ok ").count(), ranks, "{job:?}\n{}\n{}", output.stdout, output.stderr);
    output.stderr
}

/// Returns a job of the launcher with this many ranks of a program.
pub(crate) fn job(ranks: usize, program: impl AsRef<Path>, mode: &[&str]) -> Command {
    let mut job = tbccl();
    job.args(["run", "-n", &ranks.to_string(), "--"]).arg(program.as_ref()).args(mode);
    job
}

/// Returns a job with a rank on each node of a fabric.
pub(crate) fn job_on(fabric: &Path, program: impl AsRef<Path>, mode: &[&str]) -> Command {
    let mut job = tbccl();
    job.args(["fabric", "run", "--fabric"]).arg(fabric).arg("--").arg(program.as_ref()).args(mode);
    job
}
