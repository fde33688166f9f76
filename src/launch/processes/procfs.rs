//! Processes and their environments on Linux, from procfs.

use super::Process;
use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, pidfd_send_signal},
};
use std::{fs, os::unix::ffi::OsStrExt, time::Duration};

/// Interval between searches while processes end.
pub(in crate::launch) const SEARCH_INTERVAL: Duration = Duration::from_millis(10);

/// Returns all processes; none if procfs belongs to another process namespace, where ids differ.
pub(super) fn all() -> Vec<Process> {
    let own = fs::read_link("/proc/self").ok();
    if own.is_none_or(|own| own.as_os_str().as_bytes() != getpid().as_raw_pid().to_string().as_bytes()) {
        return Vec::new();
    }
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw));
    ids.filter_map(read).collect()
}

/// Returns those of `all` whose environment at the start had a variable with this value.
pub(super) fn with_variable(all: &[Process], name: &str, value: &str) -> Vec<Process> {
    let wanted = format!("{name}={value}");
    let has_variable = |process: &&Process| {
        let environment = fs::read(format!("/proc/{}/environ", process.pid.as_raw_pid()));
        environment.is_ok_and(|text| text.split(|byte| *byte == 0).any(|one| one == wanted.as_bytes()))
    };
    all.iter().filter(has_variable).copied().collect()
}

/// Sends a signal to a process, and to no other that has the same id by now.
pub(super) fn signal(process: &Process, signal: Signal) {
    let is_same = || read(process.pid).is_some_and(|now| now.start == process.start);
    match pidfd_open(process.pid, PidfdFlags::empty()) {
        Ok(descriptor) if is_same() => drop(pidfd_send_signal(descriptor, signal)),
        // Kernels before 5.3 have no such descriptors, and containers may forbid them.
        Err(Errno::NOSYS | Errno::PERM) if is_same() => drop(kill_process(process.pid, signal)),
        _ => {}
    }
}

fn read(pid: Pid) -> Option<Process> {
    parse(pid, &fs::read(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?)
}

/// Parses the content of a `stat` file. The program's name may contain any byte.
fn parse(pid: Pid, text: &[u8]) -> Option<Process> {
    let name_end = text.iter().rposition(|byte| *byte == b')')?;
    let fields: Vec<&str> = std::str::from_utf8(&text[name_end + 1..]).ok()?.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let parent = number(1).and_then(|parent| i32::try_from(parent).ok()).and_then(Pid::from_raw);
    Some(Process { pid, parent, start: number(19)?, is_zombie: matches!(*fields.first()?, "Z" | "X") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_programs_with_brackets_and_spaces_do_not_hide_the_fields() {
        let pid = Pid::from_raw(7).expect("not 0");
        let text = b"7 (a) R 1 (\xff b) Z 3 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 8311 2 3";
        let expected = Process { pid, parent: Pid::from_raw(3), start: 8311, is_zombie: true };
        assert_eq!(parse(pid, text), Some(expected));
        assert_eq!(parse(pid, b"7 (a) S 3"), None);
    }

    #[test]
    fn this_process_is_found_with_its_parent() {
        let found = all().into_iter().find(|process| process.pid == getpid()).expect("this process");
        assert_eq!(found.parent, rustix::process::getppid());
    }
}
