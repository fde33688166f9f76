//! Processes as the system shows them.

use rustix::process::{Pid, Signal, kill_process};
use std::fs;

/// Sends a signal to a process, which may have ended.
pub(super) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Returns the fields of a process after its name: state, parent, ...
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

/// Whether a process exists and has not ended.
pub(super) fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|fields| fields.first().is_some_and(|state| state != "Z" && state != "X"))
}

/// Returns the parent of a process.
pub(super) fn parent(pid: u32) -> Option<u32> {
    stat(pid)?.get(1)?.parse().ok()
}

/// Returns the command line of a process, its words separated by spaces.
pub(super) fn command_line(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ").trim().to_owned()
}

/// Returns the living processes whose environment has this variable and value.
pub(super) fn with_variable(name: &str, value: &str) -> Vec<u32> {
    let wanted = format!("{name}={value}");
    let carries = |bytes: Vec<u8>| bytes.split(|byte| *byte == 0).any(|one| one == wanted.as_bytes());
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| fs::read(format!("/proc/{pid}/environ")).is_ok_and(carries) && is_alive(*pid)).collect()
}

/// Makes this process the parent of orphans, so that it can reap them.
pub(in crate::commands::chaos) fn adopt_orphans() {
    // If this fails, process 1 reaps them.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

/// Reaps children of this process that have ended, orphans among them.
pub(super) fn reap() {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    while matches!(waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG), Ok(Some(_))) {}
}
