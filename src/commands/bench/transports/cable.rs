//! Two network namespaces with a cable between them: a pair of virtual interfaces.
//!
//! The kernel delays packets, and limits their rate, where it has the queueing discipline netem. Where it has
//! none, packets take no time on the cable, and the table adds the cable's time to half round trips.
//!
//! The programs `ip`, `tc`, `unshare` and `nsenter` do the work; `unshare` makes a user namespace for those
//! who are not root.

use crate::{commands::CommandError, launch::in_own_group};
use std::{
    ffi::OsString,
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Addresses of both ends.
pub(super) const NEAR: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);
pub(super) const FAR: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 2);
/// MTU of cables between Linux hosts, as `tbccl config` sets it.
const MTU: &str = "9000";
/// Time in which the other namespace must be there.
const LIMIT: Duration = Duration::from_secs(10);

/// Starts this command in a network namespace of its own; returns its status.
pub(super) fn enter(program: &Path) -> Result<ExitCode, CommandError> {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let typed: Vec<OsString> = std::env::args_os().skip(1).collect();
    command.args(["--net", "--"]).arg(program).args(typed).arg("--in-namespace").stdin(Stdio::null());
    let status = in_own_group(command).and_then(|mut child| child.wait());
    let status = status.map_err(|e| CommandError::new(format_args!("`unshare`: {e}; install util-linux")))?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(CommandError::STATUS)))
}

/// A cable from this process's network namespace to another one. Dropping it ends the other namespace.
#[derive(Debug)]
pub(super) struct Cable {
    /// Latency in microseconds, one way.
    pub(super) latency_us: f64,
    /// Rate in Gb/s.
    pub(super) gigabits: f64,
    /// Whether packets take the cable's time; otherwise it is added to the results.
    pub(super) is_delayed: bool,
    /// The process that keeps the other namespace.
    keeper: Child,
}

impl Cable {
    /// Makes the other namespace and the cable.
    pub(super) fn new(latency_us: f64, gigabits: f64) -> Result<Cable, CommandError> {
        let mut keeper = Command::new("unshare");
        // The keeper ends with this process, which holds the other end of its stdin.
        keeper.args(["--net", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let keeper =
            in_own_group(keeper).map_err(|e| CommandError::new(format_args!("`unshare --net`: {e}")))?;
        let mut cable = Cable { latency_us, gigabits, is_delayed: false, keeper };
        cable.wait_for_namespace()?;
        let pid = cable.keeper.id().to_string();
        run(&["ip", "link", "set", "lo", "up"])?;
        run(&["ip", "link", "add", "near", "mtu", MTU, "type", "veth", "peer", "name", "far", "mtu", MTU])?;
        run(&["ip", "link", "set", "far", "netns", &pid])?;
        for (inside, name, address) in [(false, "near", NEAR), (true, "far", FAR)] {
            let there = |words: &[&str]| {
                let enter = ["nsenter", "--net", "--target", &pid, "--"];
                run(&[if inside { &enter[..] } else { &[] }, words].concat())
            };
            there(&["ip", "addr", "add", &format!("{address}/30"), "dev", name])?;
            there(&["ip", "link", "set", name, "up"])?;
            let (delay, rate) = (format!("{latency_us}us"), format!("{gigabits}gbit"));
            let netem = ["tc", "qdisc", "add", "dev", name, "root", "netem", "delay", &delay, "rate", &rate];
            // Kernels of small virtual machines have no netem; both ends are on the same kernel.
            cable.is_delayed = there(&[&netem[..], &["limit", "100000"]].concat()).is_ok();
        }
        Ok(cable)
    }

    /// Returns a command at the other end of the cable.
    pub(super) fn far_command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &self.keeper.id().to_string(), "--"]).arg(program);
        command
    }

    /// Returns the time in microseconds that a message of this length takes on the cable.
    pub(super) fn time_us(&self, bytes: u64) -> f64 {
        self.latency_us + bytes as f64 * 8.0 / (self.gigabits * 1000.0)
    }

    /// Waits until the keeper has left this namespace.
    fn wait_for_namespace(&mut self) -> Result<(), CommandError> {
        let namespace = |pid: &str| fs::read_link(PathBuf::from("/proc").join(pid).join("ns/net")).ok();
        let (pid, began) = (self.keeper.id().to_string(), Instant::now());
        while namespace(&pid).is_none_or(|other| Some(other) == namespace("self")) {
            let has_ended = self.keeper.try_wait().is_ok_and(|status| status.is_some());
            if has_ended || began.elapsed() > LIMIT {
                return Err(CommandError::new(
                    "`unshare --net` makes no network namespace; run this as root",
                ));
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        // Without its stdin the keeper ends, and with it the namespace and both interfaces.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// Runs a command of the system.
fn run(words: &[&str]) -> Result<(), CommandError> {
    let failed = |why: &str| CommandError::new(format_args!("`{}`: {why}", words.join(" ")));
    let output = Command::new(words[0])
        .args(&words[1..])
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .stdin(Stdio::null())
        .output()
        .map_err(|e| failed(&format!("{e}; install iproute2 and util-linux")))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim())),
    }
}
