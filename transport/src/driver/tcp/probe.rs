//! The probe: datagrams over all cables at once, which show where each cable leads.
//!
//! ```text
//! rank a                                      rank b
//!   | -- probe, from each address to each candidate of b --> |
//!   | <-- the same; says over which addresses it has heard a |
//! ```
//!
//! Sockets are bound to the interface of their cable, so a datagram that arrives has taken this cable. It
//! carries random numbers of both ranks, which only ranks of the job know. The probe decides only which
//! paths are tried first: connections over them are authenticated like all others.
//!
//! Ranks start at about the same time, when all of them have announced their addresses. Datagrams that
//! arrive before that wait in the sockets.

use super::{
    addresses::carrier_changes,
    cables::{Cable, preference},
    device::Device,
    paths::{CablePath, candidates},
    peer_info::{AnnouncedAddress, AnnouncedCable, CableEnd, HeardPath, PeerInfo},
    probe_cache::CableState,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::AsFd,
};
use std::{
    io,
    net::{IpAddr, SocketAddr, SocketAddrV6, TcpListener, UdpSocket},
    time::{Duration, Instant},
};

/// Interval between repetitions of a probe that has not been confirmed.
const INTERVAL: Duration = Duration::from_millis(25);
/// Time to hear a rank whose address is in the network of a cable.
const LIMIT: Duration = Duration::from_secs(2);
/// Time to hear anyone over a cable that has link-local addresses only.
const LINK_LOCAL_LIMIT: Duration = Duration::from_millis(600);
/// Time for further ranks over such a cable, after the latest one.
const LINK_LOCAL_PAUSE: Duration = Duration::from_millis(200);

/// Sockets of one rank on the cables of its host.
#[derive(Debug, Default)]
pub(super) struct CableSockets {
    pub(super) announced: Vec<AnnouncedCable>,
    /// Interfaces by cable.
    pub(super) devices: Vec<Device>,
    /// States of the interfaces before the probe.
    pub(super) states: Vec<CableState>,
    pub(super) listeners: Vec<TcpListener>,
    probes: Vec<(CableEnd, UdpSocket)>,
}

impl CableSockets {
    /// Opens sockets on all addresses of cables. Leaves out addresses that the system refuses, for example
    /// those that are not valid yet.
    pub(super) fn open(cables: &[Cable]) -> CableSockets {
        let mut sockets = CableSockets::default();
        for cable in cables {
            sockets.add(cable);
        }
        sockets
    }

    fn add(&mut self, cable: &Cable) {
        let device = Device { name: cable.name.clone(), index: cable.index };
        let carrier_changes = carrier_changes(&cable.name);
        let mut addresses = Vec::new();
        for address in &cable.addresses {
            let at = scoped(address.ip, 0, cable.index);
            let Ok((listener, probe)) = open_pair(at, &device) else { continue };
            let port = |address: io::Result<SocketAddr>| address.map_or(0, |address| address.port());
            let end = CableEnd { cable: self.announced.len() as u8, address: addresses.len() as u8 };
            addresses.push(AnnouncedAddress {
                ip: address.ip,
                prefix_bits: address.prefix_bits,
                tcp_port: port(listener.local_addr()),
                udp_port: port(probe.local_addr()),
            });
            self.listeners.push(listener);
            self.probes.push((end, probe));
        }
        if !addresses.is_empty() {
            self.announced.push(AnnouncedCable { name: cable.name.clone(), addresses });
            self.states.push(CableState { device: device.clone(), carrier_changes });
            self.devices.push(device);
        }
    }
}

/// Returns an address with the interface as its scope, if it needs one.
pub(super) fn scoped(ip: IpAddr, port: u16, index: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => SocketAddrV6::new(ip, port, 0, index).into(),
        ip => SocketAddr::new(ip, port),
    }
}

/// Opens a listener and a socket for probes at an address of an interface.
fn open_pair(at: SocketAddr, device: &Device) -> io::Result<(TcpListener, UdpSocket)> {
    let (listener, probe) = (TcpListener::bind(at)?, UdpSocket::bind(at)?);
    listener.set_nonblocking(true)?;
    probe.set_nonblocking(true)?;
    let bound = device.bind(&listener, at.is_ipv4()).and_then(|()| device.bind(&probe, at.is_ipv4()));
    // Without the right to bind, the routes lead an address of a network of its own to the right cable.
    if preference(at.ip()) > 1 {
        bound?;
    }
    Ok((listener, probe))
}

/// A probe on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Message {
    from: u32,
    to: u32,
    /// Instances of both ranks, the sender's first.
    instances: [u64; 2],
    /// Ends of the sender and of the receiver.
    path: CablePath,
    /// Whether the sender has heard the receiver over this path.
    has_heard: bool,
}

