//! Finds the processes of a job on this host, and signals them.
//!
//! A process belongs to the job if it descends from this process, or if it has the job's mark in the
//! environment that it was started with. On Linux this process can adopt orphans ([`adopt_orphans`]): a
//! daemon then remains its descendant, in any session and with any environment. On other systems orphans
//! descend from process 1, and the mark finds those whose environment can be read.
//!
//! | module | purpose |
//! |---|---|
//! | `procfs` | processes and their environments on Linux |
//! | `ps` | the same on other systems, from ps(1) |

#[cfg(target_os = "linux")]
mod procfs;
#[cfg(any(test, not(target_os = "linux")))]
#[cfg_attr(target_os = "linux", expect(dead_code, reason = "compiled for its tests"))]
mod ps;

#[cfg(target_os = "linux")]
use procfs as system;
#[cfg(not(target_os = "linux"))]
use ps as system;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, waitid};
use serde::{Deserialize, Serialize};
use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
};

/// Interval between searches while processes end.
pub(super) use system::SEARCH_INTERVAL;

/// A process at a moment. Its id and start together name no other process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Process {
    /// The process id.
    pub(super) pid: Pid,
    /// The parent's process id.
    parent: Option<Pid>,
    /// Start time in units of the system; 0 if unknown.
    start: u64,
    /// Whether it has ended and waits for its parent to read its status.
    is_zombie: bool,
}

impl Process {
    /// Sends a signal, unless the process has ended.
    pub(super) fn signal(&self, signal: Signal) {
        system::signal(self, signal);
    }
}

/// A value in the environment of a job's processes that no other process has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobMark(String);

impl JobMark {
    /// The environment variable.
    pub(super) const NAME: &str = "TBCCL_JOB";

    /// Returns a random mark.
    pub(super) fn new() -> JobMark {
        let random = || RandomState::new().hash_one(getpid());
        JobMark(format!("{:016x}{:016x}", random(), random()))
    }

    /// Returns the mark that another process has sent.
    pub(super) fn from_value(value: &str) -> JobMark {
        JobMark(value.to_owned())
    }

    /// Returns the value of the environment variable.
    pub(super) fn value(&self) -> &str {
        &self.0
    }
}

/// Makes this process the parent of orphans among its descendants. On systems that can't do so, and if it
/// fails, process 1 adopts them.
pub(super) fn adopt_orphans() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(getpid()));
}

/// Whether this process has children, running or not.
pub(super) fn has_children() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::All, options), Err(rustix::io::Errno::CHILD))
}

/// Reaps children that have ended.
pub(super) fn reap_children() {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    while matches!(waitid(WaitId::All, options), Ok(Some(_))) {}
}

/// Reaps adopted orphans that have ended, which would otherwise use up process ids. `own` are the children
/// that this process has started itself, and still waits for.
pub(super) fn reap_adopted(own: &[Pid]) {
    let here = getpid();
    let is_adopted = |process: &Process| process.is_zombie && process.parent == Some(here);
    for process in system::all().iter().filter(|process| is_adopted(process) && !own.contains(&process.pid)) {
        let _ = waitid(WaitId::Pid(process.pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

/// Criteria by which a process belongs to a job.
#[derive(Clone, Debug)]
pub(super) struct Scope {
    /// Whether descendants of this process belong to it.
    has_descendants: bool,
    /// The mark of other processes of the job.
    mark: Option<JobMark>,
}

impl Scope {
    /// Processes that descend from this one, or have the mark where this process can't adopt orphans.
    pub(super) fn descendants(mark: Option<JobMark>) -> Scope {
        let mark = mark.filter(|_| !cfg!(target_os = "linux"));
        Scope { has_descendants: true, mark }
    }

    /// Processes with a mark.
    pub(super) fn marked(mark: JobMark) -> Scope {
        Scope { has_descendants: false, mark: Some(mark) }
    }

    /// Returns the live processes of the job. This process is none of them.
    pub(super) fn find(&self) -> Vec<Process> {
        let all = system::all();
        let mut found = if self.has_descendants { descendants(&all, getpid()) } else { HashSet::new() };
        if let Some(mark) = &self.mark {
            found.extend(system::with_variable(&all, JobMark::NAME, mark.value()));
        }
        found.into_iter().filter(|process| !process.is_zombie && process.pid != getpid()).collect()
    }

    /// Whether no process of the job is left. Reaps children that have ended.
    pub(super) fn is_empty(&self) -> bool {
        if self.has_descendants {
            reap_children();
        }
        match self.mark {
            None => !has_children(),
            Some(_) => self.find().is_empty(),
        }
    }
}

/// Returns the descendants of a process.
fn descendants(all: &[Process], ancestor: Pid) -> HashSet<Process> {
    let mut found = HashSet::new();
    let mut parents = vec![ancestor];
    while let Some(parent) = parents.pop() {
        for process in all.iter().filter(|process| process.parent == Some(parent)) {
            if found.insert(*process) {
                parents.push(process.pid);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn pid(number: i32) -> Pid {
        Pid::from_raw(number).expect("not 0")
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_others_are_not() {
        let process = |(number, parent)| Process {
            pid: pid(number),
            parent: Pid::from_raw(parent),
            start: 0,
            is_zombie: false,
        };
        let all = [(1, 0), (9, 1), (20, 9), (5, 20), (21, 9), (30, 1), (31, 30)].map(process);
        let mut found: Vec<i32> = descendants(&all, pid(9)).iter().map(|p| p.pid.as_raw_pid()).collect();
        found.sort_unstable();
        assert_eq!(found, [5, 20, 21]);
    }

    #[test]
    fn processes_with_a_mark_are_found_and_others_are_not() {
        let (ours, other) = (JobMark::new(), JobMark::new());
        assert_ne!(ours, other);
        let start = |mark: &JobMark| {
            let mut command = Command::new("sleep");
            command.arg("1000").env(JobMark::NAME, mark.value()).stdin(Stdio::null());
            command.spawn().expect("sleep")
        };
        let mut children = [start(&ours), start(&other), start(&JobMark(format!("{}0", ours.value())))];
        let found = Scope::marked(ours.clone()).find();
        assert_eq!(found.iter().map(|p| p.pid).collect::<Vec<_>>(), [Pid::from_child(&children[0])]);
        found[0].signal(Signal::KILL);
        let _ = children[0].wait();
        assert!(Scope::marked(ours).find().is_empty());
        assert!(children[1].try_wait().expect("our child").is_none(), "another job's process");
        for child in &mut children[1..] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    #[test]
    fn a_process_that_took_over_the_id_is_not_signalled() {
        let mut child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().expect("sleep");
        let found = system::all().into_iter().find(|p| p.pid == Pid::from_child(&child)).expect("a process");
        Process { start: found.start + 1, ..found }.signal(Signal::KILL);
        found.signal(Signal::TERM);
        let status = child.wait().expect("our child");
        let by = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(by, Some(libc::SIGTERM));
    }
}
