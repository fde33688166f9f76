//! How ranks find each other: a rendezvous, in the launcher or elsewhere, to which each rank is connected.
//!
//! ```text
//! rank -> server   Hello (who, options) [+ descriptor of its arena]
//! server -> rank   Welcome (everyone) [+ everyone's descriptors]   | Refused (why) | Busy (with another job)
//! rank -> server   Probed (can it read the others' memory?)
//! server -> rank   Go (may anyone pull?)
//! rank -> server   Exchange + bytes | GivenUp (why)                  any number of times
//! server -> rank   Exchanged + everyone's bytes                    | Refused (why)
//! ...              the connection stays open
//! rank -> server   Look (what is new on its board), Raise (a failure of the job), Beat (I wait, and live)
//! server -> rank   News (what is new on others' boards), Failed (the first failure), Died (who, how)
//! rank -> server   Goodbye (what was last new on its board)
//! ```
//!
//! Ranks that see each other's boards exchange nothing, and neither look nor raise.
//!
//! Ranks of the server's host and user come over a Unix socket, which also carries descriptors of memory. Others come
//! over TCP, where the server listens when it is asked to; there each connection begins with a handshake in which both
//! ends prove that they have the job's secret, and all that follows is encrypted.
//!
//! The connection is the liveness channel: when it breaks without a Goodbye the rank has died, and all others are told
//! within a moment. Over TCP a host that vanishes is noticed by `liveness`.
//!
//! | module | idea |
//! |---|---|
//! | `address`, `client` | a rank's way to the rendezvous, and its side of the connection |
//! | `server` | the other side, for all ranks |
//! | `pipe`, `guard`, `socket` | one end of a connection: frames, what protects them, bytes |
//! | `unique_id` | a rendezvous in 128 bytes |
//! | `muster` | where a rank can be met later on, to make another communicator |
//! | `wire` | frames |
//! | `liveness` | how soon a vanished host is noticed |
//!
//! Nothing here knows collectives: boards are words, and what is exchanged are bytes.

mod address;
mod client;
mod connect;
mod error;
mod frame_stream;
#[cfg(any(test, feature = "fuzzing"))]
pub mod harness;
mod identity;
mod interfaces;
mod liveness;
mod reconnect;
mod record_layer;
mod server;
mod socket;
#[cfg(test)]
mod tests;
mod unique_id;
mod unix;
mod wire;

pub use address::{Address, host_and_port, resolve};
pub use client::{Connection, Joined, Notice};
pub use connect::{ConnectSpec, RendezvousHost};
pub use error::{Error, Result, remedy};
pub use identity::{Identity, LaunchInfo, Parent, Resolved, WorldRanks, launcher_of_env, ranks_of_env};
pub use reconnect::ReconnectListener;
pub use server::{JobStatus, RejectionCounts, Server, ServerSpec};
pub use transport::secure::{Secret, SecretError};
pub use unique_id::UniqueId;
pub use wire::{Hello, MAGIC, Member, PROTOCOL, Word};
