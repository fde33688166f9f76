//! Bytes by rail: by cable to a peer, or over the network that the ranks met on.
//!
//! Sockets add the bytes of each system call to the rail whose addresses they have: messages with headers,
//! confirmations and, if encrypted, tags, but no handshakes. A connection that replaces another one counts
//! for the rail that it takes.

use std::{
    net::{IpAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Bytes of a rail in both directions.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Traffic {
    #[inline]
    pub(super) fn add_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Relaxed);
    }

    #[inline]
    pub(super) fn add_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Relaxed);
    }

    /// Returns the sent and the received bytes.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.sent.load(Relaxed), self.received.load(Relaxed))
    }
}

/// Addresses of this rank and of the peer; `None` for any.
pub(super) type RailEnds = Option<(IpAddr, IpAddr)>;

/// The traffic of a rank's rails.
#[derive(Debug, Default)]
pub(super) struct TrafficTable {
    /// By peer and number of the rail.
    rails: Vec<Vec<(RailEnds, Arc<Traffic>)>>,
}

impl TrafficTable {
    /// Creates the table of rails with these ends, by peer.
    pub(super) fn new(rails: impl Iterator<Item = Vec<RailEnds>>) -> TrafficTable {
        let with_traffic = |rails: Vec<RailEnds>| rails.into_iter().map(|ends| (ends, Arc::default()));
        TrafficTable { rails: rails.map(|rails| with_traffic(rails).collect()).collect() }
    }

    /// Returns the traffic of the rails to a peer, in their order.
    pub(super) fn to(&self, peer: u32) -> impl Iterator<Item = &Traffic> {
        self.rails.get(peer as usize).into_iter().flatten().map(|(_, traffic)| &**traffic)
    }

    /// Returns the traffic of the rail that a connection to a peer takes; none for one that no rail
    /// describes, as a detour around cables.
    pub(super) fn of(&self, peer: u32, connection: &TcpStream) -> Option<Arc<Traffic>> {
        let rails = self.rails.get(peer as usize)?;
        let (ours, theirs) = (connection.local_addr().ok()?, connection.peer_addr().ok()?);
        let addresses = (ours.ip().to_canonical(), theirs.ip().to_canonical());
        let is_it = |(ends, _): &&(RailEnds, Arc<Traffic>)| ends.is_none_or(|ends| ends == addresses);
        rails.iter().find(is_it).map(|(_, traffic)| Arc::clone(traffic))
    }
}
