//! The pure middle of tbccl: what a collective is, and the programs that carry it out.
//!
//! A planner turns a [`Spec`] into a [`Schedule`]: a program that is data. The same object is printed,
//! verified, segmented, and executed by the runtime over real links.
//!
//! Invariants: everything here is a function of its arguments. Every schedule that a planner returns is safe
//! with zero credits, i.e. when no send completes before its receive has taken the data.
//!
//! This crate has no I/O, no clock, no environment, no threads and no unsafe code; it knows nothing of
//! memory, links or processes.
#![forbid(unsafe_code)]

mod analysis;
pub mod builder;
mod codec;
mod collective;
mod dtype;
mod hosts;
mod layout;
mod names;
pub mod numerics;
mod op;
mod packed_layout;
pub mod pass;
pub mod plan;
pub mod rebuild;
mod ring_order;
pub mod schedule;
pub mod select;
mod shape;
pub mod simulate;
mod size;
mod spanning_tree;
mod spec;
pub mod sweep;
pub mod uneven;
pub mod verify;
mod weights;

pub use codec::{BlockLen, Codec, Packing, packs};
pub use collective::Collective;
pub use dtype::DType;
pub use hosts::{Hosts, Sizes};
pub use layout::{BlockLayout, TooLarge};
pub use names::UnknownName;
pub use numerics::Numerics;
pub use op::{IllegalOp, ReduceOp};
pub use packed_layout::PackedLayout;
pub use ring_order::RingOrder;
pub use schedule::Schedule;
pub use shape::{Blocks, BufferShape, CallNames, CallShape, Overlap, ResultRule, Sources, VectorCounts};
pub use size::parse_bytes;
pub use spanning_tree::SpanningTree;
pub use spec::{MAX_REPLICAS, MAX_SEGMENTS, MAX_STEPS, PlanError, Spec};
pub use topology::MAX_RANKS;
pub use topology::Rank;
pub use weights::{MAX_WEIGHT, Weights};
