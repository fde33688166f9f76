//! Paths between ranks over cables: candidates before the probe, and what the probe has proved.
//!
//! All functions are pure, and their arguments are equal on all ranks: the information that ranks announce,
//! and the reports of their probes. So all ranks know the same paths, in the same order.
//!
//! A candidate is a pair of addresses between which a cable may lead: two addresses of one network, or two
//! link-local ones, whose network says nothing. A path is a candidate over which both ends have heard each
//! other.

use super::{
    cables::{CableAddress, preference},
    peer_info::{CableEnd, HeardPath, PeerInfo},
};
use crate::driver::first_unreached;
use std::{collections::BTreeMap, fmt, net::IpAddr, str::FromStr};

/// Use of networks other than cables between hosts that have cables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lan {
    /// For a program's messages between hosts without a cable, and for collectives only if the cables leave
    /// some hosts apart: otherwise these go along other hosts.
    #[default]
    Auto,
    /// For everything between hosts without a cable.
    Always,
    /// Never; hosts without a cable between them are reached by collectives along other hosts.
    Never,
}

impl FromStr for Lan {
    type Err = String;

    fn from_str(text: &str) -> Result<Lan, String> {
        match text {
            "auto" => Ok(Lan::Auto),
            "always" => Ok(Lan::Always),
            "never" => Ok(Lan::Never),
            _ => Err("expected auto, always or never".to_owned()),
        }
    }
}

impl fmt::Display for Lan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lan::Auto => "auto",
            Lan::Always => "always",
            Lan::Never => "never",
        })
    }
}

/// Replacement of connections that break.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resume {
    /// Only between ranks with more than one path.
    #[default]
    Auto,
    /// Between all ranks.
    Always,
    /// Never; a connection that breaks is an error.
    Never,
}

impl FromStr for Resume {
    type Err = String;

    fn from_str(text: &str) -> Result<Resume, String> {
        match text {
            "auto" => Ok(Resume::Auto),
            "always" => Ok(Resume::Always),
            "never" => Ok(Resume::Never),
            _ => Err("expected auto, always or never".to_owned()),
        }
    }
}

impl fmt::Display for Resume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Resume::Auto => "auto",
            Resume::Always => "always",
            Resume::Never => "never",
        })
    }
}

/// A pair of addresses between which a cable may lead, or leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CablePath {
    pub(super) ours: CableEnd,
    pub(super) theirs: CableEnd,
}

/// Returns the paths that may exist between two ranks; none within a host.
pub(super) fn candidates(ours: &PeerInfo, theirs: &PeerInfo) -> Vec<CablePath> {
    if ours.host == theirs.host {
        return Vec::new();
    }
    let pairs = ends(ours).flat_map(|(our_end, our_address)| {
        ends(theirs).map(move |(their_end, their_address)| (our_end, our_address, their_end, their_address))
    });
    pairs
        .filter(|(_, ours, _, theirs)| may_reach(*ours, *theirs))
        .map(|(ours, _, theirs, _)| CablePath { ours, theirs })
        .collect()
}

/// Returns the cable ends of a rank with their addresses.
fn ends(info: &PeerInfo) -> impl Iterator<Item = (CableEnd, CableAddress)> {
    (0..).zip(&info.cables).flat_map(|(cable, announced)| {
        (0..).zip(&announced.addresses).map(move |(address, at)| {
            (CableEnd { cable, address }, CableAddress { ip: at.ip, prefix_bits: at.prefix_bits })
        })
    })
}

/// Whether a cable may lead from one address to another one.
fn may_reach(a: CableAddress, b: CableAddress) -> bool {
    let network = |bits: u128, width: u32, prefix: u8| bits >> (width - u32::from(prefix).clamp(1, width));
    if a.ip == b.ip || preference(a.ip) != preference(b.ip) || a.prefix_bits != b.prefix_bits {
        return false;
    }
    match (a.ip, b.ip) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            let of = |ip| network(u32::from(ip).into(), 32, a.prefix_bits);
            of(one) == of(other)
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => {
            let of = |ip| network(u128::from(ip), 128, a.prefix_bits);
            of(one) == of(other)
        }
        _ => false,
    }
}

/// Whether any two ranks of the job may have a cable between them; equal on all ranks.
pub(super) fn has_candidates(peers: &[PeerInfo]) -> bool {
    let with_cables: Vec<&PeerInfo> = peers.iter().filter(|peer| !peer.cables.is_empty()).collect();
    (1..with_cables.len()).any(|b| (0..b).any(|a| !candidates(with_cables[a], with_cables[b]).is_empty()))
}

/// The paths over cables between all ranks; equal on all ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PathTable {
    /// Paths by ranks, the lower one first, whose ends are `ours`.
    paths: BTreeMap<(u32, u32), Vec<CablePath>>,
}

