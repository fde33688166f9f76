//! The metrics of all ranks of jobs at one moment.
//!
//! They are collected as for `tbccl why`: a rendezvous asks the ranks, which answer while they compute or
//! wait. So a job needs no endpoint of metrics.

use super::super::{
    CommandError,
    jobs::{self, Job},
};
use bootstrap::{Presence, Snapshot};
use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};
use tbccl::{
    metrics::RankMetrics,
    why::{CallStatus, ProcessStatus},
};

/// Time in which the ranks of a job answer. The rendezvous waits for a second for ranks that are silent.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(2);

/// Name of a rank: number of its job, and its number.
pub(super) type RankId = (u64, u32);

/// A rank at one moment.
#[derive(Clone, Debug)]
pub(super) struct RankState {
    /// Host and process id.
    pub(super) process: (String, u32),
    /// The metrics, if the rank has answered.
    pub(super) metrics: Option<RankMetrics>,
    /// Activity, as part of a sentence.
    pub(super) now: String,
}

/// All ranks at one moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) ranks: BTreeMap<RankId, RankState>,
}

impl Sample {
    /// Asks the ranks of all jobs of this user, or of the job that has a process.
    ///
    /// # Errors
    /// If there is no job, or none with that process.
    pub(super) fn take(job: Option<u32>) -> Result<Sample, CommandError> {
        let found = jobs::find().map_err(CommandError::new)?;
        let jobs: Vec<Job> = found.jobs.into_iter().filter(|found| found.has_process(job)).collect();
        if jobs.is_empty() {
            return Err(not_found(job, &found.silent.iter().map(|(pid, _)| *pid).collect::<Vec<_>>()));
        }
        let snapshots: Vec<Snapshot> = thread::scope(|scope| {
            let ask = |job: Job| scope.spawn(move || job.snapshots(SNAPSHOT_TIMEOUT));
            let threads: Vec<_> = jobs.into_iter().map(ask).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).flatten().collect()
        });
        Ok(Sample::of(&snapshots))
    }

    /// Merges snapshots of communicators that were just taken.
    pub(super) fn of(snapshots: &[Snapshot]) -> Sample {
        let mut ranks = BTreeMap::new();
        for snapshot in snapshots {
            let presences: BTreeMap<u32, &Presence> = (0..).zip(&snapshot.ranks).collect();
            for (rank, pid, host) in &snapshot.members.ranks {
                let process = (host.clone(), *pid);
                match presences.get(rank) {
                    Some(Presence::Answered(text)) => answered(&mut ranks, &process, text),
                    Some(presence) if snapshot.members.job.is_empty() => {
                        let state = RankState { process, metrics: None, now: absent(presence) };
                        ranks.entry((snapshot.members.id, *rank)).or_insert(state);
                    }
                    _ => {}
                }
            }
        }
        Sample { at: Instant::now(), ranks }
    }
}

/// Adds the ranks of a process that has answered. A status of another version may lack them.
fn answered(ranks: &mut BTreeMap<RankId, RankState>, process: &(String, u32), text: &str) {
    let Ok(status) = serde_json::from_str::<ProcessStatus>(text) else { return };
    for metrics in &status.metrics {
        let now = activity(&status, metrics);
        let state = RankState { process: process.clone(), metrics: Some(metrics.clone()), now };
        ranks.insert((metrics.job, metrics.rank), state);
    }
}

/// Describes the call in progress of a rank. Where a process has several ranks, their number in the call's
/// communicator tells them apart.
fn activity(status: &ProcessStatus, metrics: &RankMetrics) -> String {
    let is_alone = status.metrics.len() == 1;
    let own = status.communicators.iter().filter(|comm| is_alone || comm.rank == metrics.rank);
    own.clone().find_map(|comm| comm.call.as_ref()).map_or_else(
        || match own.filter_map(|comm| comm.error.as_ref()).next() {
            Some(error) => format!("failed: {error}"),
            None => "outside tbccl".to_owned(),
        },
        describe,
    )
}

fn describe(call: &CallStatus) -> String {
    let mut text = match call.is_tagged {
        true => call.name.clone(),
        false => format!("{} number {}", call.name, call.number),
    };
    if let Some(wait) = &call.wait {
        text.push_str(&format!(", waits {:.1} s", wait.seconds));
        if let Some(peer) = wait.peer {
            text.push_str(&format!(" for rank {peer}"));
        }
    }
    text
}

fn absent(presence: &Presence) -> String {
    match presence {
        Presence::NotJoined => "has not joined".to_owned(),
        Presence::Starting => "waits for other ranks to join".to_owned(),
        Presence::Silent(state) => state.to_string(),
        Presence::Left => "has left".to_owned(),
        Presence::Died(how) => how.clone(),
        Presence::Answered(_) => String::new(),
    }
}

/// Returns the error where there is no job, or none with the wanted process.
fn not_found(wanted: Option<u32>, silent: &[u32]) -> CommandError {
    let mut why = match wanted {
        Some(pid) => format!("process {pid} belongs to no job of this user that answers on this machine"),
        None => "no job of this user has its rendezvous on this machine; run this where `tbccl run`, `tbccl \
                 rendezvous` or rank 0 runs"
            .to_owned(),
    };
    for pid in silent {
        why.push_str(&format!("; process {pid}, which has the rendezvous of a job, does not answer"));
    }
    CommandError::new(why)
}
