//! The verbs ABI: the numbers and layouts that `libibverbs.so.1` and `librdma.dylib` share with their callers.
//!
//! Both the driver, which loads one of those libraries, and the software device, which is one, stand on this
//! crate, so they can't disagree about a number.
//!
//! Invariants: a number that comes from outside is kept as it is. The types here are numbers with names, not
//! enums, because a newer library may send one that this version does not know.
//!
//! Structures have the members of their C namesakes: `ibv_qp_init_attr` is [`QpInitAttr`]. Their sizes and offsets
//! are checked when the crate is compiled, and by a test against the C header.
//!
//! This crate loads no library and holds no state; `transport::verbs` does.

mod enums;
mod structures;

pub use enums::*;
pub use structures::*;
