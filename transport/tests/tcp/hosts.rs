//! Two simulated hosts: network namespaces with cables between them.

use crate::net::until;
use rustix::{fd::AsFd, thread::LinkNameSpaceType};
use std::{
    fs::File,
    process::{Child, Command, Stdio},
};

/// Two network namespaces; dropped with this value.
pub(crate) struct Hosts([Child; 2]);

fn runs(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).stdin(Stdio::null()).output().is_ok_and(|done| done.status.success())
}

impl Hosts {
    /// Creates the namespaces; returns `None` if this process may not.
    fn new() -> Option<Hosts> {
        if !runs("unshare", &["--net", "true"]) || !runs("ip", &["-V"]) {
            return None;
        }
        let hosts = Hosts([0, 1].map(|_| {
            let mut command = Command::new("unshare");
            command.args(["--net", "--uts", "sleep", "300"]).stdin(Stdio::null()).spawn().expect("a process")
        }));
        let space = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
        for child in &hosts.0 {
            let process = child.id().to_string();
            until("no namespace", || space(&process).is_some_and(|theirs| Some(theirs) != space("self")));
        }
        // Ranks of one host name have no cables between them.
        for (at, child) in hosts.0.iter().enumerate() {
            let process = child.id().to_string();
            let script = format!("echo host{at} >/proc/sys/kernel/hostname");
            assert!(runs("nsenter", &["--uts", "--target", &process, "/bin/sh", "-c", &script]), "{script}");
        }
        Some(hosts)
    }

    /// Creates hosts with an interface `cable` in a network with room for many hosts.
    pub(crate) fn with_cable() -> Option<Hosts> {
        let hosts = Hosts::new()?;
        hosts.connect("cable", &[0, 1].map(|at| format!("10.77.0.{}/24", at + 1)));
        Some(hosts)
    }

    /// Creates hosts with cables `cable0` and so on, each with a network of two hosts.
    pub(crate) fn with_cables(count: usize) -> Option<Hosts> {
        let hosts = Hosts::new()?;
        for number in 0..count {
            let address = |at| format!("10.88.{number}.{}/30", at + 1);
            hosts.connect(&format!("cable{number}"), &[0, 1].map(address));
        }
        Some(hosts)
    }

    fn connect(&self, name: &str, addresses: &[String; 2]) {
        let second = self.0[1].id().to_string();
        self.ip(0, &["link", "add", name, "type", "veth", "peer", "name", name, "netns", &second]);
        for (at, address) in addresses.iter().enumerate() {
            // An address that the system chooses becomes valid a second or two later.
            self.ip(at, &["link", "set", name, "addrgenmode", "none"]);
            self.ip(at, &["address", "add", address, "dev", name]);
            self.ip(at, &["link", "set", name, "up"]);
        }
        // Linux may tell of a plugged cable up to a second later.
        until("the cable is not up", || (0..2).all(|at| self.is_up(at, name)));
    }

    fn is_up(&self, at: usize, name: &str) -> bool {
        let process = self.0[at].id().to_string();
        let show = ["--net", "--target", &process, "ip", "-o", "link", "show", name];
        let output = Command::new("nsenter").args(show).stdin(Stdio::null()).output().expect("nsenter");
        String::from_utf8_lossy(&output.stdout).contains("state UP")
    }

    /// Returns the bytes that an interface of a host has received.
    pub(crate) fn received_bytes(&self, at: usize, name: &str) -> u64 {
        let path = format!("/proc/{}/net/dev", self.0[at].id());
        let text = std::fs::read_to_string(path).expect("the process runs");
        let line = text.lines().find_map(|line| line.trim().strip_prefix(&format!("{name}:")));
        let bytes = line.and_then(|line| line.split_whitespace().next());
        bytes.and_then(|bytes| bytes.parse().ok()).expect("a number")
    }

    pub(crate) fn ip(&self, at: usize, args: &[&str]) {
        self.run(at, "ip", args);
    }

    /// Runs a program of the system on a host.
    pub(crate) fn run(&self, at: usize, program: &str, args: &[&str]) {
        let process = self.0[at].id().to_string();
        let enter = ["--net", "--target", &process, program];
        assert!(runs("nsenter", &[&enter, args].concat()), "{program} {args:?}");
    }

    /// Moves this thread, and the threads that it starts, to a host.
    pub(crate) fn enter(&self, at: usize) {
        let spaces =
            [("net", LinkNameSpaceType::Network), ("uts", LinkNameSpaceType::HostNameAndNISDomainName)];
        for (name, kind) in spaces {
            let space = File::open(format!("/proc/{}/ns/{name}", self.0[at].id())).expect("a namespace");
            rustix::thread::move_into_link_name_space(space.as_fd(), Some(kind)).expect("we may enter");
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
