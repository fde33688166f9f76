//! TCP driver: links between ranks over any network.
//!
//! Each lane between two ranks is a FIFO of its own: one connection, or several in parallel for the parts of
//! long messages ([`TcpConfig::sockets`]). No lane ever waits for another one; schedules are free of deadlock
//! only under this condition. The thread that polls a link moves its bytes; no other thread handles messages,
//! except bytes that must be sent again. A small message costs one system call at each end. A large payload
//! goes from the caller's memory into the socket, and from the socket to its destination, without a copy in
//! user space, but for its end where connections are replaced. Bytes to be reduced are read into a buffer
//! that stays in cache.
//!
//! A connection is made when a link of either end first needs it, so pairs that never communicate cost
//! nothing. One thread per endpoint (`connector`) accepts, connects and authenticates, and hands connections
//! to links; otherwise it sleeps. Nothing received is trusted before the handshake of [`crate::secure`] has
//! proved that the caller knows the job's secret. Silent, slow or wrong callers are disconnected within a
//! second, counted, and reported once.
//!
//! | module | content |
//! |---|---|
//! | `endpoint`, `peer_info` | endpoint of one rank; messages exchanged during set-up |
//! | `addresses` | listening addresses, order of a peer's addresses, interface of a path |
//! | `cables`, `device` | interfaces that lead to one host each; binding to an interface |
//! | `probe`, `probe_cache` | where cables lead; results for later communicators |
//! | `paths`, `routes` | paths over cables; the ways to each rank |
//! | `connection_table`, `connector`, `pending` | connections; the thread that makes them; their set-up |
//! | `socket`, `liveness` | system calls on a connected socket; detection of dead connections |
//! | `wire`, `outgoing`, `incoming`, `receive`, `encrypted` | wire format, sending, receiving, encryption |
//! | `channel`, `link`, `match_acks` | connection; link over connections; match acknowledgements |
//! | `resume`, `resumable_link`, `shares` | streams that outlive connections; link over them; parts by rate |
//! | `dialer`, `reconnect` | attempts to connect; replacement of connections |
//! | `sleeper`, `warning` | sleeping until a socket is ready; the callback for warnings |
//! | `harness` | receiving without a socket, for tests and fuzzing |
//!
//! Not done here: RDMA-like announcements (a socket needs none), and detection of dead ranks on idle
//! connections, which is up to the ranks' side channel.
//!
//! # Safety
//! Sockets read into, and write from, memory that the caller of a poll provides for the duration of the call.
//! No memory is in use once a poll has returned.

mod addresses;
mod cables;
mod channel;
mod connection_table;
mod connector;
mod device;
mod dialer;
mod encrypted;
mod endpoint;
#[cfg(any(test, feature = "fuzzing"))]
pub mod harness;
mod incoming;
mod link;
mod liveness;
mod match_acks;
mod outgoing;
mod paths;
mod peer_info;
mod pending;
mod probe;
mod probe_cache;
mod receive;
mod reconnect;
mod resumable_link;
mod resume;
mod routes;
mod shares;
mod sleeper;
mod socket;
#[cfg(test)]
mod tests;
mod traffic;
mod warning;
mod wire;

#[cfg(any(test, feature = "fuzzing"))]
pub(super) use peer_info::feed_descriptions;

pub use addresses::{Bind, addresses_of_interface, local_address_towards, without_scope};
pub use cables::{CablePattern, CableSelection};
pub use endpoint::TcpEndpoint;
pub use paths::{Lan, Resume};
pub use probe_cache::ProbeCache;
pub use warning::WarningHandler;

use crate::secure::Secret;
use std::time::Duration;

/// Bytes up to which a message to another host arrives sooner if it is sent at once. Its bytes go into the
/// stream of the connection and out of it in both cases; asking for them takes a round trip.
const EAGER_BYTES: usize = 256 << 10;

/// Protection of connections against attackers, beyond detection of damage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Security {
    /// Both ends prove that they belong to the job. An attacker on the path can still change messages.
    #[default]
    Authenticate,
    /// Everything after the handshake is also encrypted and protected against changes.
    Encrypt,
}

/// Options of the driver. All but `bind`, `cables`, `buffer_bytes` and
/// `probes` must be equal on all ranks.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Addresses to listen on, which peers connect to.
    pub bind: Bind,
    /// Interfaces that lead to one other host each, which connections to that host use first.
    pub cables: CableSelection,
    /// Use of `bind` between hosts that have cables; equal on all ranks.
    pub lan: Lan,
    /// Most ranks for which schedules relay messages along cables that form no ring in the order of ranks;
    /// equal on all ranks.
    pub max_relayed_ranks: u32,
    /// Replacement of connections that break; equal on all ranks.
    pub resume: Resume,
    /// The job's secret.
    ///
    /// If `None`, rank 0 generates one and sends it to the others during set-up. It is then only as safe as
    /// the side channel that carries the messages of set-up.
    pub secret: Option<Secret>,
    /// Protection of connections against attackers.
    pub security: Security,
    /// Connections per lane between two ranks, 1 to [`TcpConfig::MAX_SOCKETS`].
    ///
    /// `None` selects one within a host and two between hosts.
    pub sockets: Option<u32>,
    /// Minimum bytes of each part of a message that is split over several connections.
    pub stripe_bytes: usize,
    /// Bytes of address space for registered memory.
    pub slab_bytes: usize,
    /// Bytes of the system's buffer for each direction of a connection; `None` to let the system decide.
    pub buffer_bytes: Option<usize>,
    /// Number of lanes between two ranks.
    pub lanes: u8,
    /// Time to wait for a peer to answer when a connection is made.
    pub connect_timeout: Duration,
    /// Time without an answer after which a peer's host counts as gone.
    ///
    /// From [`PEER_TIMEOUT_MIN`](super::PEER_TIMEOUT_MIN) to [`PEER_TIMEOUT_MAX`](super::PEER_TIMEOUT_MAX).
    pub peer_timeout: Duration,
    /// Earlier probes of cables, which save further ones.
    pub probes: ProbeCache,
}

impl TcpConfig {
    /// The maximum number of connections per lane.
    pub const MAX_SOCKETS: u32 = 16;
}

impl Default for TcpConfig {
    fn default() -> TcpConfig {
        TcpConfig {
            bind: Bind::default(),
            cables: CableSelection::Off,
            lan: Lan::Auto,
            max_relayed_ranks: 0,
            resume: Resume::Auto,
            secret: None,
            security: Security::Authenticate,
            sockets: None,
            stripe_bytes: 256 << 10,
            slab_bytes: 1 << 30,
            buffer_bytes: None,
            lanes: 2,
            connect_timeout: Duration::from_secs(30),
            peer_timeout: super::PEER_TIMEOUT,
            probes: ProbeCache::default(),
        }
    }
}
