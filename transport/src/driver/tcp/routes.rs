//! Routes to the other ranks: over cables first, and over other networks where that is allowed.

use super::{
    addresses::{interface_of, local_address_towards, order_addresses},
    cables::is_thunderbolt,
    device::Device,
    paths::{CablePath, Lan, PathTable},
    peer_info::{CableEnd, PeerInfo},
    probe::scoped,
    traffic::RailEnds,
};
use crate::driver::RailInfo;
use if_addrs::Interface;
use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
};

/// A way to connect to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) to: SocketAddr,
    /// Local address, if the system must not choose it.
    pub(super) from: Option<IpAddr>,
    /// Interface of the cable.
    pub(super) device: Option<Device>,
}

impl Route {
    /// Describes the route for messages.
    pub(super) fn name(&self) -> String {
        match &self.device {
            Some(device) => format!("cable {}", device.name),
            None => format!("the network that the ranks met on ({})", self.to.ip()),
        }
    }

    /// Whether a connection between these addresses, of this rank and of the peer, takes this route.
    pub(super) fn is_between(&self, (ours, theirs): (IpAddr, IpAddr)) -> bool {
        self.to.ip() == theirs && self.from.is_none_or(|from| from == ours)
    }
}

/// The ways of one rank to all others.
#[derive(Debug)]
pub(super) struct Routes {
    pub(super) rank: u32,
    /// Information about all ranks, by rank.
    pub(super) peers: Vec<PeerInfo>,
    pub(super) paths: PathTable,
    /// Interfaces of this rank's cables.
    pub(super) devices: Vec<Device>,
    /// All interfaces of this host.
    pub(super) interfaces: Vec<Interface>,
    pub(super) lan: Lan,
    /// Most ranks for which schedules relay messages along cables that form no ring.
    pub(super) max_relayed_ranks: u32,
}

impl Routes {
    /// Whether schedules go over cables only, along which other hosts are reached; equal on all ranks.
    fn is_cables_only(&self) -> bool {
        match self.lan {
            Lan::Always => false,
            Lan::Never => true,
            Lan::Auto => !self.paths.is_empty() && self.find_missing_cable().is_none(),
        }
    }

    /// Returns two ranks without a cable between them that schedules need, if there are any; equal on all
    /// ranks.
    ///
    /// Schedules need a ring in the order of ranks. For not too many ranks any cables that connect them do.
    pub(super) fn find_missing_cable(&self) -> Option<(u32, u32)> {
        let gap = self.paths.find_gap(&self.peers)?;
        if self.peers.len() as u32 > self.max_relayed_ranks {
            return Some(gap);
        }
        self.paths.find_unreached(&self.peers).map(|rank| (0, rank))
    }

    /// Whether a connection to a rank takes the LAN although schedules go over cables only.
    pub(super) fn is_beside_cables(&self, peer: u32) -> bool {
        !self.has_own_path(self.rank, peer) && self.is_cables_only()
    }

    fn is_one_host(&self, a: u32, b: u32) -> bool {
        self.peers[a as usize].host == self.peers[b as usize].host
    }

    /// Whether two ranks connect to each other; equal on all ranks.
    pub(super) fn connects(&self, a: u32, b: u32) -> bool {
        self.has_own_path(a, b) || self.lan != Lan::Never
    }

    /// Whether schedules may send between two ranks; equal on all ranks.
    ///
    /// Messages of a program between two others still go over the LAN, unless it may not be used.
    pub(super) fn is_for_schedules(&self, a: u32, b: u32) -> bool {
        self.has_own_path(a, b) || !self.is_cables_only()
    }

    /// Whether two ranks are on one host, or on two with a cable between them.
    fn has_own_path(&self, a: u32, b: u32) -> bool {
        self.is_one_host(a, b) || self.paths.count(a, b) > 0
    }

    /// Whether two ranks have more than one path, at least one of them a cable; equal on all ranks.
    pub(super) fn has_several_paths(&self, a: u32, b: u32) -> bool {
        let cables = self.paths.count(a, b);
        cables + usize::from(cables > 0 && self.lan != Lan::Never) > 1
    }

    /// Whether an address is one of a rank of the job.
    pub(super) fn is_of_a_rank(&self, address: IpAddr) -> bool {
        self.peers.iter().any(|peer| {
            let cables = peer.cables.iter().flat_map(|cable| &cable.addresses).map(|at| at.ip);
            cables.chain(peer.listen_addresses.iter().map(SocketAddr::ip)).any(|ip| ip == address)
        })
    }

