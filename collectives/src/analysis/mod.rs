//! Static analysis of schedules.
//!
//! * [`Touched`]: the steps that have touched a chunk so far.
//! * [`Order`]: which step of a rank is complete before which other one starts.
//! * [`Matching`]: the receive that each send meets.
//! * [`Flow`]: an order in which all ranks can run, or the cycle that forbids it.
//! * [`Values`]: the contents of every chunk, as a set of contributions.
//!
//! The builder and the verifier use these for different questions: the builder derives dependencies, and the
//! verifier checks them from the finished schedule alone.

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
pub(crate) use values::{Expression, Expressions, Value, ValueError, Values};
