//! Ranks of one host that use the same devices.
//!
//! Ranks of a host reach each other by shared memory, and have no rails between them. They share the queue
//! pairs and regions of a device, so each rank adds up the needs of all of them before it requests any. Every
//! rank knows these needs from the handshake messages, so each rank fails by itself, for the same reason.
//!
//! All functions are pure. Without hosts, every rank counts as a host of its own.

use super::{descriptions::Devices, wiring::Matrix};
use crate::TransportError;

/// Hosts of all ranks, from the view of one rank.
#[derive(Clone, Debug)]
pub(super) struct HostMap {
    /// Host number of each rank.
    hosts: Vec<u32>,
    rank: u32,
}

impl HostMap {
    pub(super) fn new(hosts: Vec<u32>, rank: u32) -> HostMap {
        HostMap { hosts, rank }
    }

    pub(super) fn rank(&self) -> u32 {
        self.rank
    }

    /// Returns whether two ranks are on different hosts.
    pub(super) fn are_apart(&self, a: u32, b: u32) -> bool {
        self.hosts[a as usize] != self.hosts[b as usize]
    }

    /// Returns whether `peer` is on another host than this rank.
    pub(super) fn is_far(&self, peer: usize) -> bool {
        self.are_apart(self.rank, peer as u32)
    }

    pub(super) fn size(&self) -> u32 {
        self.hosts.len() as u32
    }