    /// Returns the ranks that this one reaches over other networks although its host has cables.
    pub(super) fn ranks_over_lan(&self) -> Vec<u32> {
        let is_over_lan =
            |peer: &u32| !self.has_own_path(self.rank, *peer) && self.is_for_schedules(self.rank, *peer);
        let ranks = (0..self.peers.len() as u32).filter(is_over_lan);
        if self.devices.is_empty() { Vec::new() } else { ranks.collect() }
    }

    /// Returns the ways to a peer for one of several parallel connections, in the order in which they are
    /// tried. Connections with different numbers begin with different cables.
    pub(super) fn to(&self, peer: u32, stripe: u8) -> VecDeque<Route> {
        let theirs = &self.peers[peer as usize];
        let own = &self.peers[self.rank as usize];
        let mut routes: VecDeque<Route> = VecDeque::new();
        for path in self.paths.between(self.rank, peer) {
            let device = &self.devices[usize::from(path.ours.cable)];
            let at = |info: &PeerInfo, end: CableEnd| {
                info.cables[usize::from(end.cable)].addresses[usize::from(end.address)].clone()
            };
            let (from, to) = (at(own, path.ours), at(theirs, path.theirs));
            let to = scoped(to.ip, to.tcp_port, device.index);
            routes.push_back(Route { to, from: Some(from.ip), device: Some(device.clone()) });
        }
        if !routes.is_empty() {
            let first = usize::from(stripe) % routes.len();
            routes.rotate_left(first);
        }
        if self.lan != Lan::Never || self.is_one_host(self.rank, peer) {
            routes.extend(self.over_lan(peer));
        }
        routes
    }

    /// Returns the ways over other networks.
    fn over_lan(&self, peer: u32) -> impl Iterator<Item = Route> {
        let own = &self.peers[self.rank as usize].listen_addresses;
        let addresses =
            order_addresses(&self.peers[peer as usize].listen_addresses, &self.interfaces, own).into_iter();
        addresses.map(|to| {
            let is_alike = |ours: &&SocketAddr| {
                ours.is_ipv4() == to.is_ipv4() && ours.ip().is_loopback() == to.ip().is_loopback()
            };
            let from = own.iter().find(is_alike).map(|ours| ours.ip()).filter(|ours| !is_link_local(*ours));
            Route { to, from, device: None }
        })
    }

    /// Describes the paths to a peer, in the order in which both ends number them; none to this rank.
    pub(super) fn rails(&self, peer: u32) -> Vec<RailInfo> {
        if peer == self.rank {
            return Vec::new();
        }
        let paths = self.paths.between(self.rank, peer);
        if paths.is_empty() {
            return self.rail_over_lan(peer).into_iter().collect();
        }
        let rail = |path: CablePath| {
            let name = self.devices[usize::from(path.ours.cable)].name.clone();
            RailInfo {
                is_thunderbolt: is_thunderbolt(&name),
                gigabits: super::addresses::link_speed(&name),
                ours: name,
                theirs: self.peers[peer as usize].cables[usize::from(path.theirs.cable)].name.clone(),
                is_up: true,
                sent_bytes: None,
                received_bytes: None,
            }
        };
        paths.into_iter().map(rail).collect()
    }

    /// Returns the addresses of the rails to each peer, in the order of [`Routes::rails`].
    pub(super) fn rail_ends(&self) -> impl Iterator<Item = Vec<RailEnds>> {
        (0..self.peers.len() as u32).map(|peer| self.rail_ends_to(peer))
    }

    fn rail_ends_to(&self, peer: u32) -> Vec<RailEnds> {
        let paths = self.paths.between(self.rank, peer);
        if paths.is_empty() {
            return vec![None];
        }
        let at = |rank: u32, end: CableEnd| {
            self.peers[rank as usize].cables[usize::from(end.cable)].addresses[usize::from(end.address)].ip
        };
        paths.into_iter().map(|path| Some((at(self.rank, path.ours), at(peer, path.theirs)))).collect()
    }

    fn rail_over_lan(&self, peer: u32) -> Option<RailInfo> {
        let address = self.over_lan(peer).next()?.to;
        let (name, gigabits) = interface_of(local_address_towards(address).ok()?);
        let is_thunderbolt = is_thunderbolt(&name);
        let theirs = address.ip().to_string();
        let (sent_bytes, received_bytes) = (None, None);
        let ours = name;
        Some(RailInfo { ours, theirs, gigabits, is_thunderbolt, is_up: true, sent_bytes, received_bytes })
    }
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}
