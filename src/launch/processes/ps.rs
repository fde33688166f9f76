//! Processes and their environments on systems without procfs, from ps(1).
//!
//! Start times are not known here, and there are no descriptors of processes, so a signal may reach another
//! process if its id is reused between a search and the signal.

use super::Process;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    process::{Command, Stdio},
    time::Duration,
};

/// Interval between searches while processes end.
pub(in crate::launch) const SEARCH_INTERVAL: Duration = Duration::from_millis(100);

/// Returns all processes.
pub(super) fn all() -> Vec<Process> {
    let Some((own, text)) = run(&["-axo", "pid=,ppid=,stat="]) else { return Vec::new() };
    text.lines().filter_map(parse).filter(|process| process.pid != own).collect()
}

/// Returns those of `all` whose environment has a variable with this value. The environments of other users
/// and of the system's own programs can't be read.
pub(super) fn with_variable(all: &[Process], name: &str, value: &str) -> Vec<Process> {
    let wanted = format!("{name}={value}");
    let Some((_, text)) = run(&["-axEwwo", "pid=,command="]) else { return Vec::new() };
    let with_variable: Vec<Pid> = text.lines().filter_map(|line| id_of_line_with(line, &wanted)).collect();
    all.iter().filter(|process| with_variable.contains(&process.pid)).copied().collect()
}

/// Sends a signal to a process.
pub(super) fn signal(process: &Process, signal: Signal) {
    let _ = kill_process(process.pid, signal);
}

/// Runs ps(1); returns its process id and its output.
fn run(arguments: &[&str]) -> Option<(Pid, String)> {
    let mut command = Command::new("/bin/ps");
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let child = command.spawn().ok()?;
    let pid = Pid::from_child(&child);
    let output = child.wait_with_output().ok()?;
    Some((pid, String::from_utf8_lossy(&output.stdout).into_owned()))
}

/// Parses a line of process id, parent and state.
fn parse(line: &str) -> Option<Process> {
    let mut fields = line.split_whitespace();
    let pid = Pid::from_raw(fields.next()?.parse().ok()?)?;
    let parent = Pid::from_raw(fields.next()?.parse().ok()?);
    Some(Process { pid, parent, start: 0, is_zombie: fields.next()?.starts_with('Z') })
}

/// Returns the process id of a line whose command or environment contains a word.
fn id_of_line_with(line: &str, word: &str) -> Option<Pid> {
    let mut words = line.split_whitespace();
    let pid = words.next()?.parse().ok().and_then(Pid::from_raw)?;
    words.any(|one| one == word).then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_ps_are_read() {
        let process = parse("  412     1 Ss+").expect("a line");
        assert_eq!((process.pid.as_raw_pid(), process.parent), (412, Pid::from_raw(1)));
        assert!(!process.is_zombie && parse("7 412 Z+").expect("a line").is_zombie);
        assert_eq!(parse("PID PPID STAT"), None);
    }

    #[test]
    fn a_mark_is_a_whole_word() {
        let id = |line| id_of_line_with(line, "TBCCL_JOB=ab").map(Pid::as_raw_pid);
        assert_eq!(id("  77 ./train --x PATH=/bin TBCCL_JOB=ab HOME=/"), Some(77));
        assert_eq!(id("  77 ./train TBCCL_JOB=abc"), None);
    }
}
