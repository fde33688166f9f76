//! A one-way FIFO in shared memory: cells that carry flags and small payloads, and a staging area for larger
//! ones.
//!
//! ```text
//! | consumer line | cell 0 | cell 1 | ... | staging area | buffers |
//! ```
//!
//! A cell is one cache line: a head word, the digest and 48 bytes. The stamp in the head word says which
//! message the cell holds. A receiver that polls the cell therefore learns of a small message and gets its
//! payload with one line transfer. A message of up to 104 bytes continues in the next cell, which has a stamp
//! too: a receiver knows the length and polls both, so that both lines come at the same time. Larger messages
//! put a descriptor into the cell: the number of a buffer that changes hands, a position in the staging area,
//! an offset in the sender's registered memory, or an address in the sender's process.
//!
//! The ring lives in the receiver's arena. The sender writes cells and staging bytes. The receiver writes the
//! consumer line: the numbers of cells and staging bytes consumed, which are the sender's credits. The
//! receiver publishes small consumptions lazily, some pieces at a time, and publishes consumptions
//! that a sender waits for at once.
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
pub(crate) use cell::{Content, INLINE_BYTES};
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
