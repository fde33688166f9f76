//! RDMA devices: owned verbs objects, from a library that is loaded at run time.
//!
//! [`Library`] -> [`Context`] -> [`Domain`], [`CompletionQueue`], [`Channel`] -> [`Region`], [`QueuePair`].
//! Each object keeps the objects it was made from alive. They are therefore destroyed in the order that verbs
//! require, independent of the order in which they are dropped: queue pair, then completion queue and domain,
//! then channel, then context. Types do not enforce one order: that of regions and the work posted on them.
//! Posting is therefore unsafe.
//!
//! In a forked child the objects are still the parent's. Dropping them there does nothing.
//!
//! Invariants: nothing here waits for a peer, and only [`find_gid`] and [`AddressWait`] sleep, up to their
//! timeouts. Listing and opening devices wait up to a time limit for the driver (`answer`). Posting and
//! polling call the library's operations table directly, without allocation and without a lock of this crate.
//! Every failed call becomes a [`VerbsError`] with the action, the device and the library's answer.
//!
//! The module asks a device for its capabilities and never derives them from the system's name. It knows no
//! protocol, keeps no credits, and does not distinguish the software device.

mod address;
mod answer;
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
#[cfg(all(test, target_os = "linux"))]
mod inherited_tests;
mod library;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod null_device;
mod port;
mod post;
mod queue_pair;
mod refusal;
mod status;

pub use address::{AddressWait, find_gid};
pub use capabilities::DeviceCapabilities;
pub use completion::{Channel, Completion, CompletionBatch, CompletionQueue, POLL_BATCH};
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
pub use queue_pair::{LocalAddress, PacketClass, QueuePair, QueuePairSpec, RemoteAddress};
pub use refusal::{Action, Refusal};
pub use status::explain;
pub use verbs_sys::{
    DeviceAttr, EventType, LinkLayer, Mtu, NodeType, PortAttr, PortState, QpCap, QpState, QpType,
    TransportType, WcOpcode, WcStatus,
};
