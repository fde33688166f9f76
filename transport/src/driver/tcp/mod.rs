//! Ranks that any network connects.
//!
//! Each lane between two ranks is a FIFO of its own: a connection, or several side by side for the parts of long
//! messages ([`TcpConfig::sockets`]). No lane ever waits for another one, since schedules are free of deadlock only then.
//! Whoever polls a link moves its bytes; no thread stands on the way of a message. A small message is one system call at
//! each end. The payload of a large one goes from the caller's memory into the socket, and from the socket to where it
//! belongs, without a copy of ours; what is to be reduced is read into a buffer that stays in cache and is reduced from
//! there.
//!
//! A connection is made when a link first needs it, by whichever end needs it first, so that pairs that never talk cost
//! nothing. One thread per endpoint (`connector`) accepts, connects and authenticates, and hands connections to links; it
//! sleeps when there is nothing of that to do. Nothing that comes in is believed before the handshake of
//! [`crate::secure`] has proved that the caller knows the job's secret; who is silent, slow or wrong is closed within a
//! second, counted, and told of once.
//!
//! | module | idea |
//! |---|---|
//! | `endpoint`, `introduction` | one rank's part; the words that ranks exchange |
//! | `addresses` | where to listen, which of a peer's addresses to call, and what path that is |
//! | `table`, `connector`, `attempt` | which connections there are; who makes them; one that is being made |
//! | `socket`, `vital` | system calls on a connected socket; is the other end still there? |
//! | `wire`, `outgoing`, `incoming`, `sealed` | bytes: heads, sending, receiving, and both of them encrypted |
//! | `harness` | the receiving side without a socket, for tests and fuzzing |
//! | `link`, `confirm`, `sleeper` | links over that; telling a sender that it was matched; sleeping until something comes |
//!
//! What is not here: RDMA-like announcements (a socket needs none), and who is alive when nothing is sent, which is the
//! business of the ranks' side channel.
//!
//! # Safety
//! Sockets read into, and write from, memory that the caller of a poll lends for the duration of the call. Nothing is
//! in use once a poll has returned.

mod addresses;
mod attempt;
mod channel;
mod confirm;
mod connector;
mod endpoint;
#[cfg(any(test, feature = "fuzzing"))]
pub mod harness;
mod incoming;
mod introduction;
mod link;
mod outgoing;
mod part;
mod sealed;
mod sleeper;
mod socket;
mod table;
#[cfg(test)]
mod tests;
mod vital;
mod warning;
mod wire;

pub use addresses::{Bind, addresses_of_interface, local_address_towards};
pub use endpoint::TcpEndpoint;
pub use warning::WarningHandler;

use crate::secure::Secret;
use std::time::Duration;

/// What a connection is protected against, beyond damage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Security {
    /// Both ends know that the other one belongs to the job. Who can change packets on the wire can change messages.
    #[default]
    Authenticate,
    /// All that follows is encrypted and protected against changes as well.
    Encrypt,
}

/// How to use a network. All but the addresses must be equal on all ranks.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Where to listen, and where peers call us.
    pub bind: Bind,
    /// The job's secret. `None`: rank 0 makes one and tells it with its first word, which is only as safe as the side
    /// channel that carries words.
    pub secret: Option<Secret>,
    /// What connections are protected against.
    pub security: Security,
    /// Connections per lane between two ranks, 1 to [`TcpConfig::MOST_SOCKETS`]; `None` for one within a host and two
    /// between hosts.
    pub sockets: Option<u32>,
    /// A message is cut into parts of at least so many bytes for them.
    pub stripe_bytes: usize,
    /// Bytes of address space for registered memory.
    pub slab_bytes: usize,
    /// Bytes that the system may hold for each direction of a connection; `None` to let it decide.
    pub buffer_bytes: Option<usize>,
    /// Lanes between two ranks.
    pub lanes: u8,
    /// How long to wait for a peer to answer when a connection is made.
    pub patience: Duration,
    /// After how long without an answer a peer's host is taken for gone; from [`SILENCE`](super::SILENCE) to
    /// [`SILENCE_MOST`](super::SILENCE_MOST).
    pub silence: Duration,
}

impl TcpConfig {
    /// The most connections per lane.
    pub const MOST_SOCKETS: u32 = 16;
}

impl Default for TcpConfig {
    fn default() -> TcpConfig {
        TcpConfig {
            bind: Bind::default(),
            secret: None,
            security: Security::Authenticate,
            sockets: None,
            stripe_bytes: 256 << 10,
            slab_bytes: 1 << 30,
            buffer_bytes: None,
            lanes: 2,
            patience: Duration::from_secs(30),
            silence: super::SILENCE,
        }
    }
}
