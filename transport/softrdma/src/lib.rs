//! A software RDMA device: the ABI of libibverbs, entirely in user space, between processes of one host.
//!
//! Unmodified verbs programs run on it with `LD_PRELOAD`. There is no daemon, and no thread between sender
//! and receiver: the process that posts work is the NIC. It maps its peers' queues, moves the bytes and
//! writes the completions of both ends itself. A timer thread exists only where something happens at a later
//! time, because a cable has latency or a request waits.
//!
//! Modules, from the C functions down:
//!
//! - `abi`: the exported C functions and the objects behind them
//! - `local_node`, `config`: the node that this process runs on, and the variables that name it
//! - `nic`: executes work requests
//! - `shm`: the memory that the processes of a fabric share
//! - [`control`]: faults, commands and counters in that memory; `observer` opens it from outside
//! - [`fabric`], [`link_model`], [`profile`]: the fabric file, and what cables and devices do

mod clock;
mod config;
pub mod control;
pub mod fabric;
mod fabric_view;
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

pub use abi::device_list;
pub use config::{Config, default_folder};
pub use observer::Observer;
