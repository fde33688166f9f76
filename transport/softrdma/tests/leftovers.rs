//! Programs without a fabric folder of their own leave nothing in memory when they end.

mod common;

use std::{
    ffi::OsString,
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A fabric of this test, with its default folder in /dev/shm.
struct Fabric {
    home: tempfile::TempDir,
    folder: PathBuf,
}

impl Fabric {
    fn new() -> Fabric {
        let home = tempfile::tempdir().expect("a folder");
        let text = format!(
            "# {}\nprofile = \"ib\"\n[[node]]\nname = \"a\"\ndevice = [{{ name = \"d\" }}]\n",
            home.path().display()
        );
        let path = home.path().join("fabric.toml");
        fs::write(&path, text).expect("room for a file");
        let digest = softrdma::fabric::Fabric::load(&path).expect("a fabric").digest;
        let folder = softrdma::default_folder(digest);
        assert!(!folder.exists());
        Fabric { home, folder }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_PRELOAD", common::library())
            .env("SOFTRDMA_FABRIC", self.home.path().join("fabric.toml"));
        command.env_remove("SOFTRDMA_DIR").env_remove("SOFTRDMA_NODE");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Starts a server that waits for a client, with its device open.
    fn server(&self, port: u16) -> Child {
        let port = port.to_string();
        let child =
            self.command("ibv_rc_pingpong").args(["-g", "1", "-p", &port]).spawn().expect("ibverbs-utils");
        let until = Instant::now() + Duration::from_secs(20);
        // Waits until the server has mapped a slot of its own; the file of a killed server may still exist.
        let place = format!("{}/p", self.folder.display());
        let maps = format!("/proc/{}/maps", child.id());
        while !fs::read_to_string(&maps).expect("our child").contains(&place) {
            assert!(Instant::now() < until, "the server never came up");
            thread::sleep(Duration::from_millis(2));
        }
        child
    }

    fn files(&self) -> Vec<OsString> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name()).collect()
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.local_addr().expect("an address").port()
}

#[test]
fn a_program_that_ends_leaves_no_folder() {
    let fabric = Fabric::new();
    assert!(fabric.command("ibv_devinfo").status().expect("ibverbs-utils").success());
    assert!(!fabric.folder.exists(), "{:?}", fabric.files());
}

/// The program fails because no server listens, and exits with its device open.
#[test]
fn a_program_that_does_not_close_its_device_leaves_no_folder() {
    let fabric = Fabric::new();
    let mut client = fabric.command("ibv_rc_pingpong");
    client.args(["-g", "1", "-p", &free_port().to_string(), "localhost"]);
    assert!(!client.status().expect("ibverbs-utils").success(), "nobody listens");
    assert!(!fabric.folder.exists(), "{:?}", fabric.files());
}

#[test]
fn the_next_program_removes_what_a_killed_one_left() {
    let fabric = Fabric::new();
    let mut killed = fabric.server(free_port());
    killed.kill().expect("our child");
    killed.wait().expect("our child");
    assert!(fabric.folder.exists(), "somebody has removed it");
    let mut living = fabric.server(free_port());
    assert!(fabric.command("ibv_devinfo").status().expect("ibverbs-utils").success());
    assert!(fabric.folder.exists(), "somebody is in it");
    living.kill().expect("our child");
    living.wait().expect("our child");
    assert!(fabric.command("ibv_devinfo").status().expect("ibverbs-utils").success());
    assert!(!fabric.folder.exists(), "{:?}", fabric.files());
}
