//! The executor: carries out one rank's part of a schedule over links.
//!
//! [`Program`] is the rank's part, flattened once per plan. [`Executor`] binds it to the memory of a call and
//! runs it: every (peer, lane, direction) is a stream whose head step is polled as soon as the steps it comes
//! after are complete; local steps run when they become ready. After the first call of a program there is no
//! allocation and no system call, except where a transfer needs one or a wait gets long.
//!
//! A send that follows a receive is polled with the bytes combined so far, once nothing else holds it up.
//! Both are then in flight at the same time, each in its stream; when the receive is complete the send is
//! like any other.
//!
//! Several calls that were issued together run as one: their programs one behind the other (`concat`), tied
//! only by the order of messages between two ranks.
//!
//! Links that want it get receives announced ahead of time, as soon as their memory may be written; receives
//! that reduce are announced even earlier, since their data waits in memory of the link.
//!
//! The executor does not know why it runs, whether peers live, or how long it may take: it asks its [`Watch`]
//! when a wait gets long.

mod binding;
mod concat;
mod links;
mod packing;
mod program;
mod run;
mod sink;
#[cfg(all(test, target_os = "linux"))]
mod tests;
mod workspace;

pub(crate) use binding::{Binding, Packed, Protocols, Sizing};
pub(crate) use links::{LinkMaker, Links};
pub(crate) use program::Program;
pub(crate) use run::{Executor, Stop, Waiting, Watch};
pub(crate) use sink::CopySink;