impl PathTable {
    /// Returns the paths over which both ends have heard each other. `reports` is by rank.
    pub(super) fn new(peers: &[PeerInfo], reports: &[Vec<HeardPath>]) -> PathTable {
        let mut paths = BTreeMap::new();
        for (b, theirs) in (0..).zip(peers) {
            for (a, ours) in (0..b).zip(peers) {
                let heard_by = |rank: u32, path: &HeardPath| reports[rank as usize].contains(path);
                let mut proved = candidates(ours, theirs);
                proved.retain(|path| {
                    let CablePath { ours, theirs } = *path;
                    heard_by(a, &HeardPath { peer: b, ours, theirs })
                        && heard_by(b, &HeardPath { peer: a, ours: theirs, theirs: ours })
                });
                if !proved.is_empty() {
                    paths.insert((a, b), one_per_cable(proved, ours));
                }
            }
        }
        PathTable { paths }
    }

    /// Returns the paths from one rank to another one, in the order in which both number them.
    pub(super) fn between(&self, from: u32, to: u32) -> Vec<CablePath> {
        let paths = self.paths.get(&(from.min(to), from.max(to))).map_or(&[][..], Vec::as_slice);
        let swapped = |path: &CablePath| CablePath { ours: path.theirs, theirs: path.ours };
        paths.iter().map(|path| if from < to { *path } else { swapped(path) }).collect()
    }

    /// Returns the number of paths between two ranks.
    pub(super) fn count(&self, a: u32, b: u32) -> usize {
        self.paths.get(&(a.min(b), a.max(b))).map_or(0, Vec::len)
    }

    /// Whether there is a path between any two ranks.
    pub(super) fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Returns the lowest rank that cannot be reached from rank 0 along cables, and within hosts.
    pub(super) fn find_unreached(&self, peers: &[PeerInfo]) -> Option<u32> {
        let ranks = peers.len() as u32;
        let is_hop =
            |a: u32, b: u32| peers[a as usize].host == peers[b as usize].host || self.count(a, b) > 0;
        first_unreached(ranks, is_hop)
    }

    /// Returns two ranks that are neighbors in the order of ranks and have neither a cable nor a host in
    /// common.
    ///
    /// If there are none, schedules for rings go along the cables.
    pub(super) fn find_gap(&self, peers: &[PeerInfo]) -> Option<(u32, u32)> {
        let ranks = peers.len() as u32;
        let is_gap = |(a, b): &(u32, u32)| {
            peers[*a as usize].host != peers[*b as usize].host && self.count(*a, *b) == 0
        };
        (0..ranks).map(|rank| (rank, (rank + 1) % ranks)).find(is_gap)
    }
}

/// Returns one path for each cable, the preferred address first; a cable has two ends only.
fn one_per_cable(mut paths: Vec<CablePath>, ours: &PeerInfo) -> Vec<CablePath> {
    let address_of =
        |end: CableEnd| ours.cables[usize::from(end.cable)].addresses[usize::from(end.address)].ip;
    paths.sort_by_key(|path| (preference(address_of(path.ours)), *path));
    let mut chosen: Vec<CablePath> = Vec::new();
    for path in paths {
        let is_taken = |other: &CablePath| {
            other.ours.cable == path.ours.cable || other.theirs.cable == path.theirs.cable
        };
        if !chosen.iter().any(is_taken) {
            chosen.push(path);
        }
    }
    chosen.sort_by_key(|path| path.ours.cable);
    chosen
}

#[cfg(test)]
mod tests {
    use super::{
        super::peer_info::{AnnouncedAddress, AnnouncedCable},
        *,
    };

    fn info(host: &str, cables: &[&[(&str, u8)]]) -> PeerInfo {
        let address = |(ip, prefix_bits): &(&str, u8)| AnnouncedAddress {
            ip: ip.parse().expect("an address"),
            prefix_bits: *prefix_bits,
            tcp_port: 1,
            udp_port: 2,
        };
        let cable = |(at, addresses): (usize, &&[(&str, u8)])| AnnouncedCable {
            name: format!("thunderbolt{at}"),
            addresses: addresses.iter().map(address).collect(),
        };
        let cables = cables.iter().enumerate().map(cable).collect();
        PeerInfo::new(1, host.to_owned(), Vec::new(), cables, None)
    }

    fn end(cable: u8, address: u8) -> CableEnd {
        CableEnd { cable, address }
    }

    /// Returns the reports of ranks that have heard all candidates over which a cable leads.
    fn reports(peers: &[PeerInfo], leads: impl Fn(u32, u32, CablePath) -> bool) -> Vec<Vec<HeardPath>> {
        let ranks = 0..peers.len() as u32;
        let of = |a: u32| {
            let pairs = ranks.clone().filter(|b| *b != a).flat_map(|b| {
                let heard = candidates(&peers[a as usize], &peers[b as usize]);
                heard
                    .into_iter()
                    .filter(|path| leads(a, b, *path))
                    .map(move |path| (b, path))
                    .collect::<Vec<_>>()
            });
            pairs.map(|(peer, CablePath { ours, theirs })| HeardPath { peer, ours, theirs }).collect()
        };
        ranks.clone().map(of).collect()
    }

