//! The verbs ABI: enumerations and structures that `libibverbs.so.1` and `librdma.dylib` share with their
//! callers.
//!
//! The verbs driver, which loads one of those libraries, and the software device, which takes the place of
//! one, both use this crate, so they can't disagree about a number.
//!
//! Invariants: a number from outside is kept as it is. The enumerations are integers with named constants,
//! not Rust enums, because a newer library may return a value that this version does not know.
//!
//! Structures have the members of their C namesakes: `ibv_qp_init_attr` is [`QpInitAttr`]. Sizes and offsets
//! are checked when the crate is compiled, and by a test against the C header.
//!
//! This crate loads no library and holds no state; `transport::verbs` does.

mod enums;
mod structures;

pub use enums::*;
pub use structures::*;
