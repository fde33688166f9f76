//! A one-way FIFO in shared memory: cells that carry flags and small payloads, and a staging area for larger
//! ones.
//!
//! ```text
//! | consumer line | cell 0 | cell 1 | ... | staging area | buffers |
//! ```
//!
//! A cell is two cache lines. The first one has a head word, the digest and 48 bytes. The stamp in the head
//! word says which message the cell holds. A receiver that polls the cell therefore learns of a small message
//! and gets its payload with one line transfer. A message of up to 104 bytes continues in the second line,
//! which has a stamp too: a receiver knows the length and polls both, so that both lines come at the same
//! time. Larger messages put a descriptor into the cell: the number of a buffer that changes hands, a
//! position in the staging area, an offset in the sender's registered memory, or an address in the sender's
//! process.
//!
//! The ring lives in the receiver's arena. The sender writes cells and staging bytes. The receiver writes the
//! consumer line: the numbers of cells and staging bytes consumed, which are the sender's credits. The
//! receiver publishes small consumptions lazily, some pieces at a time, and publishes consumptions
//! that a sender waits for at once.
//!
//! Each message also tells how many cells its sender has consumed of the ring in the other direction. Ranks
//! that exchange messages thus need no consumer line. They use only the first [`SHORT_LAP`](layout) cells,
//! whose lines stay in the first-level caches of both cores: a head says whether the next message is in the
//! first cell again. Two ranks on cores of an AMD EPYC (Zen 4), time of calls in nanoseconds with all 256
//! cells of one line in turns, and so; medians of 7 to 12 launches in turns:
//!
//! | cores | cells | `all_reduce` 4 B | 64 B | 256 B | `barrier` | half a round trip, 4 B | 64 B |
//! |---|---|---:|---:|---:|---:|---:|---:|
//! | a common cache | 256 | 107 | 126 | 151 | 97 | 88 | 108 |
//! | | few | 85 | 99 | 141 | 76 | 84 | 96 |
//! | none | 256 | 313 | 376 | 461 | 299 | 285 | 321 |
//! | | few | 257 | 355 | 351 | 246 | 210 | 261 |
//!
//! A rank that only sends uses all cells, and fetches the consumer line once per lap or so.
//!
//! Invariants: a ring has one sender and one receiver. The sender writes a cell only after its previous
//! content was consumed. A stamp is stored (release) after everything that it announces, and loaded (acquire)
//! before any of it is read.

mod buffers;
mod cell;
mod costs;
mod fetches;
mod layout;
mod polls;
mod receiver;
mod sender;
mod stores;

pub(crate) use buffers::Buffers;
pub(crate) use cell::{Content, INLINE_BYTES, LONG_BYTES};
pub(crate) use costs::{TimedRead, Way};
pub use layout::{RingLayout, Stores};
pub(crate) use polls::ReplyTimer;
pub use polls::end_speculation;
pub(crate) use receiver::{Publish, RingReceiver};
pub(crate) use sender::RingSender;

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
