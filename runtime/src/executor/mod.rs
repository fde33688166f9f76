//! The executor: runs one rank's part of a schedule over links.
//!
//! [`Program`] is the rank's part, flattened once per plan. [`CallConstants`] belong to a kind and size of
//! call, as the ranges of a [`SizedStraight`] do; a [`Binding`] adds the memory of one call. [`Executor`]
//! runs a program on bindings. Every (peer, lane, direction) is a stream, whose head step is polled as soon
//! as the steps that it comes after are complete. Local steps run when they become ready. After the first
//! call of a program the executor allocates nothing and makes no system call, unless a transfer needs one or
//! a wait gets long.
//!
//! A send that follows a receive is polled with the bytes combined so far, once nothing else delays it. Both
//! are then in flight at the same time, each in its stream. When the receive is complete, the send is like
//! any other.
//!
//! Several calls that were issued together run as one: their programs are concatenated (`concat`), and only
//! the order of messages between two ranks connects them.
//!
//! Links that support it get receives announced in advance, as soon as their memory may be written. Receives
//! that reduce are announced even earlier, since their data waits in memory of the link.
//!
//! A message outside of groups is polled on its link without a program ([`Message`]), unless runs are traced.
//!
//! The executor does not know why it runs, whether peers live, or how long it may take: it asks its [`Watch`]
//! when a wait gets long.

mod binding;
mod concat;
mod constants;
mod links;
mod packing;
mod program;
mod protocols;
mod run;
mod sink;
mod sized;
#[cfg(all(test, target_os = "linux"))]
mod tests;
mod workspace;

pub(crate) use binding::Binding;
pub(crate) use constants::{CallConstants, Packed, Sizing};
pub(crate) use links::{LinkMaker, Links};
pub(crate) use program::Program;
pub(crate) use protocols::Protocols;
pub(crate) use run::{Done, Executor, Message, MessageMemory, OnOtherCores, Stop, Waiting, Watch};
pub(crate) use sink::{Combine, CopySink, ReduceSink, Writes};
pub(crate) use sized::SizedStraight;
