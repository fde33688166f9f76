//! Ranks of one host that use the same devices.
//!
//! They reach each other by shared memory, and have no rails between them. What a device has of queue pairs and regions is
//! for all of them together, so it is counted for all of them, before any is asked for. All know what all need, from the
//! words that all have heard; so each refuses by itself, and for the same reason.
//!
//! Pure. Where ranks share nothing, each is a host of its own.

use super::{introduction::Devices, wiring::Matrix};
use crate::TransportError;

/// Which ranks are of which host, as one of them sees it.
#[derive(Clone, Debug)]
pub(super) struct Sharing {
    /// By rank: a number of its host.
    hosts: Vec<u32>,
    rank: u32,
}

impl Sharing {
    pub(super) fn new(hosts: Vec<u32>, rank: u32) -> Sharing {
        Sharing { hosts, rank }
    }

    pub(super) fn rank(&self) -> u32 {
        self.rank
    }

    /// Are these of different hosts?
    pub(super) fn are_apart(&self, a: u32, b: u32) -> bool {
        self.hosts[a as usize] != self.hosts[b as usize]
    }

    /// Is this rank of another host than ours?
    pub(super) fn is_far(&self, peer: usize) -> bool {
        self.are_apart(self.rank, peer as u32)
    }

    fn size(&self) -> u32 {
        self.hosts.len() as u32
    }

