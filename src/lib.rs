//! Collective communication for Macs and PCs wired together with Thunderbolt.

pub mod element;
pub mod kernels;
pub mod launch;

pub use collectives::{Collective, DType, ReduceOp};
