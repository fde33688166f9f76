//! Bootstrap: connects each rank of a job to a rendezvous server, in the launcher or elsewhere, over which
//! the ranks find each other.
//!
//! ```text
//! rank -> server   Hello (rank, options) [+ descriptor of its arena]
//! server -> rank   Welcome (all members) [+ all descriptors]     | Refused (why) | Busy (with another job)
//! rank -> server   Probed (whether it can read the others' memory; with the hello if they share none)
//! server -> rank   Go (the first obstacle to reading memory, if any)
//! rank -> server   Exchange + bytes | Abort (why, absent)              any number of times
//! server -> rank   Exchanged + the bytes of all ranks            | Refused (why)
//! ...              the connection stays open
//! rank -> server   SyncBoard (changed words of its board), ReportFailure (failure of the job), Heartbeat
//! server -> rank   BoardUpdate (changed words of other boards), Failed (the first failure), Died (rank, how)
//! rank -> server   RequestSnapshot (of the whole job)                  any number of times
//! server -> rank   RequestStatus, RequestProcessStates (of silent ranks), Snapshot (to those that asked)
//! rank -> server   Status, ProcessStates
//! rank -> server   RequestTime                                         any number of times
//! server -> rank   Time (of the server's clock)
//! rank -> server   Goodbye (last changed words of its board)
//! ```
//!
//! Ranks that share memory read each other's boards there. They send no Exchange, SyncBoard or ReportFailure.
//!
//! Ranks on the server's host and of its user connect to a Unix socket, which also carries descriptors of
//! memory; each end checks the other one's user. Other ranks connect over TCP, where the server listens on
//! request. Where the job has a secret, which it must have for TCP, each connection begins with a handshake
//! in which both ends prove that they have it; all later bytes are encrypted.
//!
//! A thread of each process with connections answers for the process while its other threads compute
//! (`client::status_thread`), so a hang can be examined. Processes of the same user that are no ranks can ask
//! for a snapshot at a socket of its own (`inquiry`).
//!
//! The connection is the liveness channel: if it breaks without a Goodbye, the rank has died, and the server
//! tells all other ranks within a moment. `liveness` detects a host that vanishes behind a TCP connection.
//!
//! | module | purpose |
//! |---|---|
//! | `address`, `connect` | addresses of a rendezvous, and connecting to one |
//! | `client` | a rank's side of the connection |
//! | `server` | the rendezvous server |
//! | `frame_stream`, `record_layer`, `socket` | one end of a connection: frames, encryption, bytes |
//! | `identity` | rank, size and rendezvous of this process, from the launcher's environment |
//! | `unique_id` | a rendezvous in 128 bytes |
//! | `snapshot` | the status of every rank, collected by the rendezvous |
//! | `inquiry` | questions of processes that are no ranks |
//! | `reconnect` | listening sockets of a rank, for communicators made later |
//! | `wire` | messages and their encoding |
//! | `liveness` | detection of vanished hosts |
//! | `clock` | comparison of the clocks of hosts |
//! | `environment` | environment variables, and the secret that they configure |
//! | `unix`, `interfaces` | Unix sockets, and addresses of this host |
//!
//! This crate knows nothing of collectives: boards are words, and exchanged data are bytes.

mod address;
mod client;
mod clock;
mod connect;
mod environment;
mod error;
mod frame_stream;
#[cfg(any(test, feature = "fuzzing"))]
pub mod harness;
mod identity;
mod inquiry;
mod interfaces;
mod liveness;
mod reconnect;
mod record_layer;
mod server;
mod snapshot;
mod socket;
#[cfg(test)]
mod tests;
mod unique_id;
mod unix;
mod wire;

pub use address::host_and_port;
pub use client::{
    Connection, DeathWatch, Joined, LAUNCHER_ADVICE, Notice, Pause, SnapshotReply, SnapshotRequester,
    latest_pause, provide_status,
};
pub use clock::{ClockSample, monotonic_nanos};
pub use connect::{ConnectSpec, RendezvousHost};
pub use error::{Error, Result};
#[cfg(any(test, feature = "fuzzing"))]
pub use identity::feed_store_client;
pub use identity::{Identity, LaunchInfo, Resolved, WorldRanks, launcher_of_env, ranks_of_env};
pub use inquiry::FoundRendezvous;
pub use reconnect::ReconnectListener;
pub use server::{JobStatus, OwnServer, RejectionCounts, Server, ServerSpec};
pub use snapshot::{JobMembers, Presence, ProcessState, Snapshot};
pub use transport::secure::Secret;
pub use unique_id::UniqueId;
pub use wire::{Hello, Member, PROTOCOL, Word};
