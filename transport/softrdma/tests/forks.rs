//! Forked children of processes with open devices.
//!
//! # Safety
//! See `ends`. A forked child leaves by `_exit` and runs none of the parent's destructors.

mod ends;

use ends::{End, Options, folder, pair};
use std::{
    os::unix::process::CommandExt,
    process::Command,
    thread,
    time::{Duration, Instant},
};
use verbs_sys::{QpType, WcStatus};

const IB: &str = "ib-pair.toml";

/// Runs a closure in a forked child and returns its exit status.
fn in_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child only runs the closure and exits.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(99);
        // SAFETY: `_exit` runs no code of the parent.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: the process is a child of this one; the pointer is a valid place for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    libc::WEXITSTATUS(status)
}

#[test]
fn a_child_cannot_use_what_it_inherits() {
    let folder = folder();
    let [a, b] = pair(IB, folder.path(), Options::for_service(QpType::RC));
    let status = in_child(|| {
        let refused = [a.send(1, 1), a.receive(1, a.sge(0, 1))];
        i32::from(refused != [libc::EINVAL; 2] || a.poll().is_some())
    });
    assert_eq!(status, 0);
    // The parent's objects still work.
    assert_eq!(b.receive(2, b.sge(0, 8)), 0);
    assert_eq!(a.send(3, 8), 0);
    a.expect(3, WcStatus::SUCCESS);
    b.expect(2, WcStatus::SUCCESS);
}

#[test]
fn a_child_can_open_devices_of_its_own() {
    let folder = folder();
    let options = Options::for_service(QpType::RC);
    let [a, b] = pair(IB, folder.path(), options);
    let status = in_child(|| {
        let [c, d] = pair(IB, folder.path(), options);
        let posted = [d.receive(1, d.sge(0, 8)), c.send(2, 8)];
        c.expect(2, WcStatus::SUCCESS);
        d.expect(1, WcStatus::SUCCESS);
        i32::from(posted != [0, 0])
    });
    assert_eq!(status, 0);
    assert_eq!(b.receive(2, b.sge(0, 8)), 0);
    assert_eq!(a.send(3, 8), 0);
    a.expect(3, WcStatus::SUCCESS);
}

/// A child that lives on must not make its dead parent seem alive.
#[test]
fn a_child_does_not_keep_its_parent_alive() {
    let folder = folder();
    let path = folder.path().to_owned();
    let program = std::env::current_exe().expect("a test has a path");
    let mut parent = Command::new(program);
    parent.args(["--exact", "as_parent", "--nocapture"]).env("FORK_TEST_FOLDER", &path);
    parent.process_group(0);
    let mut parent = parent.spawn().expect("this test");
    let until = Instant::now() + Duration::from_secs(20);
    while !path.join("ready").exists() {
        assert!(Instant::now() < until, "the parent never came up");
        thread::sleep(Duration::from_millis(5));
    }
    parent.kill().expect("our child");
    parent.wait().expect("our child");
    // The next process that joins gets slot 0, which the dead parent had.
    let end = End::new(IB, 0, &path, Options::for_service(QpType::RC));
    assert_eq!(end.qpn() >> 16, 0, "the place of a dead process is still taken");
    let grandchild: i32 =
        std::fs::read_to_string(path.join("ready")).expect("a number").parse().expect("a number");
    // SAFETY: kills the grandchild by the process number that it wrote.
    unsafe { libc::kill(grandchild, libc::SIGKILL) };
}

/// A process that calls `exec` leaves the fabric although it lives on.
#[test]
fn a_process_that_becomes_another_program_leaves() {
    let folder = folder();
    let program = std::env::current_exe().expect("a test has a path");
    let mut other = Command::new(program);
    other.args(["--exact", "as_another", "--nocapture"]).env("EXEC_TEST_FOLDER", folder.path());
    let mut other = other.spawn().expect("this test");
    let until = Instant::now() + Duration::from_secs(20);
    // The process name is no indication: the kernel changes it before it closes the files of the old program.
    while !folder.path().join("another").exists() {
        assert!(Instant::now() < until, "it never became another program");
        thread::sleep(Duration::from_millis(5));
    }
    let end = End::new(IB, 0, folder.path(), Options::for_service(QpType::RC));
    assert_eq!(end.qpn() >> 16, 0, "the place of a program that is gone is still taken");
    other.kill().expect("our child");
    other.wait().expect("our child");
}

/// The role of the process that calls `exec` in `a_process_that_becomes_another_program_leaves`. Does nothing
/// otherwise.
#[test]
fn as_another() {
    let Some(path) = std::env::var_os("EXEC_TEST_FOLDER").map(std::path::PathBuf::from) else { return };
    let _end = End::new(IB, 0, &path, Options::for_service(QpType::RC));
    assert!(path.join("p0").exists(), "its place");
    let error = Command::new("sh").args(["-c", ": >another; exec sleep 30"]).current_dir(&path).exec();
    panic!("{error}");
}

/// The role of the parent in `a_child_does_not_keep_its_parent_alive`, which starts this program again. Does
/// nothing otherwise.
///
/// Opens a device, forks a child that sleeps, and waits to be killed. The child has closed what it inherits
/// once `fork` has returned there, which takes a while on a busy machine.
#[test]
fn as_parent() {
    let Some(path) = std::env::var_os("FORK_TEST_FOLDER").map(std::path::PathBuf::from) else { return };
    let _end = End::new(IB, 0, &path, Options::for_service(QpType::RC));
    // SAFETY: the child only makes a file, sleeps and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let made = std::fs::write(path.join("forked"), "");
        thread::sleep(Duration::from_secs(30));
        // SAFETY: `_exit` runs no code of the parent.
        unsafe { libc::_exit(i32::from(made.is_err())) };
    }
    let until = Instant::now() + Duration::from_secs(15);
    while !path.join("forked").exists() {
        assert!(Instant::now() < until, "the child never ran");
        thread::sleep(Duration::from_millis(1));
    }
    std::fs::write(path.join("ready.new"), pid.to_string()).expect("written");
    std::fs::rename(path.join("ready.new"), path.join("ready")).expect("renamed");
    thread::sleep(Duration::from_secs(30));
}