impl Message {
    const MAGIC: [u8; 8] = *b"tbcclcbl";
    const BYTES: usize = 37;

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Message::MAGIC.to_vec();
        bytes.extend(self.from.to_le_bytes());
        bytes.extend(self.to.to_le_bytes());
        self.instances.iter().for_each(|instance| bytes.extend(instance.to_le_bytes()));
        let CablePath { ours, theirs } = self.path;
        bytes.extend([ours.cable, ours.address, theirs.cable, theirs.address, u8::from(self.has_heard)]);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Message> {
        let bytes: &[u8; Message::BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let end = |at: usize| CableEnd { cable: bytes[at], address: bytes[at + 1] };
        (bytes[..8] == Message::MAGIC && bytes[36] <= 1).then(|| Message {
            from: word(8),
            to: word(12),
            instances: [long(16), long(24)],
            path: CablePath { ours: end(32), theirs: end(34) },
            has_heard: bytes[36] == 1,
        })
    }
}

/// A candidate during the probe.
#[derive(Debug)]
struct Target {
    peer: u32,
    path: CablePath,
    /// Index of the socket.
    socket: usize,
    address: SocketAddr,
    /// Whether the addresses are of one network, which only a cable between the two hosts explains.
    is_expected: bool,
    /// When the peer was first heard.
    heard_at: Option<Instant>,
    /// Whether the peer has heard this rank.
    is_confirmed: bool,
}

/// Probes all candidates, and returns the paths over which other ranks were heard. Takes 2 s at most.
pub(super) fn probe(rank: u32, peers: &[PeerInfo], sockets: &CableSockets) -> Vec<HeardPath> {
    let mut probe = Probe { rank, peers, sockets, targets: targets(rank, peers, sockets) };
    probe.run();
    let heard = probe.targets.iter().filter(|target| target.heard_at.is_some());
    heard
        .map(|Target { peer, path: CablePath { ours, theirs }, .. }| HeardPath {
            peer: *peer,
            ours: *ours,
            theirs: *theirs,
        })
        .collect()
}

fn targets(rank: u32, peers: &[PeerInfo], sockets: &CableSockets) -> Vec<Target> {
    let own = &peers[rank as usize];
    let mut targets = Vec::new();
    for (peer, theirs) in (0..).zip(peers) {
        for path in candidates(own, theirs) {
            let Some(socket) = sockets.probes.iter().position(|(end, _)| *end == path.ours) else { continue };
            let to =
                &theirs.cables[usize::from(path.theirs.cable)].addresses[usize::from(path.theirs.address)];
            let index = sockets.devices[usize::from(path.ours.cable)].index;
            targets.push(Target {
                peer,
                path,
                socket,
                address: scoped(to.ip, to.udp_port, index),
                is_expected: preference(to.ip) <= 1,
                heard_at: None,
                is_confirmed: false,
            });
        }
    }
    targets
}

struct Probe<'p> {
    rank: u32,
    peers: &'p [PeerInfo],
    sockets: &'p CableSockets,
    targets: Vec<Target>,
}