    /// Returns the ranks of this host, this rank included.
    fn local_ranks(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.size()).filter(|rank| !self.are_apart(self.rank, *rank))
    }

    /// Returns whether this host has other ranks.
    pub(super) fn has_local_peers(&self) -> bool {
        self.local_ranks().nth(1).is_some()
    }

    /// Returns all pairs of a rank of `member`'s host and a rank of another host.
    pub(super) fn pairs_of_host(&self, member: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let far = move |rank| (0..self.size()).filter(move |peer| self.are_apart(rank, *peer));
        let ranks = (0..self.size()).filter(move |rank| !self.are_apart(member, *rank));
        ranks.flat_map(move |rank| far(rank).map(move |peer| (rank, peer)))
    }

    /// Returns the devices that the matrix names for `rank` and its peers on other hosts, each once.
    pub(super) fn matrix_devices(&self, rank: u32, matrix: &Matrix) -> Vec<String> {
        let row = (0..).zip(&matrix[rank as usize]).filter(|(peer, _)| self.are_apart(rank, *peer));
        let mut names: Vec<String> = row.flat_map(|(_, cell)| cell).cloned().collect();
        names.sort();
        names.dedup();
        names
    }

    /// Returns the number of ranks of this host that open a device: all, unless a matrix names the users.
    fn users(&self, device: &str, matrix: Option<&Matrix>) -> u64 {
        let uses = |rank: &u32| {
            matrix.is_none_or(|matrix| self.matrix_devices(*rank, matrix).iter().any(|name| name == device))
        };
        self.local_ranks().filter(uses).count() as u64
    }

    /// Checks that a device has regions for the slabs of all ranks that use it, of `segments` segments each.
    ///
    /// Applies to devices where all memory must be registered before queue pairs are connected.
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
            "the slab is {segments} segments{all}, and {device} has {regions} regions of memory; make the \
             segments larger with TBCCL_SEGMENT_BYTES, or the slab smaller with TBCCL_SLAB_BYTES"
        )))
    }

    /// Checks that a device has one queue pair for each rank of this host, with which the rank probes its
    /// peers.
    pub(super) fn check_probing(&self, device: &str, queue_pairs: u32) -> Result<(), TransportError> {
        let ranks = self.local_ranks().count() as u32;
        if ranks <= queue_pairs {
            return Ok(());
        }
        Err(self.wiring(format!(
            "{ranks} ranks of this host share {device}, which has {queue_pairs} queue pairs; use fewer ranks \
             per host, or name the ranks that use it in a device matrix (TBCCL_IBV_DEVICES)"
        )))
    }

    /// Checks that every device of this rank has enough queue pairs for the rails that ranks of its host make
    /// on it.
    ///
    /// `rails` lists rank and device name of each rail; `devices` lists device names and their queue pairs.
    pub(super) fn check_queue_pairs(
        &self,
        rails: &[(u32, &str)],
        per_rail: u32,
        devices: &[(&str, u32)],
    ) -> Result<(), TransportError> {
        for (device, queue_pairs) in devices {
            let on_device = || rails.iter().filter(|(_, name)| name == device);
            let needed = on_device().count() as u32 * per_rail;
            if needed <= *queue_pairs {
                continue;
            }
            let mut users: Vec<u32> = on_device().map(|(rank, _)| *rank).collect();
            users.dedup();
            let (sharers, remedy) = match users.len() {
                0 | 1 => (String::new(), "use fewer ranks, or give it fewer rails"),
                _ => {
                    let users: Vec<String> = users.iter().map(u32::to_string).collect();
                    let sharers = format!(" (of ranks {}, which share it)", users.join(", "));
                    (sharers, "use fewer ranks per host, or connect only consecutive ranks")
                }
            };
            let count = on_device().count();
            return Err(self.wiring(format!(
                "{device} would need {needed} queue pairs, {per_rail} for each of its {count} \
                 rails{sharers}, and has {queue_pairs}; {remedy} with a device matrix (TBCCL_IBV_DEVICES)"
            )));
        }
        Ok(())
    }

    /// Checks that the completion queues of this rank's devices have an entry for every request that may be
    /// outstanding on its rails: an overflow would lose completions.
    ///
    /// `rails` lists the device of each rail of this rank, `outstanding` the sends and receives of a rail,
    /// and `devices` the names and the depths of the queues of sends and of receives.
    pub(super) fn check_completions(
        &self,
        rails: &[&str],
        outstanding: [u32; 2],
        devices: &[(&str, [u32; 2])],
    ) -> Result<(), TransportError> {
        for (device, depths) in devices {
            let count = rails.iter().filter(|name| *name == device).count() as u32;
            for (needed, depth) in outstanding.map(|each| each * count).into_iter().zip(depths) {
                if needed > *depth {
                    return Err(self.wiring(format!(
                        "{device} would need a completion queue of {needed} entries for its {count} rails, \
                         and grants {depth}; use fewer ranks, or give it fewer rails with a device matrix \
                         (TBCCL_IBV_DEVICES)"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Checks that every host reaches another one, if there are several hosts.
    ///
    /// `connected` tells, by rank and peer, whether they have a rail.
    pub(super) fn check_hosts(
        &self,
        connected: &[Vec<bool>],
        devices: &[Devices],
    ) -> Result<(), TransportError> {
        let is_unconnected = |rank: u32| {
            let host = (0..self.size()).filter(|other| !self.are_apart(rank, *other));
            !host.into_iter().any(|member| connected[member as usize].contains(&true))
        };
        let has_others = (0..self.size()).any(|peer| self.are_apart(0, peer));
        // Each unconnected rank names itself in its error; other ranks name the first unconnected rank.
        let this_rank = Some(self.rank).filter(|rank| is_unconnected(*rank));
        let rank = this_rank.or_else(|| (0..self.size()).find(|rank| is_unconnected(*rank)));
        let Some(rank) = rank.filter(|_| has_others) else { return Ok(()) };
        let names = |rank: u32| {
            let names = devices[rank as usize].devices.iter().map(|device| device.name.as_str());
            names.collect::<Vec<_>>().join(", ")
        };
        let host = |rank: u32| devices[rank as usize].host.as_str();
        let (peers, other_host) = match (self.size(), 1 - rank.min(1)) {
            (2, peer) => (format!("rank {peer} ({})", names(peer)), host(peer)),
            _ => ("another rank".to_owned(), "another host"),
        };
        Err(TransportError::Wiring {
            rank,
            what: format!(
                "none of its devices ({}) reaches one of {peers}; check that there is a cable between {} and \
                 {other_host}, that both ports are up, and that the Thunderbolt bridge is off",
                names(rank),
                host(rank),
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

    fn apart(ranks: u32, rank: u32) -> HostMap {
        HostMap::new((0..ranks).collect(), rank)
    }

    /// Two hosts with two ranks each: ranks 0 and 2 on one, ranks 1 and 3 on the other.
    fn two_by_two(rank: u32) -> HostMap {
        HostMap::new(vec![0, 1, 0, 1], rank)
    }

    #[test]
    fn more_queue_pairs_than_a_device_has_are_not_asked_for() {
        let rails = |count: usize| vec![(4, "en3"); count];
        let devices = [("en2", 10), ("en3", 10)];
        apart(5, 4).check_queue_pairs(&rails(3), 3, &devices).expect("nine of ten");
        let error = apart(5, 4).check_queue_pairs(&rails(4), 3, &devices).expect_err("twelve of ten");
        let expected_text = "rank 4: en3 would need 12 queue pairs, 3 for each of its 4 rails, and \
             has 10; use fewer ranks, or";
        assert!(error.to_string().starts_with(expected_text), "{error}");
    }

    #[test]
    fn the_queue_pairs_of_all_ranks_of_a_host_count() {
        let pairs: Vec<(u32, u32)> = two_by_two(2).pairs_of_host(2).collect();
        assert_eq!(pairs, [(0, 1), (0, 3), (2, 1), (2, 3)]);
        let rails: Vec<(u32, &str)> = pairs.iter().map(|(rank, _)| (*rank, "en2")).collect();
        two_by_two(2).check_queue_pairs(&rails[..3], 3, &[("en2", 10)]).expect("nine of ten");
        let error = two_by_two(2).check_queue_pairs(&rails, 3, &[("en2", 10)]).expect_err("twelve of ten");
        let expected_text = "rank 2: en2 would need 12 queue pairs, 3 for each of its 4 rails (of ranks \
             0, 2, which share it), and has 10; use fewer ranks per host";
        assert!(error.to_string().starts_with(expected_text), "{error}");
    }

    #[test]
    fn completions_that_a_device_has_no_room_for_are_not_risked() {
        let devices = [("en2", [640, 320]), ("en3", [4096, 4096])];
        let check = |rails: &[&str]| apart(9, 8).check_completions(rails, [600, 250], &devices);
        check(&["en2", "en3", "en3", "en3"]).expect("at most 1800");
        let error = check(&["en2", "en3", "en2"]).expect_err("1200 of 640").to_string();
        let expected_text = "rank 8: en2 would need a completion queue of 1200 entries for its 2 rails, and \
             grants 640; use fewer ranks";
        assert!(error.starts_with(expected_text), "{error}");
        let receives = apart(9, 8).check_completions(&["en2"], [1, 321], &devices).expect_err("321 of 320");
        assert!(receives.to_string().contains("321 entries"), "{receives}");
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
        assert_eq!(two_by_two(2).matrix_devices(2, &matrix), ["en3"]);
        apart(2, 0).check_regions("en2", None, 101, 100).expect_err("one rank is enough for that");
    }

    #[test]
    fn ranks_that_cannot_even_try_a_device_are_told_so() {
        HostMap::new(vec![0; 10], 3).check_probing("en2", 10).expect("one each");
        let error = HostMap::new(vec![0; 11], 3).check_probing("en2", 10).expect_err("too many").to_string();
        assert!(error.starts_with("rank 3: 11 ranks of this host share en2, which has 10"), "{error}");
    }

    #[test]
    fn a_host_needs_one_rank_that_reaches_another_host() {
        let device = |host: &str| Devices { host: host.into(), ..Devices::new(Vec::new()) };
        let devices = ["a", "b", "a", "b"].map(device);
        let mut connected = vec![vec![false; 4]; 4];
        let error = two_by_two(3).check_hosts(&connected, &devices).expect_err("no cable").to_string();
        assert!(error.starts_with("rank 3: none of its devices"), "{error}");
        connected[1][2] = true;
        connected[2][1] = true;
        two_by_two(3).check_hosts(&connected, &devices).expect("by rank 1");
        apart(1, 0).check_hosts(&[vec![false]], &devices[..1]).expect("there is nobody else");
        HostMap::new(vec![0, 0], 1).check_hosts(&vec![vec![false; 2]; 2], &devices[..2]).expect("one host");
    }
}
