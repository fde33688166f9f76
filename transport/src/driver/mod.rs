//! The drivers: ways to get links between ranks.

mod endpoint;
mod fallback;
mod host_memory;
pub mod local;
pub mod mixed;
mod peer_timeout;
mod pull;
mod ring_link;
pub mod shm;
pub mod strict;
pub mod tcp;
pub mod verbs;

pub use endpoint::{Endpoint, ProgressHandle, RailInfo, RegistrationGuard};
pub use fallback::{Fallback, OnChoice};
pub use host_memory::HostMemory;
pub use peer_timeout::{PEER_TIMEOUT, PEER_TIMEOUT_MAX, unanswered_for};
