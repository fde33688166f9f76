//! What can be known of a schedule without running it.
//!
//! * [`Touched`]: which steps have touched a chunk so far.
//! * [`Order`]: which step of a rank is complete before which other one starts.
//! * [`Matching`]: which send meets which receive.
//! * [`Flow`]: an order in which the whole world can run, or the cycle that forbids it.
//! * [`Values`]: what every chunk holds, as a set of contributions.
//!
//! The builder and the verifier both stand on these, but on different questions: the builder derives what the
//! verifier then checks from nothing but the finished schedule.

mod flow;
mod hash;
mod matching;
mod order;
mod touched;
mod values;

pub(crate) use flow::{Cycle, Flow};
pub(crate) use hash::FastMap;
pub(crate) use matching::{Matching, Mismatch};
pub(crate) use order::{Order, Turn};
pub(crate) use touched::Touched;
pub(crate) use values::{Expression, Expressions, Value, Values, Wrong};
