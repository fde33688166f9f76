//! A software RDMA device: the ABI of libibverbs, entirely in user space, between processes of one host.
//!
//! Programs that know nothing of it run on it unmodified, by `LD_PRELOAD`. There is no daemon and no thread: the
//! process that posts work is the NIC. It maps its peers' queues, moves the bytes and writes the completions of
//! both ends itself.

pub mod control;
pub mod fabric;
pub mod link_model;
pub mod names;
mod observer;
pub mod profile;

#[allow(dead_code, unused_imports)]
mod nic;
#[allow(dead_code, unused_imports)]
mod qp_state;
#[allow(dead_code, unused_imports)]
mod setup;
#[allow(dead_code, unused_imports)]
mod shm;
mod world;

pub use observer::Observer;
pub use setup::{Setup, default_folder};
