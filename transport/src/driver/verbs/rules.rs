//! Rules of the protocol that are equal on all ranks and for all peers.
//!
//! They follow from the configuration and from the least capable device of the job (`endpoint::setup`).

use super::{slots::Queues, wire::FRAME_BYTES};
use crate::verbs::Access;
use std::time::Duration;

/// Bytes of a piece from which pieces cost little more than their bytes.
const LEAST_PIECE_BYTES: usize = 64 << 10;

/// Rules that are the same for all peers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Bytes of a piece, at most.
    pub(super) piece_bytes: usize,
    /// Pieces that may be in flight in a direction: of a stream where they are granted.
    pub(super) window: usize,
    /// Whether messages and pieces carry checksums.
    pub(super) checksum: bool,
    /// Whether sent messages arrive, or the queue pair fails.
    pub(super) reliable: bool,
    /// Whether pieces are written into the peer's memory.
    pub(super) one_sided: bool,
    /// Whether rails have a queue pair for pieces that meet receives.
    pub(super) has_placed: bool,
    /// Queue pairs of messages with headers.
    pub(super) queues: Queues,
    /// Time that a peer without a rail is waited for.
    pub(super) cable_wait: Duration,
}

impl Rules {
    /// Whether a completion of a piece tells that it has arrived for good, so that nothing else need tell.
    pub(super) fn completions_confirm(&self) -> bool {
        self.reliable && self.one_sided && !self.checksum
    }

    /// Whether bulk messages travel in pieces.
    #[inline]
    pub(super) fn has_pieces(&self) -> bool {
        self.one_sided || self.has_placed
    }

    /// Bytes of the pieces of a bulk message, but for the last one.
    ///
    /// Pieces of a shorter message are shorter, so that the copy, the checksum and the reduction of one
    /// overlap with the transfer of the next. Each piece takes about 2 us of both ends besides: four to a
    /// message instead of eight took 0.8 to 0.9 of the time of a `reduce_scatter` of 1 and 2 MiB over a cable
    /// of 5 us and 75 Gb/s, 0.85 to 0.9 of an `all_reduce`, and 0.9 to 1.0 of an `all_gather`.
    #[inline]
    pub(super) fn piece_len(&self, total: usize) -> usize {
        let quarter = (total / 4).next_multiple_of(FRAME_BYTES);
        self.piece_bytes.min(quarter.max(LEAST_PIECE_BYTES))
    }

    /// Whether the sender of a bulk message of `total` bytes returns to its caller after each piece that it
    /// has copied, so that received pieces are reduced while they are in the cache.
    ///
    /// Measured on a cable of 5 us and 75 Gb/s, all_reduce by `rsag_mesh` from malloc'ed memory: messages of
    /// 512 KiB to 32 MiB take 5 to 14 % less time, those of five pieces and fewer up to 20 % more.
    #[inline]
    pub(super) fn yields_after_piece(&self, total: usize) -> bool {
        total > 5 * self.piece_len(total)
    }

    /// Access that queue pairs and regions need.
    pub(super) fn access(&self) -> Access {
        if self.one_sided { Access::Remote } else { Access::Local }
    }
}