    /// The ranks of our host, ourselves among them.
    fn ours(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.size()).filter(|rank| !self.are_apart(self.rank, *rank))
    }

    /// Are there other ranks on our host?
    pub(super) fn has_neighbours(&self) -> bool {
        self.ours().nth(1).is_some()
    }

    /// Each rank of our host with each of another one.
    pub(super) fn pairs_of_host(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let far = move |rank| (0..self.size()).filter(move |peer| self.are_apart(rank, *peer));
        self.ours().flat_map(move |rank| far(rank).map(move |peer| (rank, peer)))
    }

    /// The devices that the matrix names for a rank and its peers on other hosts, each once.
    pub(super) fn named(&self, rank: u32, matrix: &Matrix) -> Vec<String> {
        let row = (0..).zip(&matrix[rank as usize]).filter(|(peer, _)| self.are_apart(rank, *peer));
        let mut names: Vec<String> = row.flat_map(|(_, cell)| cell).cloned().collect();
        names.sort();
        names.dedup();
        names
    }

    /// How many ranks of our host open a device: all of them, unless a matrix says which.
    fn users(&self, device: &str, matrix: Option<&Matrix>) -> u64 {
        let uses = |rank: &u32| {
            matrix.is_none_or(|matrix| self.named(*rank, matrix).iter().any(|name| name == device))
        };
        self.ours().filter(uses).count() as u64
    }

    /// Has a device that must know all memory beforehand regions for the slabs of all who use it, of so many segments
    /// each?
    pub(super) fn check_regions(
        &self,
        device: &str,
        matrix: Option<&Matrix>,
        segments: u64,
        regions: u64,
    ) -> Result<(), TransportError> {
        let users = self.users(device, matrix).max(1);
        if segments * users <= regions {
            return Ok(());
        }
        let all = match users {
            1 => String::new(),
            users => format!(", those of the {users} ranks of this host {}", segments * users),
        };
        Err(self.wiring(format!(
            "the slab is {segments} segments{all}, and {device} has {regions} regions of memory; make the segments larger \
             with TBCCL_SEGMENT_BYTES, or the slab smaller with TBCCL_SLAB_BYTES"
        )))
    }

    /// Has a device a queue pair for each rank of our host, with which it tries who is reached?
    pub(super) fn check_probing(&self, device: &str, most: u32) -> Result<(), TransportError> {
        let ranks = self.ours().count() as u32;
        if ranks <= most {
            return Ok(());
        }
        Err(self.wiring(format!(
            "{ranks} ranks of this host share {device}, which has {most} queue pairs; use fewer ranks per host, or say with \
             a device matrix (TBCCL_IBV_DEVICES) which of them use it"
        )))
    }

    /// Has every device of ours, by name and queue pairs, enough of them for the rails that ranks of our host make on it?
    pub(super) fn check_queue_pairs(
        &self,
        rails: &[(u32, &str)],
        per_rail: u32,
        devices: &[(&str, u32)],
    ) -> Result<(), TransportError> {
        for (device, most) in devices {
            let on_it = || rails.iter().filter(|(_, name)| name == device);
            let needed = on_it().count() as u32 * per_rail;
            if needed <= *most {
                continue;
            }
            let mut users: Vec<u32> = on_it().map(|(rank, _)| *rank).collect();
            users.dedup();
            let (whose, remedy) = match users.len() {
                0 | 1 => (String::new(), "use fewer ranks, or give it fewer rails"),
                _ => {
                    let users: Vec<String> = users.iter().map(u32::to_string).collect();
                    let whose = format!(" (of ranks {}, which share it)", users.join(", "));
                    (whose, "use fewer ranks per host, or connect only those that follow each other")
                }
            };
            let count = on_it().count();
            return Err(self.wiring(format!(
                "{device} would need {needed} queue pairs, {per_rail} for each of its {count} rails{whose}, and has {most}; \
                 {remedy} with a device matrix (TBCCL_IBV_DEVICES)"
            )));
        }
        Ok(())
    }

    /// Does every host reach another one, if there are several? `connected` says by rank and peer who has a rail.
    pub(super) fn check_hosts(
        &self,
        connected: &[Vec<bool>],
        devices: &[Devices],
    ) -> Result<(), TransportError> {
        let is_alone = |rank: u32| {
            let host = (0..self.size()).filter(|other| !self.are_apart(rank, *other));
            !host.into_iter().any(|member| connected[member as usize].contains(&true))
        };
        let has_others = (0..self.size()).any(|peer| self.are_apart(0, peer));
        // Everyone says it of itself, where it is so.
        let us = Some(self.rank).filter(|rank| is_alone(*rank));
        let alone = us.or_else(|| (0..self.size()).find(|rank| is_alone(*rank)));
        let Some(alone) = alone.filter(|_| has_others) else { return Ok(()) };
        let names = |rank: u32| {
            let names = devices[rank as usize].devices.iter().map(|device| device.name.as_str());
            names.collect::<Vec<_>>().join(", ")
        };
        let host = |rank: u32| devices[rank as usize].host.as_str();
        let (whom, where_to) = match (self.size(), 1 - alone.min(1)) {
            (2, peer) => (format!("rank {peer} ({})", names(peer)), host(peer)),
            _ => ("another rank".to_owned(), "another host"),
        };
        Err(TransportError::Wiring {
            rank: alone,
            what: format!(
                "none of its devices ({}) reaches one of {whom}; check that there is a cable between {} and {where_to}, \
                 that both ports are up, and that the Thunderbolt bridge is off",
                names(alone),
                host(alone),
            ),
        })
    }

    fn wiring(&self, what: String) -> TransportError {
        TransportError::Wiring { rank: self.rank, what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apart(ranks: u32, rank: u32) -> Sharing {
        Sharing::new((0..ranks).collect(), rank)
    }

    /// Two hosts with two ranks each, 0 and 2 on one of them.
    fn two_by_two(rank: u32) -> Sharing {
        Sharing::new(vec![0, 1, 0, 1], rank)
    }

    #[test]
    fn more_queue_pairs_than_a_device_has_are_not_asked_for() {
        let rails = |count: usize| vec![(4, "en3"); count];
        let devices = [("en2", 10), ("en3", 10)];
        apart(5, 4).check_queue_pairs(&rails(3), 3, &devices).expect("nine of ten");
        let error = apart(5, 4).check_queue_pairs(&rails(4), 3, &devices).expect_err("twelve of ten");
        let says = "rank 4: en3 would need 12 queue pairs, 3 for each of its 4 rails, and has 10; use fewer ranks, or";
        assert!(error.to_string().starts_with(says), "{error}");
    }

    #[test]
    fn the_queue_pairs_of_all_ranks_of_a_host_count() {
        let pairs: Vec<(u32, u32)> = two_by_two(2).pairs_of_host().collect();
        assert_eq!(pairs, [(0, 1), (0, 3), (2, 1), (2, 3)]);
        let rails: Vec<(u32, &str)> = pairs.iter().map(|(rank, _)| (*rank, "en2")).collect();
        two_by_two(2).check_queue_pairs(&rails[..3], 3, &[("en2", 10)]).expect("nine of ten");
        let error = two_by_two(2).check_queue_pairs(&rails, 3, &[("en2", 10)]).expect_err("twelve of ten");
        let says = "rank 2: en2 would need 12 queue pairs, 3 for each of its 4 rails (of ranks 0, 2, which share it), and \
                    has 10; use fewer ranks per host";
        assert!(error.to_string().starts_with(says), "{error}");
    }

    #[test]
    fn the_regions_of_all_ranks_of_a_host_count_where_they_use_the_same_device() {
        two_by_two(0).check_regions("en2", None, 50, 100).expect("all of them");
        let error = two_by_two(0).check_regions("en2", None, 51, 100).expect_err("102").to_string();
        assert!(
            error.contains("51 segments, those of the 2 ranks of this host 102, and en2 has 100"),
            "{error}"
        );
        let cell = |name: &str| vec![name.to_owned()];
        let row = |name: &str| vec![cell("near"), cell(name), cell("near"), cell(name)];
        let matrix = vec![row("en2"), row("x"), row("en3"), row("y")];
        two_by_two(0).check_regions("en2", Some(&matrix), 51, 100).expect("the other one uses en3");
        assert_eq!(two_by_two(2).named(2, &matrix), ["en3"]);
        apart(2, 0).check_regions("en2", None, 101, 100).expect_err("one rank is enough for that");
    }

    #[test]
    fn ranks_that_cannot_even_try_a_device_are_told_so() {
        Sharing::new(vec![0; 10], 3).check_probing("en2", 10).expect("one each");
        let error = Sharing::new(vec![0; 11], 3).check_probing("en2", 10).expect_err("too many").to_string();
        assert!(error.starts_with("rank 3: 11 ranks of this host share en2, which has 10"), "{error}");
    }

    #[test]
    fn a_host_needs_one_rank_that_reaches_another_host() {
        let device = |host: &str| Devices { host: host.into(), devices: Vec::new() };
        let devices = ["a", "b", "a", "b"].map(device);
        let mut connected = vec![vec![false; 4]; 4];
        let error = two_by_two(3).check_hosts(&connected, &devices).expect_err("no cable").to_string();
        assert!(error.starts_with("rank 3: none of its devices"), "{error}");
        connected[1][2] = true;
        connected[2][1] = true;
        two_by_two(3).check_hosts(&connected, &devices).expect("by rank 1");
        apart(1, 0).check_hosts(&[vec![false]], &devices[..1]).expect("there is nobody else");
        Sharing::new(vec![0, 0], 1).check_hosts(&vec![vec![false; 2]; 2], &devices[..2]).expect("one host");
    }
}
