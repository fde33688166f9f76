//! A one-way FIFO in shared memory: cells that carry flags and small payloads, and a staging area for more.
//!
//! ```text
//! | consumer line | cell 0 | cell 1 | ... | staging area |
//! ```
//!
//! A cell is one cache line: a head word, the digest, and 48 bytes. The head word's stamp says which message the
//! cell holds, so a receiver that polls it learns of a small message and gets its payload with one line
//! transfer. Larger messages put a descriptor into the cell: where in the staging area the piece is, where in the
//! sender's registered memory, or at which address of the sender's process.
//!
//! The ring lives in the receiver's arena. The sender writes cells and staging bytes, the receiver writes the
//! consumer line: how many cells and staging bytes it is done with, which are the sender's credits. It publishes
//! small consumptions lazily, a quarter of the ring at a time, and those that a sender waits for at once.
//!
//! Invariants: only one sender and one receiver; a cell is written only when it was consumed; a stamp is stored
//! after (release) all that it announces, and loaded before (acquire) any of it is read.

mod cell;
mod layout;
mod receiver;
mod sender;

pub(crate) use cell::{Content, INLINE_BYTES};
pub use layout::RingLayout;
pub(crate) use receiver::{Publish, RingReceiver};
pub(crate) use sender::RingSender;

#[cfg(test)]
mod tests;
