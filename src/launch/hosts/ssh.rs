//! Command lines that start an agent, and explanations of their failures.
//!
//! On this host the agent is this program. On other hosts the system's ssh starts it, with the user's
//! configuration and keys. It never asks for a password. Nothing about the job appears on a command line,
//! where other users could read it.

use crate::launch::{HostSpec, Hosts};
use std::{
    ffi::{OsStr, OsString},
    net::IpAddr,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::Path,
    process::{Command, ExitStatus},
};

/// Options for OpenSSH. The user's own configuration takes precedence.
const OPTIONS: [&str; 13] = [
    "-T",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=10",
    "-o",
    "ServerAliveInterval=5",
    "-o",
    "ServerAliveCountMax=3",
    "-o",
    "ClearAllForwardings=yes",
    "-o",
    "EscapeChar=none",
];

/// Exit status of the remote command when it finds no tbccl. No shell uses this status itself.
const NO_TBCCL: i32 = 87;

/// Returns the command that starts the agent of a host.
pub(super) fn command(plan: &Hosts, host: &HostSpec) -> Command {
    if host.local {
        let mut command = Command::new(&plan.agent);
        command.arg("agent");
        return command;
    }
    remote(plan, host, "agent")
}

/// Returns the command that runs tbccl on another host, with arguments that need no quotation marks.
pub(super) fn remote(plan: &Hosts, host: &HostSpec, arguments: &str) -> Command {
    let (program, options) =
        plan.ssh.split_first().map_or((OsStr::new("ssh"), [].as_slice()), |(p, o)| (p.as_os_str(), o));
    let mut command = Command::new(program);
    command.args(options);
    // Only OpenSSH gets these options; another program gets the host and the command alone.
    if Path::new(program).file_name().is_some_and(|name| name == "ssh") {
        command.args(OPTIONS).arg("--");
    }
    command.arg(&host.name).arg(remote_line(plan, arguments));
    command
}

/// Returns the command line for the other host's login shell, in a form that any shell understands.
fn remote_line(plan: &Hosts, arguments: &str) -> OsString {
    let (first, second) = match &plan.tbccl {
        Some(path) => (path.as_os_str(), OsStr::new("")),
        None => (plan.agent.as_os_str(), OsStr::new("tbccl")),
    };
    let script = format!(
        r#"x=$(command -v "$1") || x=$([ -n "$2" ] && command -v "$2") || exit {NO_TBCCL}; exec "$x" {}"#,
        arguments
    );
    let words = ["exec", "sh", "-c", &quoted(OsStr::new(&script)).to_string_lossy(), "sh"].join(" ");
    let mut line = OsString::from(words);
    for word in [first, second] {
        line.push(" ");
        line.push(quoted(word));
    }
    line
}

/// Quotes a word in single quotes, which every shell understands.
fn quoted(word: &OsStr) -> OsString {
    let mut out = vec![b'\''];
    for byte in word.as_bytes() {
        match byte {
            b'\'' => out.extend(b"'\\''"),
            byte => out.push(*byte),
        }
    }
    out.push(b'\'');
    OsString::from_vec(out)
}

/// Whether `name` is the local host: one of its names, or an address of one of its interfaces.
pub(in crate::launch) fn is_here(name: &str) -> bool {
    let nodename = rustix::system::uname();
    let nodename = nodename.nodename().to_string_lossy().into_owned();
    let short = nodename.split('.').next().unwrap_or_default();
    ["localhost", "127.0.0.1", "::1"].contains(&name)
        || (!nodename.is_empty() && (name == nodename || name == short))
        || name.parse().is_ok_and(is_ours)
}

/// Whether one of this host's interfaces has this address.
fn is_ours(address: IpAddr) -> bool {
    if_addrs::get_if_addrs().is_ok_and(|interfaces| interfaces.iter().any(|own| own.ip() == address))
}