impl Probe<'_> {
    fn run(&mut self) {
        let start = Instant::now();
        let mut next = start;
        while !self.is_done(start) {
            let now = Instant::now();
            if now >= next {
                self.targets
                    .iter()
                    .filter(|target| !target.is_confirmed)
                    .for_each(|target| self.send(target));
                next = now + INTERVAL;
            }
            self.wait(next);
            self.receive();
        }
        // The last answers may have been lost.
        self.targets.iter().filter(|target| target.heard_at.is_some()).for_each(|target| self.send(target));
    }

    /// Whether no cable can tell more.
    fn is_done(&self, start: Instant) -> bool {
        (0..self.sockets.devices.len()).all(|cable| self.is_cable_done(cable, start))
    }

    fn is_cable_done(&self, cable: usize, start: Instant) -> bool {
        let on_cable =
            || self.targets.iter().filter(move |target| usize::from(target.path.ours.cable) == cable);
        if start.elapsed() >= LIMIT || on_cable().next().is_none() {
            return true;
        }
        if on_cable().any(|target| target.is_expected) {
            return on_cable().all(|target| target.is_confirmed || !target.is_expected);
        }
        match on_cable().filter_map(|target| target.heard_at).max() {
            None => start.elapsed() >= LINK_LOCAL_LIMIT,
            Some(latest) => {
                let is_answered = |target: &Target| target.is_confirmed || target.heard_at.is_none();
                latest.elapsed() >= LINK_LOCAL_PAUSE && on_cable().all(is_answered)
            }
        }
    }

    /// Sends one datagram. An address that can't be reached is one over which nothing is heard.
    fn send(&self, target: &Target) {
        let instance = |rank: u32| self.peers[rank as usize].instance;
        let message = Message {
            from: self.rank,
            to: target.peer,
            instances: [instance(self.rank), instance(target.peer)],
            path: target.path,
            has_heard: target.heard_at.is_some(),
        };
        let _ = self.sockets.probes[target.socket].1.send_to(&message.encode(), target.address);
    }

    fn wait(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        let time = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        let mut fds: Vec<PollFd<'_>> = self
            .sockets
            .probes
            .iter()
            .map(|(_, socket)| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN))
            .collect();
        let _ = poll(&mut fds, Some(&time));
    }

    /// Receives the datagrams that have arrived, and answers ranks that have not heard this one.
    fn receive(&mut self) {
        let mut bytes = [0; Message::BYTES + 1];
        for (at, (end, socket)) in self.sockets.probes.iter().enumerate() {
            // An error of the socket is one of a datagram that was sent.
            while let Ok((length, _)) = socket.recv_from(&mut bytes) {
                let Some(message) = Message::decode(&bytes[..length]).filter(|m| self.is_ours(m, *end))
                else {
                    continue;
                };
                let path = CablePath { ours: message.path.theirs, theirs: message.path.ours };
                let is_same =
                    |target: &Target| (target.peer, target.path, target.socket) == (message.from, path, at);
                let Some(target) = self.targets.iter_mut().find(|target| is_same(target)) else { continue };
                target.heard_at.get_or_insert_with(Instant::now);
                target.is_confirmed |= message.has_heard;
                if !message.has_heard {
                    let target = self.targets.iter().find(|target| is_same(target)).expect("found above");
                    self.send(target);
                }
            }
        }
    }

    /// Whether a message is of a rank of this job, for this rank at this end.
    fn is_ours(&self, message: &Message, end: CableEnd) -> bool {
        let instance = |rank: u32| self.peers.get(rank as usize).map(|peer| peer.instance);
        message.to == self.rank
            && message.path.theirs == end
            && instance(message.from) == Some(message.instances[0])
            && instance(self.rank) == Some(message.instances[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        let end = |cable, address| CableEnd { cable, address };
        let path = CablePath { ours: end(1, 2), theirs: end(3, 0) };
        Message { from: 7, to: 1023, instances: [5, u64::MAX], path, has_heard: true }
    }

    #[test]
    fn probes_survive_the_wire_and_other_datagrams_are_none() {
        let bytes = message().encode();
        assert_eq!(bytes.len(), Message::BYTES);
        assert_eq!(Message::decode(&bytes), Some(message()));
        for at in [0, 7, 36] {
            let mut broken = bytes.clone();
            broken[at] ^= 0x80;
            assert_eq!(Message::decode(&broken), None, "byte {at}");
        }
        assert_eq!(Message::decode(&bytes[1..]), None);
    }

    /// Sockets of a rank on the loopback address, which stands for a cable to every other rank.
    fn on_loopback(host: &str, instance: u64) -> (CableSockets, PeerInfo) {
        let mut sockets = CableSockets::default();
        let ip = "127.0.0.1".parse().expect("an address");
        let (name, index) = (if cfg!(target_os = "linux") { "lo" } else { "lo0" }.to_owned(), 1);
        let address = super::super::cables::CableAddress { ip, prefix_bits: 8 };
        sockets.add(&Cable { name, index, addresses: vec![address] });
        let info = PeerInfo::new(instance, host.to_owned(), Vec::new(), sockets.announced.clone(), None);
        (sockets, info)
    }

    #[test]
    fn strangers_are_not_heard_and_a_rank_that_is_not_there_costs_two_seconds() {
        let ((sockets, own), (there, peer)) = (on_loopback("a", 1), on_loopback("b", 2));
        // The addresses differ on real hosts.
        let mut peers = vec![own, peer];
        peers[1].cables[0].addresses[0].ip = "127.0.0.2".parse().expect("an address");
        let mut stranger = Message { from: 1, to: 0, instances: [3, 1], ..message() };
        let end = CableEnd { cable: 0, address: 0 };
        stranger.path = CablePath { ours: end, theirs: end };
        let port = sockets.announced[0].addresses[0].udp_port;
        there.probes[0].1.send_to(&stranger.encode(), ("127.0.0.1", port)).expect("sent");
        let start = Instant::now();
        assert_eq!(probe(0, &peers, &sockets), []);
        assert!(start.elapsed() >= LIMIT);
        // The same datagram with the random number of the rank is heard.
        let known = Message { instances: [2, 1], ..stranger };
        there.probes[0].1.send_to(&known.encode(), ("127.0.0.1", port)).expect("sent");
        let heard = probe(0, &peers, &sockets);
        assert_eq!(heard, [HeardPath { peer: 1, ours: end, theirs: end }]);
    }
}
