//! How ranks find each other: a rendezvous in the launcher, over a Unix socket.
//!
//! ```text
//! rank -> server   Hello (who, options) [+ descriptor of its arena]
//! server -> rank   Welcome (everyone) [+ everyone's descriptors]   | Refused (why)
//! rank -> server   Probed (can it read the others' memory?)
//! server -> rank   Go (may anyone pull?)
//! rank -> server   Exchange + bytes | GivenUp (why)                  any number of times
//! server -> rank   Exchanged + everyone's bytes                    | Refused (why)
//! ...              the connection stays open
//! rank -> server   Look (what is new on its board), Raise (a failure of the job)
//! server -> rank   News (what is new on others' boards), Failed (the first failure), Died (who, how)
//! rank -> server   Goodbye (what was last new on its board)
//! ```
//!
//! Ranks that see each other's boards exchange nothing, and neither look nor raise.
//!
//! On Linux the socket has a name in the abstract space, which no file system holds; elsewhere it is a file in a
//! folder of its own that is removed with the server. Only processes of the same user are let in.
//!
//! The connection is the liveness channel: when it breaks without a Goodbye the rank has died, and all
//! others are told within a moment.
//!
//! Nothing here knows collectives: boards are words, and what is exchanged are bytes.

mod client;
mod server;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use client::{Connection, Joined, Notice};
pub use server::Server;
pub(crate) use wire::{Hello, MAGIC, Member, PROTOCOL, Word};
