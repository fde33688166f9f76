//! Ranks that reach each other by RDMA: the main transport.
//!
//! [`VerbsEndpoint`] opens the devices of a rank, sets up its connections and gives out links. All
//! communicators of a process use the same connections.
//!
//! | module | content |
//! |---|---|
//! | `endpoint`, `joined` | one communicator: its set-up and links; its streams |
//! | `network`, `setup` | devices and connections of a process; the rounds in which they are made |
//! | `descriptions`, `devices`, `selection` | messages of set-up; devices, and the user's choice of them |
//! | `wiring`, `host_map`, `locality` | rails; ranks of a host; devices near the cores of a rank |
//! | `link` | one stream to a peer as a [`crate::Link`] |
//! | `sleeper`, `keep_alive`, `signals` | waiting without polling; idle connections; ending by a signal |
//! | `engine`, `shared_engine` | completion queues, and the peers that they drive; their lock |
//! | `peer` | one peer: joins the parts below |
//! | `env`, `rules` | resources and rules that the methods of a peer work with |
//! | `sequence`, `slots`, `notice` | numbered messages, slots, control messages |
//! | `stream`, `streams` | order of the messages of a lane; the streams of all communicators |
//! | `placed`, `granted`, `staging` | bulk messages in pieces, without and with remote writes |
//! | `rail`, `handshake`, `pulse`, `attempts` | cables: queue pairs, failure, silence and return |
//! | `round_trip` | timeouts of messages |
//! | `bandwidth`, `preference` | choice between cables, by bandwidth and by the user |
//! | `queue`, `port`, `memory` | a queue pair, a device, and registered memory |
//! | `registration_cache`, `registration_guard` | registration of user memory |
//! | `wire`, `checksum` | layout of messages, and their checksums |
//! | `explore` | in tests: visits all states of a model |
//! | `harness` | in tests and fuzzing: messages of a hostile peer |
//!
//! The parts of the protocol know nothing of a peer; most are pure, which their documentation states.
//!
//! A message is copied into slots, for which the peer has receives posted at all times, and out of them: it
//! costs one hop and no permission. A bulk message goes from registered memory to registered memory without a
//! copy. Where devices write into remote memory, the receiver grants places ahead of time. Where they do not,
//! sends meet receives that stand in the final places, in an order that both ends know.
//!
//! Invariants: nothing is used as a length or an index that has not been checked; a message that is lost is
//! repeated, and one that is damaged is not used.
//!
//! This module does not know the software device, opens no connections, and does not decide when a call has
//! taken too long.

mod attempts;
mod bandwidth;
mod checksum;
mod descriptions;
mod devices;
mod endpoint;
mod engine;
mod env;
#[cfg(test)]
mod explore;
mod granted;
mod handshake;
#[cfg(any(test, feature = "fuzzing"))]
pub mod harness;
mod host_map;
mod joined;
mod keep_alive;
mod link;
mod locality;
mod memory;
mod network;
mod notice;
mod peer;
mod placed;
mod port;
mod preference;
mod pulse;
mod queue;
mod rail;
mod registration_cache;
mod registration_guard;
mod round_trip;
mod rules;
mod selection;
mod sequence;
mod setup;
mod shared_engine;
mod signals;
mod sleeper;
mod slots;
mod staging;
mod stream;
mod streams;
mod wire;
mod wiring;

#[cfg(any(test, feature = "fuzzing"))]
pub(super) use descriptions::feed_descriptions;
pub use endpoint::VerbsEndpoint;
pub(super) use memory::LINE;
pub use network::Networks;
pub use selection::DeviceSelection;
pub use wiring::Matrix;

use crate::verbs::PacketClass;
use std::{path::PathBuf, time::Duration};

/// Function that shows a message to the user.
#[derive(Clone, Copy, Debug)]
pub struct Notify(pub fn(&str));

impl PartialEq for Notify {
    /// All functions count as equal: they change nothing that ranks agree on.
    fn eq(&self, _: &Notify) -> bool {
        true
    }
}

impl Eq for Notify {}

/// Options of the verbs transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsConfig {
    /// Path of the verbs library; the system's library when `None`.
    pub library: Option<PathBuf>,
    /// Devices between each two ranks; detected when `None`.
    pub matrix: Option<Matrix>,
    /// Bytes of registered memory; [`VerbsConfig::SLAB_LATE`] or [`VerbsConfig::SLAB_EARLY`] when `None`.
    pub slab_bytes: Option<u64>,
    /// Bytes of a registered segment; a multiple of a page that divides 4 GiB.
    pub segment_bytes: u64,
    /// Regions of user memory that are registered with a device at a time.
    pub cache_regions: u32,
    /// Bytes of user memory that are registered with a device at a time.
    pub cache_bytes: u64,
    /// Bytes of a piece of a bulk message; a multiple of 4096. Equal on all ranks.
    pub piece_bytes: u64,
    /// Pieces in flight, at most 16. Equal on all ranks.
    pub window: u32,
    /// Whether everything has a checksum; on unreliable connections when `None`. Equal on all ranks.
    pub checksum: Option<bool>,
    /// Whether connections are reliable; where all devices have them when `None`. Equal on all ranks.
    pub reliable: Option<bool>,
    /// Devices of this rank to use, where there is no matrix; all when `None`.
    pub devices: Option<DeviceSelection>,
    /// Folder of Linux's sysfs, which tells the cores near a device.
    pub sysfs: PathBuf,
    /// Index of the GID to connect from, on every device of this rank; the best one when `None`.
    pub gid_index: Option<u8>,
    /// Class of the packets. Equal on all ranks, so that both directions get the same queues.
    pub class: PacketClass,
    /// Time limit within which a device must have an address.
    pub address_timeout: Duration,
    /// Whether a link-local address of a Thunderbolt port will do at that limit. Connections from it work on
    /// some systems only.
    pub accepts_link_local: bool,
    /// Completions polled at a time, at most 16.
    pub poll_batch: usize,
    /// Whether long waits sleep until a device wakes the rank; where all devices can when `None`.
    pub events: Option<bool>,
    /// Percentage of a completion queue's depth above which it is polled and not slept on.
    pub event_percent: u32,
    /// Silence after which connections are kept alive.
    pub keep_alive: Duration,
    /// Time that a peer is waited for to which no cable works any more.
    pub cable_wait: Duration,
    /// Shows the user that a cable is waited for.
    pub notify: Notify,
    /// Networks that the endpoint can use, and to which it adds its own.
    pub networks: Networks,
}

impl VerbsConfig {
    /// Bytes of the slab where segments are registered when they are first used.
    pub const SLAB_LATE: u64 = 16 << 30;
    /// Bytes of the slab where all segments are registered, and pinned, beforehand.
    pub const SLAB_EARLY: u64 = 1 << 30;
}

impl Default for VerbsConfig {
    fn default() -> VerbsConfig {
        VerbsConfig {
            library: None,
            matrix: None,
            slab_bytes: None,
            segment_bytes: 256 << 20,
            cache_regions: 256,
            cache_bytes: 16 << 30,
            piece_bytes: 128 << 10,
            window: 8,
            checksum: None,
            reliable: None,
            devices: None,
            sysfs: "/sys".into(),
            gid_index: None,
            class: PacketClass::default(),
            address_timeout: Duration::from_secs(30),
            accepts_link_local: true,
            poll_batch: 16,
            events: None,
            event_percent: 50,
            keep_alive: Duration::from_secs(60),
            cable_wait: Duration::from_secs(10),
            notify: Notify(|_| ()),
            networks: Networks::default(),
        }
    }
}
