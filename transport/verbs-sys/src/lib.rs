//! The verbs ABI: the numbers and layouts that `libibverbs.so.1` and `librdma.dylib` share with their callers.
//!
//! Both the driver, which loads one of those libraries, and the software device, which is one, stand on this
//! crate, so they can't disagree about a number.
//!
//! Invariants: a number that comes from outside is kept as it is. The types here are numbers with names, not
//! enums, because a newer library may send one that this version does not know.
//!
//! This crate does not load a library yet and holds no state.

mod numbers;
mod wire;

pub use numbers::{AccessFlags, Mtu, PortState, QpState, QpType, SendFlags, WcOpcode, WcStatus, WrOpcode};
pub use wire::{Gid, Sge};
