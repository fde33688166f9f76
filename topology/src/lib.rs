//! Topology: ranks, hosts, cables and devices of a job.
//!
//! This crate names the participants of a job: [`Rank`]s, the hosts they run on, the RDMA devices that lead
//! from one to another ([`DeviceMatrix`]), and the pairs of ranks that can reach each other ([`Reach`]). It
//! reads hostfiles ([`Hostfile`]), allocates ranks to hosts ([`allocate`]) in an order that follows the
//! cables ([`Wiring`]), and gives each rank its share of a machine's cores ([`Cores`]). A [`Cluster`]
//! describes machines and cables with numbers, for simulations.
//!
//! Planners and selection take such values and nothing else from the outside world, so that a plan is a pure
//! function of values on which all ranks agree.
//!
//! Invariants: ranks are dense, `0..size`; a placement covers every rank exactly once.
//!
//! This crate does not open files, read the environment, or inspect the machine it runs on.
#![forbid(unsafe_code)]

mod allocation;
mod cluster;
mod cores;
mod device_matrix;
mod hostfile;
mod placement;
mod rank;
mod reach;
mod wiring;

pub use allocation::{AllocationError, DealOrder, Request, allocate};
pub use cluster::{
    Cabling, Cluster, ClusterError, Impossible, IntraHost, Link, Plug, Route, Speed, Tier, cablings,
};
pub use cores::{Bind, Core, Cores};
pub use device_matrix::{Cell, DeviceMatrix, MatrixError};
pub use hostfile::{Format, Host, Hostfile, HostfileError};
pub use placement::{HostIndex, Placement, PlacementError};
pub use rank::{MAX_RANKS, Rank};
pub use reach::Reach;
pub use wiring::{Port, Rail, Wiring};
