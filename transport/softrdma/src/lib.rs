//! A software RDMA device: the ABI of libibverbs, entirely in user space, between processes of one host.
//!
//! Programs that know nothing of it run on it unmodified, by `LD_PRELOAD`. There is no daemon, and no thread
//! on the way of a message: the process that posts work is the NIC. It maps its peers' queues, moves the bytes and
//! writes the completions of both ends itself. Only where something has a time, because a cable has latency or a
//! request waits, there is a thread that looks after it while the program does not.

mod config;
pub mod control;
pub mod fabric;
pub mod link_model;
mod local_node;
mod log;
mod observer;
pub mod profile;

#[allow(unreachable_pub, reason = "the C functions are exported by name, not by path")]
mod abi;
mod nic;
mod qp_state;
mod remap;
mod shm;
mod suggestion;
mod sync;
mod world;

pub use abi::device_list;
pub use config::{Config, default_folder};
pub use observer::Observer;
