//! Landing places: where the pieces of shorter messages are written that no grant has been given for.
//!
//! Each end has [`LANDINGS`] places per lane and tells the other their addresses as they are connected. Piece `n` of a
//! lane goes to place `n % LANDINGS` and may be written once the piece [`LANDINGS`] before it has been handed over, of
//! which every message tells. So a piece needs no grant and travels at once. A [`PieceHead`] before the bytes names
//! the piece and its operation; the receiver compares it before it hands anything over.
//!
//! A piece may come before its message is announced; [`Early`] notes that. What becomes of pieces is in `incoming`.

use super::wire::{SLOT_BYTES, checksum};
use bytemuck::{Pod, Zeroable};

/// Landing places of a lane, in each direction.
pub(super) const LANDINGS: u32 = 8;
/// Bytes before a piece in its place, for the head.
pub(super) const HEAD_BYTES: usize = 64;
/// Longest message whose pieces land so; longer ones go straight to their destination.
pub(super) const LANDED_BYTES: u64 = 64 << 10;

/// Returns the bytes of a place for pieces of this length: both parts begin at a line of the cache.
pub(super) const fn place_bytes(piece_bytes: usize) -> usize {
    piece_bytes + SLOT_BYTES
}

/// Returns the offset of the bytes of a piece from the first place of its lane.
pub(super) fn offset_of(piece: u32, piece_bytes: usize) -> usize {
    (piece % LANDINGS) as usize * place_bytes(piece_bytes) + HEAD_BYTES
}

/// A description of a piece, before its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct PieceHead {
    /// The operation that the message belongs to.
    pub(super) digest: u64,
    /// Bytes of the message.
    pub(super) total: u64,
    /// The number of the piece on its lane.
    pub(super) piece: u32,
    /// Bytes of the piece.
    pub(super) len: u32,
    /// Checksum of the bytes and of this head with 0 here; 0 when checksums are off.
    pub(super) crc: u32,
    pub(super) zero: u32,
}

const _: () = assert!(size_of::<PieceHead>() <= HEAD_BYTES);

impl PieceHead {
    /// Returns the head with the checksum of itself and of the piece, whose own checksum is `bytes_crc`.
    pub(super) fn with_checksum(self, bytes_crc: u32) -> PieceHead {
        let blank = PieceHead { crc: 0, ..self };
        PieceHead { crc: checksum(bytemuck::bytes_of(&blank)) ^ bytes_crc, ..self }
    }
}

/// Pieces that have come before their messages were announced, by number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Early(u32);

impl Early {
    pub(super) fn note(&mut self, piece: u32) {
        self.0 |= 1 << (piece % LANDINGS);
    }

    /// Whether a piece has come early; forgets it.
    pub(super) fn take(&mut self, piece: u32) -> bool {
        let bit = 1 << (piece % LANDINGS);
        let is_noted = self.0 & bit != 0;
        self.0 &= !bit;
        is_noted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_following_pieces_do_not_overlap() {
        let at: Vec<usize> = (0..LANDINGS).map(|piece| offset_of(piece, 1000)).collect();
        assert!(at.windows(2).all(|pair| pair[0] + 1000 + HEAD_BYTES <= pair[1]), "{at:?}");
        assert_eq!(offset_of(3, 1000), offset_of(3 + LANDINGS, 1000));
    }

    #[test]
    fn a_wrong_bit_in_the_head_changes_its_checksum() {
        let head = PieceHead { digest: 1, total: 2, piece: 3, len: 4, crc: 0, zero: 0 }.with_checksum(77);
        for wrong in [
            PieceHead { digest: 3, ..head },
            PieceHead { total: 3, ..head },
            PieceHead { piece: 2, ..head },
            PieceHead { len: 5, ..head },
        ] {
            assert_ne!(wrong.with_checksum(77).crc, head.crc);
        }
        assert_ne!(head.with_checksum(78).crc, head.crc);
        assert_eq!(head.with_checksum(77), head);
    }

    #[test]
    fn an_early_piece_is_taken_once() {
        let mut early = Early::default();
        early.note(13);
        assert!(!early.take(12) && early.take(13) && !early.take(13));
    }
}
