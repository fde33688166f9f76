//! Which rank runs on which host.

use crate::Rank;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The number of a host within a job, `0..hosts`, in order of first appearance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostIndex(pub u32);

/// Why a placement was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// A job has at least one rank.
    #[error("a job needs at least one rank")]
    Empty,
}

/// The host of every rank of a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// `host_of[r]` is the host of rank `r`; hosts are dense and numbered in order of first appearance.
    host_of: Vec<HostIndex>,
}

impl Placement {
    /// All `ranks` on one host.
    ///
    /// # Errors
    /// [`PlacementError::Empty`] for no ranks.
    pub fn single_host(ranks: u32) -> Result<Placement, PlacementError> {
        Placement::from_hosts(std::iter::repeat_n("localhost", ranks as usize))
    }

    /// The placement of ranks `0, 1, 2, ...` on hosts with these names, or numbers; equal ones are one host.
    ///
    /// # Errors
    /// [`PlacementError::Empty`] for no ranks.
    pub fn from_hosts<N: PartialEq>(names: impl IntoIterator<Item = N>) -> Result<Placement, PlacementError> {
        let mut seen: Vec<N> = Vec::new();
        let mut host_of = Vec::new();
        for name in names {
            let at = seen.iter().position(|known| *known == name).unwrap_or_else(|| {
                seen.push(name);
                seen.len() - 1
            });
            host_of.push(HostIndex(at as u32));
        }
        if host_of.is_empty() { Err(PlacementError::Empty) } else { Ok(Placement { host_of }) }
    }

    /// The number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.host_of.len() as u32
    }

    /// The number of hosts.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        self.host_of.iter().map(|host| host.0 + 1).max().unwrap_or(0)
    }

    /// The host of a rank. Panics when the rank is outside of the job.
    #[must_use]
    pub fn host_of(&self, rank: Rank) -> HostIndex {
        self.host_of[rank.index()]
    }

    /// The ranks of a host, ascending.
    pub fn ranks_on(&self, host: HostIndex) -> impl Iterator<Item = Rank> + '_ {
        self.host_of.iter().enumerate().filter(move |(_, h)| **h == host).map(|(r, _)| Rank(r as u32))
    }

    /// How many ranks of the same host have a smaller number: the "local rank" of launchers.
    #[must_use]
    pub fn local_rank(&self, rank: Rank) -> u32 {
        self.ranks_on(self.host_of(rank)).take_while(|other| *other < rank).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_numbered_in_order_of_first_appearance() {
        let p = Placement::from_hosts(["b", "a", "b", "c", "a"]).expect("five ranks");
        assert_eq!((p.ranks(), p.hosts()), (5, 3));
        assert_eq!(p.host_of(Rank(2)), HostIndex(0));
        assert_eq!(p.ranks_on(HostIndex(1)).collect::<Vec<_>>(), [Rank(1), Rank(4)]);
        assert_eq!(p.local_rank(Rank(4)), 1);
        assert_eq!(p.local_rank(Rank(3)), 0);
    }

    #[test]
    fn an_empty_job_is_refused() {
        assert_eq!(Placement::single_host(0), Err(PlacementError::Empty));
    }
}
