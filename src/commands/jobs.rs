//! The jobs of this user that have a rendezvous on this host.
//!
//! A job has a rendezvous for each of its communicators. Those whose ranks have processes in common belong to
//! one job. Each process describes all of its communicators, so a few rendezvous cover a job.

use bootstrap::{FoundRendezvous, JobMembers, ProcessState, Snapshot};
use std::{
    collections::{BTreeMap, BTreeSet},
    io, thread,
    time::Duration,
};

/// Time in which a rendezvous answers.
const MEMBERS_TIMEOUT: Duration = Duration::from_millis(500);

/// A process: its id and host.
type Process = (u32, String);

/// The jobs of this user, and rendezvous that do not answer: process id and state.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) jobs: Vec<Job>,
    pub(super) silent: Vec<(u32, ProcessState)>,
}

/// A job: its rendezvous, the one with most ranks first.
#[derive(Debug)]
pub(super) struct Job {
    rendezvous: Vec<(FoundRendezvous, JobMembers)>,
    processes: BTreeSet<Process>,
}

/// Finds the jobs of this user.
pub(super) fn find() -> Result<Found, bootstrap::Error> {
    let found = FoundRendezvous::all()?;
    let asked: Vec<(FoundRendezvous, io::Result<JobMembers>)> = thread::scope(|scope| {
        let ask = |mut rendezvous: FoundRendezvous| {
            scope.spawn(move || {
                let members = rendezvous.members(MEMBERS_TIMEOUT);
                (rendezvous, members)
            })
        };
        let threads: Vec<_> = found.into_iter().map(ask).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let (mut answered, mut silent) = (Vec::new(), BTreeMap::new());
    for (rendezvous, members) in asked {
        match members {
            // Nobody has joined, or all have left.
            Ok(members) if members.ranks.is_empty() => {}
            Ok(members) => answered.push((rendezvous, members)),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                silent.extend(rendezvous.pid().map(|pid| (pid, rendezvous.process_state())));
            }
            // It has ended meanwhile.
            Err(_) => {}
        }
    }
    Ok(Found { jobs: group(answered), silent: silent.into_iter().collect() })
}

fn processes_of(members: &JobMembers) -> BTreeSet<Process> {
    members.ranks.iter().map(|(_, pid, host)| (*pid, host.clone())).collect()
}

/// Groups rendezvous by processes that they have in common.
fn group(mut all: Vec<(FoundRendezvous, JobMembers)>) -> Vec<Job> {
    all.sort_by_key(|(_, members)| (!members.job.is_empty(), std::cmp::Reverse(members.ranks.len())));
    let mut jobs: Vec<Job> = Vec::new();
    for (rendezvous, members) in all {
        let processes = processes_of(&members);
        // Several jobs become one if this communicator connects them.
        let (same, others): (Vec<Job>, Vec<Job>) =
            jobs.into_iter().partition(|job| !job.processes.is_disjoint(&processes));
        let mut job = Job { rendezvous: Vec::new(), processes };
        for other in same {
            job.processes.extend(other.processes);
            job.rendezvous.extend(other.rendezvous);
        }
        job.rendezvous.push((rendezvous, members));
        jobs = others;
        jobs.push(job);
    }
    jobs
}

impl Job {
    /// Whether a process is a rank of the job or has its rendezvous; any job will do without one.
    pub(super) fn has_process(&self, wanted: Option<u32>) -> bool {
        let of_ranks = self.processes.iter().map(|(pid, _)| *pid);
        let mut all = of_ranks.chain(self.rendezvous.iter().map(|(_, members)| members.rendezvous_pid));
        wanted.is_none_or(|wanted| all.any(|pid| pid == wanted))
    }

    /// Returns the process id of its first rendezvous.
    pub(super) fn rendezvous_pid(&self) -> u32 {
        self.rendezvous.first().map_or(0, |(_, members)| members.rendezvous_pid)
    }

    /// Asks for the status of every process, each through one rendezvous where possible.
    pub(super) fn snapshots(self, timeout: Duration) -> Vec<Snapshot> {
        let mut covered = BTreeSet::new();
        let mut needed = Vec::new();
        for (rendezvous, members) in self.rendezvous {
            let processes = processes_of(&members);
            let is_complete = members.ranks.len() == members.size as usize;
            if !is_complete || !processes.is_subset(&covered) {
                covered.extend(processes);
                needed.push(rendezvous);
            }
        }
        thread::scope(|scope| {
            let ask =
                |mut rendezvous: FoundRendezvous| scope.spawn(move || rendezvous.snapshot(timeout).ok());
            let threads: Vec<_> = needed.into_iter().map(ask).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
        })
    }
}
