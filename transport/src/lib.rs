//! Links that move bytes between ranks.
//!
//! A [`Link`] is one end of a FIFO between two ranks on one lane. What a link can do is said by its
//! [`Capabilities`]; the runtime picks a [`Protocol`] from them and the message's size and memory. [`driver::local`]
//! is for ranks that are threads of one process and [`driver::shm`] for those that are processes of one host; both
//! stand on the rings of [`ring`] in an [`memory::Arena`] that its peers have mapped. [`driver::rehearsal`] is for
//! tests.
//!
//! Invariants: a link never blocks and never sleeps; it delivers messages in order, each exactly once, with the
//! length and the digest it was sent with, or returns an error. Every link counts the bytes it moved and the
//! bytes it copied.
//!
//! This crate knows nothing of collectives, schedules, element types or processes' lives: who is alive, how long
//! to wait and what a message means are the runtime's business.

mod capabilities;
mod counters;
pub mod driver;
mod error;
mod link;
pub mod memory;
pub mod ring;
pub mod secure;
mod span;
pub mod verbs;
mod wait;

pub use capabilities::Capabilities;
pub use counters::{Counters, PollCounters};
pub use error::TransportError;
pub use link::{Link, Protocol, RecvProgress, RecvState, SendProgress, SendState, Sink, Size};
pub use memory::Board;
pub use wait::{Sleeper, WaitPolicy, Waiter};
