//! How ranks find each other: a rendezvous in the launcher, over a Unix socket.
//!
//! ```text
//! rank -> server   Hello (who, options) + descriptor of its arena
//! server -> rank   Welcome (everyone) + everyone's descriptors     | Refused (why)
//! rank -> server   Probed (can it read the others' memory?)
//! server -> rank   Go (may anyone pull?)
//! ...              the connection stays open
//! server -> rank   Died (who, how)
//! rank -> server   Goodbye
//! ```
//!
//! On Linux the socket has a name in the abstract space, which no file system holds; elsewhere it is a file in a
//! folder of its own that is removed with the server. Only processes of the same user are let in.
//!
//! The connection is the liveness channel: when it breaks without a Goodbye the rank has died, and all
//! others are told within a moment.
//!
//! Nothing here knows collectives; the job is brought together once and afterwards only deaths travel.

mod client;
mod server;
mod wire;

pub(crate) use client::{Connection, Joined, Notice};
pub use server::Server;
pub(crate) use wire::{Hello, MAGIC, Member, PROTOCOL};
