//! The processes of a job on this host.
//!
//! A rank is the leader of a process group, and signals go to the group, so that the children of a wrapper
//! script get them as well. An ended leader is left unreaped until [`Ranks::sweep`], which keeps its id, and
//! so the group's, from being given to another process.

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
    /// The leader's process id, and the group's.
    pid: Pid,
    /// Set when the leader has ended.
    ended: Option<Ended>,
}

impl RankProcess {
    /// The process id.
    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_pid().unsigned_abs()
    }

    /// Signals the whole group. That there is nobody left to hear it is no error.
    fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.pid, signal);
    }

    /// How the leader ended, when it did since the last time.
    fn newly_ended(&mut self) -> Option<Ended> {
        if self.ended.is_none() {
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            self.ended = waitid(WaitId::Pid(self.pid), look).ok().flatten().and_then(|s| how(&s));
            return self.ended;
        }
        None
    }

    /// Gives the leader's id back, and the ids of orphans of the group that have become our children.
    fn reap(&self) {
        let take = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        while matches!(waitid(WaitId::Pgid(Some(self.pid)), take), Ok(Some(_))) {}
    }
}

fn how(status: &WaitIdStatus) -> Option<Ended> {
    let exited = status.exit_status().map(|code| Ended::Exited((code & 0xff) as u8));
    exited.or_else(|| status.terminating_signal().map(Ended::Signaled))
}

/// All ranks that have been started. Dropping it kills what still runs.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    /// In rank order. Emptied when all groups are gone.
    processes: Vec<RankProcess>,
}

impl Ranks {
    /// Interval of checks whether a group is gone: the end of a process that is no child is not reported.
    const LOOK_AGAIN: Duration = Duration::from_millis(5);
    /// How long a killed process may take to disappear.
    const LAST_WAIT: Duration = Duration::from_secs(2);

    /// Takes charge of a process that leads its own group.
    pub(super) fn add(&mut self, rank: u32, child: &Child) {
        self.processes.push(RankProcess { rank, pid: pid_of(child), ended: None });
    }

    /// Returns the ranks that have ended since the last call.
    pub(super) fn newly_ended(&mut self) -> Vec<(&RankProcess, Ended)> {
        self.processes.iter_mut().filter_map(|p| p.newly_ended().map(|how| (&*p, how))).collect()
    }

    /// Returns the running ranks.
    pub(super) fn running(&self) -> impl Iterator<Item = &RankProcess> {
        self.processes.iter().filter(|p| p.ended.is_none())
    }

    /// Signals every group, those of ended leaders too.
    pub(super) fn signal(&self, signal: Signal) {
        for process in &self.processes {
            process.signal(signal);
        }
        if signal == Signal::TERM {
            // A stopped process can't do what it is asked to.
            self.signal(Signal::CONT);
        }
    }

    /// When all leaders have ended: ends what they left behind in their groups.
    pub(super) fn sweep(mut self, grace: Duration) {
        for (signal, wait) in [(Signal::TERM, grace), (Signal::KILL, Ranks::LAST_WAIT)] {
            if self.are_gone() {
                return;
            }
            self.signal(signal);
            self.wait_until_gone(wait);
        }
    }

    /// Reaps what has ended, forgets the groups without members, and says whether that is all.
    fn are_gone(&mut self) -> bool {
        self.processes.retain(|p| {
            p.reap();
            test_kill_process_group(p.pid).is_ok()
        });
        self.processes.is_empty()
    }

    fn wait_until_gone(&mut self, limit: Duration) {
        let until = Instant::now() + limit;
        while !self.are_gone() && Instant::now() < until {
            sleep(Ranks::LOOK_AGAIN);
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        if !self.processes.is_empty() {
            self.signal(Signal::KILL);
            self.wait_until_gone(Ranks::LAST_WAIT);
        }
    }
}
