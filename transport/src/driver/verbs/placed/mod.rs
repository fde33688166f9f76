//! Bulk messages without remote writes: pieces that meet receives in their final places.
//!
//! Devices that count in frames match sends with receives by their order, and hold a send until its receive
//! is posted (TN3205). So the receiver posts the receives of the pieces that it expects, in the order of the
//! plan, straight into registered memory, and the sender sends at once: nothing asks and nothing is copied.
//! Each piece is followed by a trailer that names it and has its checksum. Pieces are numbered in each
//! direction, and the rail of a piece follows from its number.
//!
//! | module | content |
//! |---|---|
//! | `epoch` | when the queues of both ends are new; the rails of pieces |
//! | `owner` | the stream that may use the queues |
//! | `send`, `receive` | one direction each |
//!
//! Invariants: receives are posted in the order of their pieces' numbers, and only while both ends' queues
//! are new; a piece counts as received only if its trailer follows it and its checksum is right.

mod epoch;
#[cfg(test)]
mod model;
mod owner;
mod receive;
mod send;

use super::{
    rules::Rules,
    staging::{staging, staging_bytes},
};
pub(super) use epoch::Epoch;
pub(super) use owner::Claim;
use owner::{RecvOwner, SendOwner};
pub(super) use receive::{PlacedRecv, is_relayed, relayed};
pub(super) use send::{PlacedSend, SendPiece};

/// Staging places of a peer in each direction. Half as many take 1.5 times as long in all-reduces of 0.5 to 4
/// MiB where four ranks share two cores: a rank whose places are taken waits until its peer has had a core.
const STAGES: u32 = 16;

/// Both directions, and what they share.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) epoch: Epoch,
    pub(super) send: PlacedSend,
    pub(super) send_owner: SendOwner,
    pub(super) recv: PlacedRecv,
    pub(super) recv_owner: RecvOwner,
}

impl Placed {
    /// Begins the first epoch over that many rails. Staging places begin at the offset `base`.
    pub(super) fn new(rails: usize, base: usize, rules: &Rules) -> Placed {
        let (send, recv) = staging(base, STAGES, rules.piece_bytes);
        Placed {
            epoch: Epoch::new(rails),
            send: PlacedSend::new(send),
            send_owner: SendOwner::default(),
            recv: PlacedRecv::new(recv, rules.window),
            recv_owner: RecvOwner::default(),
        }
    }

    /// Bytes of the slab that staging needs.
    pub(super) fn staging_bytes(rules: &Rules) -> usize {
        staging_bytes(STAGES, rules.piece_bytes)
    }

    /// Whether no piece is in flight in either direction.
    pub(super) fn is_idle(&self) -> bool {
        self.send.is_idle() && self.recv.is_idle()
    }
}