    #[test]
    fn networks_tell_where_cables_lead_and_link_local_ones_tell_nothing() {
        let a = info("a", &[&[("10.0.1.1", 30)], &[("10.0.2.1", 30), ("169.254.7.1", 16)]]);
        let b = info("b", &[&[("10.0.2.2", 30), ("169.254.8.1", 16)], &[("169.254.9.1", 16)]]);
        let found = candidates(&a, &b);
        let expected = [(end(1, 0), end(0, 0)), (end(1, 1), end(0, 1)), (end(1, 1), end(1, 0))];
        assert_eq!(found, expected.map(|(ours, theirs)| CablePath { ours, theirs }));
        assert_eq!(candidates(&a, &info("a", &[&[("10.0.1.2", 30)]])), [], "one host");
        assert!(has_candidates(&[a.clone(), info("c", &[]), b]) && !has_candidates(&[a, info("c", &[])]));
    }

    #[test]
    fn a_path_needs_both_ends_and_both_ranks_number_paths_alike() {
        let peers = [
            info("a", &[&[("10.0.1.1", 30)], &[("10.0.2.1", 30)]]),
            info("b", &[&[("10.0.2.2", 30)], &[("10.0.1.2", 30)]]),
        ];
        let mut reports = reports(&peers, |_, _, _| true);
        let table = PathTable::new(&peers, &reports);
        let forth = table.between(0, 1);
        assert_eq!(
            forth.iter().map(|path| (path.ours.cable, path.theirs.cable)).collect::<Vec<_>>(),
            [(0, 1), (1, 0)]
        );
        let back = table.between(1, 0);
        assert!(forth.iter().zip(&back).all(|(a, b)| a.ours == b.theirs && a.theirs == b.ours));
        // Rank 1 hears nothing over one of them.
        reports[1].retain(|heard| heard.ours.cable != 0);
        assert_eq!(PathTable::new(&peers, &reports).count(0, 1), 1);
    }

    #[test]
    fn a_cable_with_several_addresses_is_one_path_by_the_address_that_a_user_has_set() {
        let peers = [
            info("a", &[&[("10.0.1.1", 30), ("fe80::1", 64)]]),
            info("b", &[&[("fe80::3", 64)], &[("10.0.1.2", 30), ("fe80::2", 64)]]),
        ];
        let is_cable = |_: u32, b: u32, path: CablePath| match b {
            1 => path.theirs.cable == 1,
            _ => path.ours.cable == 1,
        };
        let table = PathTable::new(&peers, &reports(&peers, is_cable));
        assert_eq!(table.between(0, 1), [CablePath { ours: end(0, 0), theirs: end(1, 0) }]);
    }

    #[test]
    fn ports_behind_one_switch_are_as_many_paths_as_the_host_with_fewer_has() {
        let peers = [
            info("a", &[&[("fe80::1", 64)], &[("fe80::2", 64)], &[("fe80::3", 64)]]),
            info("b", &[&[("fe80::4", 64)], &[("fe80::5", 64)]]),
        ];
        let table = PathTable::new(&peers, &reports(&peers, |_, _, _| true));
        assert_eq!(table.count(0, 1), 2);
    }

    #[test]
    fn hosts_are_reached_along_others_and_those_that_no_cable_leads_to_are_not() {
        let line = [
            info("a", &[&[("10.0.1.1", 30)]]),
            info("b", &[&[("10.0.1.2", 30)], &[("10.0.2.1", 30)]]),
            info("c", &[&[("10.0.2.2", 30)]]),
            info("c", &[]),
        ];
        let unreached =
            |peers: &[PeerInfo]| PathTable::new(peers, &reports(peers, |_, _, _| true)).find_unreached(peers);
        assert_eq!(unreached(&line), None);
        // The cable between b and c is not there.
        let apart = [line[0].clone(), line[1].clone(), line[3].clone()];
        assert_eq!(unreached(&apart), Some(2));
        assert_eq!(unreached(&line[..1]), None);
    }

    #[test]
    fn a_gap_is_between_neighbors_that_have_no_cable() {
        let at = |network: u8, host: u8| (format!("10.0.{network}.{host}"), 30);
        let host = |name: &str, ends: &[(String, u8)]| -> PeerInfo {
            let ends: Vec<[(&str, u8); 1]> = ends.iter().map(|(ip, bits)| [(ip.as_str(), *bits)]).collect();
            let ends: Vec<&[(&str, u8)]> = ends.iter().map(|end| &end[..]).collect();
            info(name, &ends)
        };
        let ring = [
            host("a", &[at(1, 1), at(3, 2)]),
            host("b", &[at(1, 2), at(2, 1)]),
            host("c", &[at(2, 2), at(3, 1)]),
        ];
        let gap = |peers: &[PeerInfo]| PathTable::new(peers, &reports(peers, |_, _, _| true)).find_gap(peers);
        assert_eq!(gap(&ring), None);
        let chain = [ring[0].clone(), ring[1].clone(), host("c", &[at(2, 2)])];
        assert_eq!(gap(&chain), Some((2, 0)));
        let with_neighbor = [chain[0].clone(), chain[0].clone(), chain[1].clone()];
        assert_eq!(gap(&with_neighbor), None, "two ranks of a host");
        assert_eq!(gap(&ring[..1]), None);
        assert!(PathTable::default().is_empty());
    }
}
