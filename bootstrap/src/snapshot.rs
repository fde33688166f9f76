//! Snapshots of a job: the status of each rank's process, as text, and the state of processes that give none.
//!
//! The rendezvous asks all ranks for their status, which a thread of each process answers. A process that is
//! stopped, or whose host is gone, does not answer; the rendezvous, or another rank of that host, looks at
//! the state of the process instead.
//!
//! This crate does not interpret the text.

use serde::{Deserialize, Serialize};
use std::fmt;
use transport::host::process_state;

/// The ranks of a job, without asking them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobMembers {
    /// Number that all ranks and the rendezvous of a communicator know; 0 until all ranks have joined.
    pub id: u64,
    /// Name of the job, where it was made from another one; otherwise empty.
    pub job: String,
    /// Number of ranks; 0 while it is not known.
    pub size: u32,
    /// Process id of the rendezvous.
    pub rendezvous_pid: u32,
    /// The ranks that have joined: rank, process id and host.
    pub ranks: Vec<(u32, u32, String)>,
}

/// A job at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The ranks of the job.
    pub members: JobMembers,
    /// Presence of each rank, in rank order.
    pub ranks: Vec<Presence>,
}

/// Presence of a rank in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// The rank has not joined.
    NotJoined,
    /// The rank has joined, but waits for other ranks.
    Starting,
    /// The status of its process.
    Answered(String),
    /// No answer in time; the state of its process.
    Silent(ProcessState),
    /// The rank has closed its communicator.
    Left,
    /// The process has ended. Holds the way, as the rest of a sentence.
    Died(String),
}

/// State of a process, as far as the system tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// Stopped by a signal or a debugger.
    Stopped,
    /// In a system call that cannot be interrupted.
    Uninterruptible,
    /// Running or sleeping.
    Alive,
    /// Ended.
    Ended,
    /// Not known.
    Unknown,
}

impl ProcessState {
    /// Returns the state of a process of this host.
    #[must_use]
    pub fn of(pid: u32) -> ProcessState {
        match process_state(pid) {
            Some('T' | 't') => ProcessState::Stopped,
            Some('D') => ProcessState::Uninterruptible,
            Some('Z' | 'X' | 'x') => ProcessState::Ended,
            Some(_) => ProcessState::Alive,
            None => ProcessState::Unknown,
        }
    }

    /// Whether a process in this state gives no answer, however long one waits.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, ProcessState::Stopped | ProcessState::Ended)
    }
}

impl fmt::Display for ProcessState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProcessState::Stopped => "stopped (state T)",
            ProcessState::Uninterruptible => "in a system call that cannot be interrupted (state D)",
            ProcessState::Alive => "alive, but does not answer",
            ProcessState::Ended => "ended",
            ProcessState::Unknown => "silent: it is stopped, or its host is gone",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_process_that_is_not_there_is_final_and_ours_is_not() {
        let ours = ProcessState::of(std::process::id());
        assert!(!ours.is_final(), "{ours}");
        #[cfg(target_os = "linux")]
        assert!(ProcessState::of(u32::MAX >> 1).is_final());
    }
}
