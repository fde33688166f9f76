//! Runs unmodified verbs programs, one or two at a time, on the software device.

#![allow(dead_code, reason = "each test uses its part of it")]

use std::{
    collections::BTreeSet,
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

/// Returns the path of the library under test, which cargo puts beside the test's executable.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folders = test.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join("libsoftrdma.so")).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("no libsoftrdma.so beside {}: build the package first", test.display()))
}

/// Returns a temporary folder for `LD_LIBRARY_PATH`.
pub(crate) fn library_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let mut softrdma = Command::new(env!("CARGO_BIN_EXE_softrdma"));
    let made = softrdma.arg("lib").arg(folder.path()).arg("--lib").arg(library()).output();
    let made = made.expect("softrdma starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    folder
}

/// How a program finds the library.
pub(crate) enum Injection {
    Preload,
    LibraryPath(tempfile::TempDir),
}

/// A temporary fabric for one test.
pub(crate) struct Fabric {
    folder: tempfile::TempDir,
    file: Option<PathBuf>,
    remap: bool,
    injection: Injection,
}

impl Fabric {
    /// Creates the built-in fabric, or the one of a file in `configs/fabrics`.
    pub(crate) fn new(file: Option<&str>) -> Fabric {
        let base = Path::new("/dev/shm");
        let folder = if base.is_dir() { tempfile::tempdir_in(base) } else { tempfile::tempdir() };
        let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/fabrics");
        Fabric {
            folder: folder.expect("a folder"),
            file: file.map(|name| configs.join(name)),
            remap: false,
            injection: Injection::Preload,
        }
    }

    /// Makes programs find the library through `LD_LIBRARY_PATH`.
    pub(crate) fn by_library_path(self) -> Fabric {
        Fabric { injection: Injection::LibraryPath(library_folder()), ..self }
    }

    /// Shares registered pages between processes.
    pub(crate) fn with_shared_pages(self) -> Fabric {
        Fabric { remap: true, ..self }
    }

    /// Returns the command that runs a program on a node of the fabric.
    pub(crate) fn command(&self, node: usize, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).env("SOFTRDMA_DIR", self.folder.path());
        for name in ["SOFTRDMA_FABRIC", "SOFTRDMA_NODE", "LD_PRELOAD", "LD_LIBRARY_PATH"] {
            command.env_remove(name);
        }
        match &self.injection {
            Injection::Preload => command.env("LD_PRELOAD", library()),
            Injection::LibraryPath(folder) => command.env("LD_LIBRARY_PATH", folder.path()),
        };
        if let Some(file) = &self.file {
            command.env("SOFTRDMA_FABRIC", file).env("SOFTRDMA_NODE", node.to_string());
        }
        command.env("SOFTRDMA_REMAP", if self.remap { "1" } else { "0" });
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs one program until it ends.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Finished {
        finish(spawn(self.command(0, program, arguments), program), Instant::now() + TIMEOUT)
    }

    /// Runs a program as server on node 0 and as client on node 1, or both on the only node.
    pub(crate) fn pair(&self, program: &str, arguments: &[&str]) -> [Finished; 2] {
        self.pair_with_setup(program, arguments, |_| ())
    }

    /// Runs a pair like [`Fabric::pair`], and calls `before` before each end starts.
    pub(crate) fn pair_with_setup(
        &self,
        program: &str,
        arguments: &[&str],
        before: impl Fn(usize),
    ) -> [Finished; 2] {
        let [server, client] = self.start_with_setup(program, arguments, before);
        let deadline = Instant::now() + TIMEOUT;
        let client = finish(client, deadline);
        [finish(server, deadline), client]
    }

    /// Starts a pair like [`Fabric::pair`], and leaves it running.
    pub(crate) fn start(&self, program: &str, arguments: &[&str]) -> [Child; 2] {
        self.start_with_setup(program, arguments, |_| ())
    }

