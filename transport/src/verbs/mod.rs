//! The device layer: verbs objects that own themselves, from a library that is loaded at run time.
//!
//! [`Library`] -> [`Context`] -> [`Domain`], [`CompletionQueue`], [`Channel`] -> [`Region`], [`QueuePair`]. Each keeps
//! what it was made from alive, so they end in the order that verbs ask for, however they are dropped: queue pair,
//! then completion queue and domain, then channel, then context. The one order that types don't keep is that of
//! regions and what is posted to them: posting is unsafe, and says so.
//!
//! Invariants: nothing here sleeps but [`find_gid`], which says for how long at most, and nothing waits for a peer; posting and polling go straight through the
//! library's table of operations, without allocation and without a lock of ours; every refusal becomes a
//! [`VerbsError`] that says what was being done, on which device, and what the library answered.
//!
//! What a device can do is asked of it, never concluded from the system's name. This module knows no protocol, keeps
//! no credits, and does not know that there is a software device.

mod address;
mod capabilities;
mod completion;
mod context;
mod device;
mod diagnosis;
mod domain;
mod errno;
mod error;
mod event;
mod functions;
mod gid;
mod library;
mod port;
mod post;
mod queue_pair;
mod refusal;
mod status;

pub use address::find_gid;
pub use capabilities::Abilities;
pub use completion::{Channel, Completion, CompletionQueue, POLL_BATCH};
pub use context::Context;
pub use device::DeviceInfo;
pub use diagnosis::Cause;
pub use domain::{Access, Domain, Region};
pub use errno::Errno;
pub use error::VerbsError;
pub use event::{AsyncEvent, Subject};
pub use gid::Gid;
pub use library::Library;
pub use port::gigabits;
pub use post::{LocalRun, Operation, PostError, RemoteRun, SendRequest};
pub use queue_pair::{LocalAddress, QueuePair, QueuePairSpec, RemoteAddress};
pub use refusal::{Action, Refusal};
pub use status::explain;
pub use verbs_sys::{
    DeviceAttr, EventType, LinkLayer, Mtu, NodeType, PortAttr, PortState, QpCap, QpState, QpType,
    TransportType, WcOpcode, WcStatus,
};
