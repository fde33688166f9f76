//! The drivers, which open links between ranks.
//!
//! | module | content |
//! |---|---|
//! | `endpoint` | interface between the runtime and a driver |
//! | [`local`], [`shm`] | links in shared memory: threads of one process, processes of one host |
//! | [`tcp`], [`verbs`] | links over TCP and over RDMA devices |
//! | [`mixed`], `host_memory` | shared memory within a host, another driver between hosts |
//! | `fallback` | a second driver for jobs that can't use the first |
//! | `supplement` | a second driver for pairs of ranks that the first does not connect |
//! | `strict` | shared memory that behaves like a strict device, for tests (feature `test-driver`) |
//! | `ring_link`, `pull` | link over two rings; reading another process's memory |
//! | `harness`, `ring_harness` | in tests and fuzzing: messages and shared memory of hostile peers |
//! | `reachability` | ranks that reach each other along others |
//! | `peer_timeout` | time since the kernel of a TCP peer has last answered |

mod endpoint;
mod fallback;
#[cfg(any(test, feature = "fuzzing"))]
pub mod harness;
mod host_memory;
pub mod local;
pub mod mixed;
mod peer_timeout;
mod pull;
mod reachability;
#[cfg(any(test, feature = "fuzzing"))]
pub mod ring_harness;
mod ring_link;
pub mod shm;
#[cfg(feature = "test-driver")]
pub mod strict;
mod supplement;
pub mod tcp;
pub mod verbs;

pub use endpoint::{Endpoint, ProgressHandle, RailInfo, RegistrationGuard, SharedMemory};
pub use fallback::{Choice, Fallback, OnChoice};
pub use host_memory::{HostMemory, SlabSource};
#[cfg(target_vendor = "apple")]
pub use peer_timeout::limit_retransmission;
pub use peer_timeout::{Overdue, PEER_TIMEOUT, PEER_TIMEOUT_MAX, PEER_TIMEOUT_MIN, unanswered_for};

use reachability::first_unreached;
