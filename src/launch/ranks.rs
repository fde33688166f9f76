//! The process groups of a job's ranks on this host.
//!
//! Each rank leads a process group. Signals go to the group, so that the children of a wrapper script receive
//! them too. An ended leader is left unreaped while its group may be signalled; its process id, which is also
//! the group's, therefore cannot be reused.

use super::{Ended, processes, spawn::pid_of};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, waitid};
use std::process::Child;

/// One rank's process group.
#[derive(Debug)]
pub(super) struct RankProcess {
    /// The rank.
    pub(super) rank: u32,
    /// Process id of the leader, which is also the group's id.
    pid: Pid,
    /// How the leader ended; `None` while it runs.
    ended: Option<Ended>,
}

impl RankProcess {
    /// Signals the whole group. An empty group is no error.
    fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.pid, signal);
    }

    /// Returns how the leader ended, if it has ended since the last call.
    fn newly_ended(&mut self) -> Option<Ended> {
        if self.ended.is_none() {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            self.ended = waitid(WaitId::Pid(self.pid), options).ok().flatten().and_then(|s| exit_of(&s));
            return self.ended;
        }
        None
    }
}

fn exit_of(status: &WaitIdStatus) -> Option<Ended> {
    let exited = status.exit_status().map(|code| Ended::Exited((code & 0xff) as u8));
    exited.or_else(|| status.terminating_signal().map(Ended::Signaled))
}

/// All started ranks.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    /// Process groups in rank order.
    processes: Vec<RankProcess>,
}

impl Ranks {
    /// Adds a process that leads its own group.
    pub(super) fn add(&mut self, rank: u32, child: &Child) {
        self.processes.push(RankProcess { rank, pid: pid_of(child), ended: None });
    }

    /// Returns the ranks that have ended since the last call.
    pub(super) fn newly_ended(&mut self) -> Vec<(&RankProcess, Ended)> {
        self.processes.iter_mut().filter_map(|p| p.newly_ended().map(|exit_of| (&*p, exit_of))).collect()
    }

    /// Signals every group, including those whose leader has ended.
    pub(super) fn signal(&self, signal: Signal) {
        for process in &self.processes {
            process.signal(signal);
        }
        if signal == Signal::TERM {
            // A stopped process must continue to handle SIGTERM.
            self.signal(Signal::CONT);
        }
    }

    /// Reaps ended processes that are no leaders: orphans of the groups, which this process has adopted.
    pub(super) fn reap_orphans(&self) {
        let leaders: Vec<Pid> = self.processes.iter().map(|process| process.pid).collect();
        processes::reap_adopted(&leaders);
    }
}