/// Explains why the agent ended, from the exit status of ssh (or of the local agent) and its last stderr
/// lines.
pub(super) fn explain(
    plan: &Hosts,
    host: &HostSpec,
    status: Option<ExitStatus>,
    stderr_lines: &[String],
) -> String {
    let stderr_lines = stderr_lines.iter().rev().find(|line| !line.trim().is_empty()).map(|line| line.trim());
    let detail = stderr_lines.map_or_else(String::new, |line| format!(": {line}"));
    let ssh = plan.ssh.first().map_or("ssh".into(), |program| program.to_string_lossy());
    let name = &host.name;
    match status.and_then(|status| status.code()) {
        _ if host.local => format!("the agent ended before its ranks{detail}"),
        Some(255) => format!(
            "{ssh} failed{detail}; `{ssh} {name} true` must work without a password; see `tbccl doctor \
             --check ssh --hosts {name}`"
        ),
        Some(NO_TBCCL) => match &plan.tbccl {
            Some(path) => format!("there is no {}; check --tbccl", path.display()),
            None => format!(
                "there is neither {} nor a tbccl in PATH; install it there, or say where it is with --tbccl",
                plan.agent.display()
            ),
        },
        Some(status) => {
            format!("{ssh} ended with status {status}{detail}; see what `{ssh} {name} tbccl --version` says")
        }
        None => format!("{ssh} was killed{detail}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::process::ExitStatusExt, process::Stdio};

    fn plan() -> Hosts {
        Hosts::new(vec![HostSpec::new("mac1")], vec![0], "/opt/it's here/tbccl")
    }

    fn args(command: &Command) -> Vec<String> {
        command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn ssh_asks_for_nothing_and_takes_no_name_for_an_option() {
        let mut plan = plan();
        plan.ssh = ["ssh", "-F", "conf"].map(Into::into).to_vec();
        let args = args(&command(&plan, &plan.hosts[0]));
        assert_eq!(args[..2], ["-F", "conf"]);
        assert!(args.contains(&"BatchMode=yes".to_owned()));
        assert_eq!(args[args.len() - 3..][..2], ["--", "mac1"]);
    }

    #[test]
    fn another_program_gets_the_host_and_the_line_only() {
        let mut plan = plan();
        plan.ssh = vec!["rsh".into()];
        assert_eq!(args(&command(&plan, &plan.hosts[0])).len(), 2);
    }

    /// Runs the remote command line in a local shell; returns its status and stdout.
    fn status_of_line(plan: &Hosts, path: &str) -> (Option<i32>, String) {
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(remote_line(plan, "agent")).env("PATH", path).stdin(Stdio::null());
        let output = shell.output().expect("a shell");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    #[test]
    fn our_own_path_comes_before_the_one_in_path() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let script = |name: &str, says: &str| {
            use std::os::unix::fs::PermissionsExt;
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(&path, format!("#!/bin/sh\necho {says} $1\n")).expect("written");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("made executable");
            path
        };
        let path = format!("{}:/usr/bin:/bin", folder.path().join("bin").display());
        let mut plan = plan();
        plan.agent = folder.path().join("it's here/tbccl");
        assert_eq!(status_of_line(&plan, &path).0, Some(NO_TBCCL));
        script("bin/tbccl", "found");
        assert_eq!(status_of_line(&plan, &path), (Some(0), "found agent".to_owned()));
        script("it's here/tbccl", "same");
        assert_eq!(status_of_line(&plan, &path), (Some(0), "same agent".to_owned()));
        plan.tbccl = Some(folder.path().join("nowhere"));
        assert_eq!(status_of_line(&plan, &path).0, Some(NO_TBCCL));
    }

    #[test]
    fn failures_say_what_ssh_said_and_what_helps() {
        let plan = plan();
        let why = |status: i32, stderr_lines: &str| {
            let stderr_lines: Vec<String> = stderr_lines.lines().map(str::to_owned).collect();
            explain(&plan, &plan.hosts[0], Some(ExitStatus::from_raw(status << 8)), &stderr_lines)
        };
        let refused = why(255, "x\nmac1: Permission denied (publickey).\n");
        assert!(refused.contains("Permission denied") && refused.contains("`ssh mac1 true`"), "{refused}");
        assert!(why(NO_TBCCL, "").contains("--tbccl"));
        assert!(why(1, "boom").contains("status 1: boom"));
    }

    #[test]
    fn this_host_needs_no_ssh() {
        assert!(is_here("localhost") && is_here("::1") && is_here("127.0.0.1"));
        assert!(is_here(&rustix::system::uname().nodename().to_string_lossy()));
        for own in if_addrs::get_if_addrs().expect("interfaces") {
            assert!(is_here(&own.ip().to_string()), "{own:?}");
        }
        assert!(!is_here("192.0.2.7") && !is_here("0.0.0.0"));
        assert!(!is_here("mac1.example") && !is_here("me@localhost"));
    }
}