    fn start_with_setup(&self, program: &str, arguments: &[&str], before: impl Fn(usize)) -> [Child; 2] {
        let deadline = Instant::now() + TIMEOUT;
        before(0);
        loop {
            let port = free_port();
            let port_text = port.to_string();
            let mut arguments = arguments.to_vec();
            arguments.extend(["-p", &port_text]);
            let mut server = spawn(self.command(0, program, &arguments), program);
            wait_for_listener(&mut server, port, deadline);
            if is_running(&mut server) || Instant::now() >= deadline {
                arguments.push("localhost");
                before(1);
                return [server, spawn(self.command(1, program, &arguments), program)];
            }
            let ended = finish(server, deadline);
            assert!(ended.text.contains(PORT_TAKEN), "{program} {arguments:?}: {}", ended.text);
        }
    }

    /// Runs a pair and asserts that both ends succeed.
    pub(crate) fn expect_success(&self, program: &str, arguments: &[&str]) -> [Finished; 2] {
        let ends = self.pair(program, arguments);
        for (end, role) in ends.iter().zip(["server", "client"]) {
            assert!(end.succeeded, "{program} {arguments:?}: the {role} failed\n{}", end.text);
            // The loader prints this when a library lacks the versions that a program was linked with.
            assert!(!end.text.contains("no version information"), "{program}: {}", end.text);
        }
        ends
    }

    /// Asserts that processes have left no files but the fabric's own, after one more program has run.
    pub(crate) fn assert_clean(&self) {
        self.run("ibv_devinfo", &[]);
        let names: Vec<_> = fs::read_dir(self.folder.path())
            .expect("the folder")
            .map(|entry| entry.expect("readable").file_name())
            .collect();
        assert_eq!(names, ["fabric"], "left in the folder of the fabric");
    }
}

/// The limit for one test.
const TIMEOUT: Duration = Duration::from_secs(90);

/// The result of a program.
pub(crate) struct Finished {
    pub(crate) succeeded: bool,
    /// Whether the program ended by itself.
    pub(crate) ended_in_time: bool,
    pub(crate) text: String,
}

fn package_of(program: &str) -> &'static str {
    if program.starts_with("ibv_") { "ibverbs-utils" } else { "perftest" }
}

fn spawn(mut command: Command, program: &str) -> Child {
    command.spawn().unwrap_or_else(|error| {
        panic!("cannot run {program}: {error}; on Debian, install the package {}", package_of(program))
    })
}

/// Said by a server whose port another program has taken meanwhile. These programs take no port from the
/// system.
const PORT_TAKEN: &str = "Couldn't listen to port";

/// Returns a port that is free at the moment, and that no other test of this program has.
fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().expect("no panics");
    loop {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        if given.insert(port) {
            return port;
        }
    }
}

fn is_running(process: &mut Child) -> bool {
    process.try_wait().expect("our child").is_none()
}

/// Waits until a process listens on a port, or the server has ended. Does not connect, since the server would
/// accept that as its client.
fn wait_for_listener(server: &mut Child, port: u16, deadline: Instant) {
    let wanted = format!(":{port:04X} ");
    let is_there = || {
        ["/proc/net/tcp", "/proc/net/tcp6"].iter().filter_map(|table| fs::read_to_string(table).ok()).any(
            |table| {
                table.lines().any(|line| {
                    let mut words = line.split_ascii_whitespace();
                    let local = words.nth(1).unwrap_or_default();
                    format!("{local} ").ends_with(&wanted) && words.nth(1) == Some("0A")
                })
            },
        )
    };
    while !is_there() && is_running(server) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a program ends, and kills it at the deadline.
pub(crate) fn finish(mut child: Child, deadline: Instant) -> Finished {
    let mut ended_in_time = true;
    while child.try_wait().expect("our child").is_none() {
        if Instant::now() > deadline {
            ended_in_time = false;
            let _ = child.kill();
            break;
        }
        thread::sleep(Duration::from_millis(2));
    }
    let Output { status, stdout, stderr } = child.wait_with_output().expect("our child");
    let text = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    Finished { succeeded: status.success(), ended_in_time, text }
}
