//! Ranks that reach each other by RDMA: the main transport.
//!
//! [`VerbsEndpoint`] opens the devices of a rank, introduces it to the others and gives out links. Below it:
//!
//! | module | idea |
//! |---|---|
//! | `endpoint` | from a library's name to connected queue pairs |
//! | `introduction`, `wiring` | what ranks tell each other, and which devices make rails |
//! | `sharing` | ranks of one host that use the same devices |
//! | `link` | the lane of a peer as a [`crate::Link`] |
//! | `sleeper`, `tender`, `signals` | waiting without polling; who looks after connections between calls, and ends them |
//! | `engine` | completions, and whom they belong to |
//! | `peer` | numbered messages over whichever rails are up |
//! | `landing` | places for pieces that nobody has granted |
//! | `outgoing`, `incoming` | messages in slots, and pieces that go where they are granted |
//! | `rails` | what happens when a cable goes down and comes back |
//! | `choice` | which rails there are, and which of them to use |
//! | `queue`, `port`, `memory` | a queue pair, a device, and the slab, with their accounts |
//! | `wire` | bytes |
//!
//! A small message is copied into a slot and out of it. A larger one goes from registered memory to registered memory
//! without a copy: the receiver, who knows from the plan what is to come, grants places ahead of time, and the sender
//! *puts* each piece there. Where the device writes into remote memory the put is a write with immediate data; where it
//! does not it is a send that meets a receive posted in that very place, followed by a trailer that says which piece it
//! was. Which it is follows from what devices say they can do.
//!
//! Invariants: nothing is sent for which the receiver has no receive posted; nothing is read as a length or an index
//! that has not been checked; a message that is lost is repeated, and one that is damaged is not believed.
//!
//! This module does not know the software device, does not open connections, and does not decide when to give up.

mod choice;
mod conversation;
mod endpoint;
mod engine;
mod granting;
mod incoming;
mod introduction;
mod landing;
mod lease;
mod lent;
mod link;
mod memory;
mod opening;
mod outgoing;
mod pace;
mod peer;
mod port;
mod queue;
mod rail;
mod rails;
mod receiving;
mod sharing;
mod signals;
mod sleeper;
mod telling;
mod tender;
mod wire;
mod wiring;

pub use endpoint::VerbsEndpoint;
pub(super) use memory::LINE;
pub use wiring::Matrix;

use std::{path::PathBuf, time::Duration};

/// What the verbs transport is told by its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsConfig {
    /// The verbs library; that of the system when not given.
    pub library: Option<PathBuf>,
    /// The devices between each two ranks; found out when not given.
    pub matrix: Option<Matrix>,
    /// Bytes of registered memory; when not given, [`VerbsConfig::SLAB_LATE`] or [`VerbsConfig::SLAB_EARLY`].
    pub slab_bytes: Option<u64>,
    /// Bytes that are registered at a time; a multiple of a page that divides 4 GiB.
    pub segment_bytes: u64,
    /// Registrations of memory that callers have lent, with each device: so many regions, and so many bytes.
    pub cache_regions: u32,
    /// See there.
    pub cache_bytes: u64,
    /// Bytes of a piece; a multiple of 4096. Equal on all ranks.
    pub piece_bytes: u64,
    /// Pieces of a lane under way, at most 16. Equal on all ranks.
    pub window: u32,
    /// Checksums over everything; when not given, on unreliable connections. Equal on all ranks.
    pub checksum: Option<bool>,
    /// Reliable connections or not; when not given, where all devices have them. Equal on all ranks.
    pub reliable: Option<bool>,
    /// How long to wait for a device to have an address.
    pub patience: Duration,
    /// Completions taken at a time, at most 16.
    pub poll_batch: usize,
    /// Sleep until the device wakes us when a wait gets long; when not given, where all our devices can.
    pub events: Option<bool>,
    /// A queue that is fuller than this, in percent of its depth, is polled and not slept on.
    pub event_percent: u32,
    /// After so long without a message, connections are kept alive.
    pub keep_alive: Duration,
}

impl VerbsConfig {
    /// Bytes of address space where segments are registered as they are used.
    pub const SLAB_LATE: u64 = 16 << 30;
    /// Bytes where all of them are registered, and pinned, beforehand.
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
            patience: Duration::from_secs(30),
            poll_batch: 16,
            events: None,
            event_percent: 50,
            keep_alive: Duration::from_secs(60),
        }
    }
}
