//! Bulk messages by remote writes: pieces that are written where their receiver has granted a place.
//!
//! The receiver knows from the plan which messages are to come. It grants a place for each of their pieces
//! ahead of time: an address, a key and a rail. The sender writes each piece there from registered memory,
//! with immediate data that names it; nothing is copied. Pieces are numbered on each stream.
//!
//! On unreliable connections a sequenced message follows each piece by the same rail, with its checksum.
//! Queue pairs keep their order, so a piece is lost if that message arrives and the piece has not. What is
//! lost or damaged is granted again.
//!
//! | module | content |
//! |---|---|
//! | `send` | pieces on their way to a peer |
//! | `receive` | announced messages, and pieces that arrive |
//!
//! Invariant: a place is granted again, or handed over, only when nothing can write to it on account of an
//! earlier grant: the piece is known to have arrived or to be lost, or its queue pair is dead.

#[cfg(test)]
mod model;
mod receive;
mod send;

use super::{
    rules::Rules,
    staging::{no_staging, staging, staging_bytes},
};
pub(super) use receive::{Came, GrantedRecv};
pub(super) use send::{GrantedSend, SendPiece};

/// Staging places of a stream in each direction. Each stream has its own, so there are few.
const STAGES: u32 = 8;

/// Both directions of a stream.
#[derive(Debug)]
pub(super) struct Granted {
    pub(super) send: GrantedSend,
    pub(super) recv: GrantedRecv,
}

impl Granted {
    /// Staging places begin at the offset `base`.
    pub(super) fn new(base: usize, rules: &Rules) -> Granted {
        let (send, recv) = staging(base, STAGES, rules.piece_bytes);
        Granted { send: GrantedSend::new(send), recv: GrantedRecv::new(recv) }
    }

    /// Both directions of a stream that has no granted pieces.
    pub(super) fn unused() -> Granted {
        let (send, recv) = no_staging();
        Granted { send: GrantedSend::new(send), recv: GrantedRecv::new(recv) }
    }

    /// Whether devices may still access memory of this stream, at either end.
    pub(super) fn is_in_use(&self) -> bool {
        !self.send.is_idle() || self.recv.is_granted()
    }

    /// Drops all messages and pieces. No device may access their memory any more.
    pub(super) fn clear(&mut self) {
        self.send.clear();
        self.recv.clear();
    }

    /// Bytes of the slab that staging needs for one stream.
    pub(super) fn staging_bytes(rules: &Rules) -> usize {
        staging_bytes(STAGES, rules.piece_bytes)
    }
}
