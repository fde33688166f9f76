//! Reference results: calls described by value, with inputs and expected outputs computed here, without the
//! library. Tests and `tbccl chaos` compare the library with them, bit by bit.
//!
//! | module | purpose |
//! |---|---|
//! | `case` | calls, described by value |
//! | `definition` | operations on each element type, written as simply as possible |
//! | `element` | the Rust type of an element type |
//! | `exchange` | one case on one rank: its buffers, its call, and the expected result |
//! | [`parcel`] | tagged messages that own their memory |
//! | `random` | pseudo-random numbers |
//! | [`traffic`] | random tagged messages, checked against MPI's matching rules |

mod case;
mod definition;
mod element;
mod exchange;
pub mod parcel;
mod random;
pub mod traffic;

pub use case::{Call, Case, Kind, Way};
pub use definition::Sample;
pub use exchange::{AnyExchange, Exchange, Meaning, Order, exact, exchange_of};
pub use random::{Random, mix};
