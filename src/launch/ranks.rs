//! The process groups of a job's ranks on this host.
//!
//! Each rank leads a process group. Signals go to the group, so that the children of a wrapper script receive
//! them too. An ended leader is left unreaped until [`Ranks::sweep`]; its process id, which is also the
//! group's, therefore cannot be reused.

use super::{Ended, spawn::pid_of};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, test_kill_process_group, waitid,
};
use std::{
    process::Child,
    thread::sleep,
    time::{Duration, Instant},
};

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
    /// The process id.
    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_pid().unsigned_abs()
    }

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

    /// Reaps the leader, and orphans of the group that have become children of this process.
    fn reap(&self) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        while matches!(waitid(WaitId::Pgid(Some(self.pid)), options), Ok(Some(_))) {}
    }
}

fn exit_of(status: &WaitIdStatus) -> Option<Ended> {
    let exited = status.exit_status().map(|code| Ended::Exited((code & 0xff) as u8));
    exited.or_else(|| status.terminating_signal().map(Ended::Signaled))
}

/// All started ranks. Dropping it kills those still running.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    /// Process groups in rank order; empty once all groups are gone.
    processes: Vec<RankProcess>,
}

impl Ranks {
    /// Interval of checks whether a group is gone; the system does not report the end of processes that are
    /// no children.
    const POLL_INTERVAL: Duration = Duration::from_millis(5);
    /// Time that a killed process may take to disappear.
    const KILL_WAIT: Duration = Duration::from_secs(2);

    /// Adds a process that leads its own group.
    pub(super) fn add(&mut self, rank: u32, child: &Child) {
        self.processes.push(RankProcess { rank, pid: pid_of(child), ended: None });
    }

    /// Returns the ranks that have ended since the last call.
    pub(super) fn newly_ended(&mut self) -> Vec<(&RankProcess, Ended)> {
        self.processes.iter_mut().filter_map(|p| p.newly_ended().map(|exit_of| (&*p, exit_of))).collect()
    }

    /// Returns the running ranks.
    pub(super) fn running(&self) -> impl Iterator<Item = &RankProcess> {
        self.processes.iter().filter(|p| p.ended.is_none())
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

    /// Ends the processes that remain in the groups after all leaders have ended.
    pub(super) fn sweep(mut self, grace: Duration) {
        for (signal, wait) in [(Signal::TERM, grace), (Signal::KILL, Ranks::KILL_WAIT)] {
            if self.reap_and_check() {
                return;
            }
            self.signal(signal);
            self.wait_until_gone(wait);
        }
    }

    /// Reaps ended processes and removes empty groups; returns whether none is left.
    fn reap_and_check(&mut self) -> bool {
        self.processes.retain(|p| {
            p.reap();
            test_kill_process_group(p.pid).is_ok()
        });
        self.processes.is_empty()
    }

    fn wait_until_gone(&mut self, limit: Duration) {
        let until = Instant::now() + limit;
        while !self.reap_and_check() && Instant::now() < until {
            sleep(Ranks::POLL_INTERVAL);
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        if !self.processes.is_empty() {
            self.signal(Signal::KILL);
            self.wait_until_gone(Ranks::KILL_WAIT);
        }
    }
}
