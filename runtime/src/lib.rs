//! Collective communication for Macs and PCs wired together with Thunderbolt.
//!
//! ```no_run
//! use tbccl::{Communicator, ReduceOp};
//!
//! // In each process that `tbccl run -n 4 -- ./program` has started:
//! let mut comm = Communicator::from_env()?;
//! let mut gradients = vec![1.0f32; 1000];
//! comm.all_reduce_in_place(&mut gradients, ReduceOp::Sum)?;
//! assert_eq!(gradients[0], comm.size() as f32);
//! # Ok::<(), tbccl::Error>(())
//! ```
//!
//! This crate is the runtime: it brings ranks together (crate `bootstrap`), turns calls into plans (crate
//! `collectives`), and carries them out over links (crate `transport`). It is the only place where plans meet
//! links.
//!
//! [`guide`] has first steps, RDMA, failures, and own algorithms and transports.

mod agreement;
pub mod calibration;
mod call;
pub mod communicator;
mod config;
mod error;
mod executor;
pub mod forks;
pub mod guide;
pub mod metrics;
pub mod p2p;
mod processors;
mod recorder;
pub mod shared;
mod sync;
pub mod trace;
pub mod why;

pub use bootstrap::{self, UniqueId, launcher_of_env, ranks_of_env};
pub use call::{CallKind, CallRecord};
pub use collectives::{
    BlockLen, Blocks, BufferShape, CallNames, CallShape, Codec, Collective, DType, MAX_RANKS, Numerics,
    Overlap, ReduceOp, VectorCounts, parse_bytes,
};
pub use communicator::{
    Buffer, CallByAddress, CallOptions, Communicator, Group, Operation, RawAllReduce, RawCall, RegisteredVec,
    Registration, Scale, Stats, record_on_signal,
};
pub use config::{
    Config, ConfigOption, IDENTITY, LogConfig, MlxNative, NamedDevices, OPTIONS, PollingConfig,
    SelectionConfig, ShmConfig, TcpOptions, TraceConfig, Transport, VerbsOptions,
};
pub use error::{Error, PeerName, Place, Result};
pub use events;
pub use kernels::{self, Element, element};
pub use p2p::{Delivery, P2p, P2pRequest};
pub use shared::{Pending, SharedCommunicator};
pub use topology::{DeviceMatrix, Rank};
pub use transport::{Counters, PollCounters, driver::RailInfo};
