//! Links that move bytes between ranks.
//!
//! A [`Link`] is one end of a FIFO between two ranks on one lane. Its [`Capabilities`] tell the runtime which
//! [`Protocol`] fits a message's size and memory.
//!
//! Modules:
//! - [`driver`]: the drivers, which open links: [`driver::local`] for threads of one process, [`driver::shm`]
//!   for processes of one host, and others for TCP and verbs devices. `driver::strict` is for tests
//!   (feature `test-driver`).
//! - [`host`]: identity of this host's running system, and of the user behind a Unix socket.
//! - [`forks`]: detection of forked children.
//! - [`memory`]: page mappings, the shared arena, the slab allocator and spans.
//! - [`ring`]: FIFOs in shared memory, under the local and shm drivers.
//! - [`secure`]: authenticated and encrypted connections.
//! - [`sync`]: atomics and locks, which a model checker can replace.
//! - [`verbs`]: RDMA devices.
//!
//! Invariants: a link never blocks and never sleeps. It delivers messages in order, each exactly once, with
//! the length and the digest that the sender gave, or returns an error. Every link counts the bytes it moved
//! and the bytes it copied.
//!
//! This crate knows nothing of collectives, schedules or element types. Deadlines of calls, liveness of ranks
//! and the meaning of messages belong to the runtime.

mod capabilities;
mod counters;
pub mod driver;
mod error;
pub mod forks;
pub mod host;
mod link;
pub mod memory;
pub mod ring;
pub mod secure;
mod span;
mod streaming;
pub mod sync;
mod vendor;
pub mod verbs;
mod wait;

pub use capabilities::Capabilities;
pub use counters::{Counters, PollCounters};
pub use error::TransportError;
pub use link::{
    BriefMessage, Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, Sink, SizeClass,
};
pub use memory::Board;
pub use vendor::is_intel;
pub use wait::{Sleeper, WaitPolicy, Waiter};
