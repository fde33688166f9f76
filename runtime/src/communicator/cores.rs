//! The cores of a rank, and the ranks of its host that may use the same ones.
//!
//! A rank that shares its cores with too many others must not spin while it waits: a peer may need the core.
//! Ranks may be bound to cores of their own (`tbccl run --bind`, `mpirun --bind-to`, `srun --cpu-bind`,
//! `taskset`). Such a rank shares its core with no other rank, however many its host has. So this module asks
//! the system for the cores of each rank of the host, by its process.
//!
//! This decides how one rank waits, and how many threads reduce for it. Nothing here may decide about plans,
//! since ranks get different results.

use crate::error::PeerName;
use std::{sync::OnceLock, thread};
use topology::Rank;

/// Cores, and the number of ranks that share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CoreShare {
    pub(super) cores: u32,
    pub(super) ranks: u32,
}

impl CoreShare {
    /// Returns the share of a rank in the cores of its host.
    pub(super) fn of(rank: Rank, names: &[PeerName]) -> CoreShare {
        CoreShare::and_others(rank, names).0
    }

    /// Returns the share of a rank in the cores of its host, and the ranks of the host that use other cores.
    pub(super) fn and_others(rank: Rank, names: &[PeerName]) -> (CoreShare, Vec<Rank>) {
        let host = names.get(rank.index()).map_or("", |name| &name.host);
        let others = names.iter().filter(|name| name.host == host && name.rank != rank);
        let (share, elsewhere) = match system::cores_of_this_thread() {
            // A process of another container may have a number that is of no process here, or of another
            // one. Without its cores the rank is taken to use the same ones as this rank.
            Some(own) => {
                let cores = |name: &PeerName| system::cores_of(name.pid).unwrap_or(own);
                share(own, others.map(|other| (other.rank, cores(other))))
            }
            None => (CoreShare { cores: u32::MAX, ranks: 1 + others.count() as u32 }, Vec::new()),
        };
        (CoreShare { cores: share.cores.min(limit(share.cores)), ..share }, elsewhere)
    }
}

/// Processors by number, as the system counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CoreSet([u64; 16]);

impl CoreSet {
    fn with(mut self, core: usize) -> CoreSet {
        if let Some(word) = self.0.get_mut(core / 64) {
            *word |= 1 << (core % 64);
        }
        self
    }

    fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    fn meets(&self, other: &CoreSet) -> bool {
        self.0.iter().zip(&other.0).any(|(one, other)| one & other != 0)
    }

    fn join(&mut self, other: &CoreSet) {
        self.0.iter_mut().zip(&other.0).for_each(|(one, other)| *one |= other);
    }
}

/// Returns the cores that can be reached from `own` over ranks that may use two of them, and the number of
/// these ranks, this one among them; and the other ranks.
fn share(own: CoreSet, others: impl Iterator<Item = (Rank, CoreSet)>) -> (CoreShare, Vec<Rank>) {
    let mut left: Vec<(Rank, CoreSet)> = others.collect();
    let (mut cores, mut ranks) = (own, 1);
    loop {
        let before = left.len();
        left.retain(|(_, other)| {
            let meets = other.meets(&cores);
            if meets {
                cores.join(other);
            }
            !meets
        });
        ranks += (before - left.len()) as u32;
        if left.len() == before {
            let elsewhere = left.into_iter().map(|(rank, _)| rank).collect();
            return (CoreShare { cores: cores.len(), ranks }, elsewhere);
        }
    }
}

/// Returns the number of cores that the limits of a container leave of `cores`. The limits are read once:
/// they are in files, and reading these takes as long as a message to another host.
fn limit(cores: u32) -> u32 {
    static LIMIT: OnceLock<Option<u32>> = OnceLock::new();
    let limit = LIMIT.get_or_init(|| {
        let usable = thread::available_parallelism().map_or(1, std::num::NonZero::get) as u32;
        let is_limited = system::cores_of_this_thread().is_none_or(|cores| usable < cores.len());
        is_limited.then_some(usable)
    });
    limit.unwrap_or(cores)
}

/// Cores to which processes are bound, as Linux tells them.
#[cfg(target_os = "linux")]
mod system {
    use super::CoreSet;
    use rustix::{
        process::Pid,
        thread::{CpuSet, sched_getaffinity},
    };

    /// Returns the cores that this thread may use.
    pub(super) fn cores_of_this_thread() -> Option<CoreSet> {
        allowed(None)
    }

    /// Returns the cores that the main thread of a process may use.
    pub(super) fn cores_of(pid: u32) -> Option<CoreSet> {
        allowed(Some(Pid::from_raw(pid as i32)?))
    }

    fn allowed(pid: Option<Pid>) -> Option<CoreSet> {
        let allowed = sched_getaffinity(pid).ok()?;
        let cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        // Numbers are low: a look at all of them would take 15 us for each rank of the host.
        Some(cores.take(allowed.count() as usize).fold(CoreSet::default(), CoreSet::with))
    }
}

/// Cores to which processes are bound; this system binds none.
#[cfg(not(target_os = "linux"))]
mod system {
    use super::CoreSet;

    pub(super) fn cores_of_this_thread() -> Option<CoreSet> {
        None
    }

    pub(super) fn cores_of(_pid: u32) -> Option<CoreSet> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(cores: &[usize]) -> CoreSet {
        cores.iter().fold(CoreSet::default(), |set, core| set.with(*core))
    }

    /// Returns the cores and ranks of a share, and the positions of the others.
    fn found(own: &[usize], others: &[&[usize]]) -> (u32, u32, Vec<u32>) {
        let others = (0..).zip(others).map(|(rank, cores)| (Rank(rank), set(cores)));
        let (CoreShare { cores, ranks }, elsewhere) = share(set(own), others);
        (cores, ranks, elsewhere.into_iter().map(|rank| rank.0).collect())
    }

    #[test]
    fn a_rank_with_cores_of_its_own_shares_them_with_no_other_rank() {
        assert_eq!(found(&[1], &[&[0], &[2]]), (1, 1, vec![0, 1]));
        assert_eq!(found(&[2, 3], &[&[0, 1], &[4, 5, 70]]), (2, 1, vec![0, 1]));
    }

    #[test]
    fn ranks_that_are_not_bound_share_all_cores() {
        assert_eq!(found(&[0, 1, 2, 3], &[&[0, 1, 2, 3]]), (4, 2, vec![]));
    }

    #[test]
    fn ranks_on_one_core_share_it_whatever_the_others_have() {
        assert_eq!(found(&[5], &[&[5], &[0], &[1], &[2, 3]]), (1, 2, vec![1, 2, 3]));
    }

    #[test]
    fn ranks_share_cores_by_way_of_others() {
        assert_eq!(found(&[0, 1], &[&[2, 3], &[1, 2], &[1000]]), (4, 3, vec![2]));
        assert_eq!(found(&[0], &[&[2, 3], &[0, 1], &[1, 2]]), (4, 4, vec![]));
    }

    #[test]
    fn threads_of_a_process_share_what_it_may_use() {
        let host = "here".to_owned();
        let pid = std::process::id();
        let name = |rank| PeerName { rank: Rank(rank), pid, host: host.clone() };
        let share = CoreShare::of(Rank(1), &[name(0), name(1), name(2)]);
        let usable = thread::available_parallelism().expect("known").get() as u32;
        assert_eq!(share, CoreShare { cores: usable, ranks: 3 });
    }
}
