//! Staging places: slab memory for pieces whose own memory is not registered with the devices.
//!
//! A sender copies a piece into a free place, which the piece holds until it has arrived. A receiver derives
//! the place of a piece from its number, and uses it once the piece that held it before has been handed over.
//!
//! This module copies nothing: it deals in offsets.

/// A piece that has arrived, for the runtime to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArrivedPiece {
    /// Offset in its message.
    pub(super) offset: usize,
    pub(super) len: usize,
    /// Offset of its bytes in the slab.
    pub(super) at: usize,
    /// Whether it lies in a staging place, and not in its destination.
    pub(super) is_staged: bool,
}

/// Bytes of the slab that staging places need, `count` in each direction.
pub(super) fn staging_bytes(count: u32, piece_bytes: usize) -> usize {
    2 * count as usize * piece_bytes
}

/// Staging places of both directions, `count` in each, from the offset `base` on.
pub(super) fn staging(base: usize, count: u32, piece_bytes: usize) -> (SendStages, RecvStages) {
    let send = SendStages { free: (0..count).collect(), base, bytes: piece_bytes };
    let recv = RecvStages { base: base + count as usize * piece_bytes, count, bytes: piece_bytes };
    (send, recv)
}

/// No staging places, for either direction.
pub(super) fn no_staging() -> (SendStages, RecvStages) {
    (SendStages { free: Vec::new(), base: 0, bytes: 0 }, RecvStages { base: 0, count: 0, bytes: 0 })
}

/// Staging places of a sender.
#[derive(Clone, Debug, Hash)]
pub(super) struct SendStages {
    free: Vec<u32>,
    base: usize,
    bytes: usize,
}

impl SendStages {
    /// Takes a free place; returns its number and its offset.
    pub(super) fn take(&mut self) -> Option<(u32, usize)> {
        let stage = self.free.pop()?;
        Some((stage, self.base + stage as usize * self.bytes))
    }

    /// Returns the place of a piece, if it held one.
    #[inline]
    pub(super) fn put_back(&mut self, stage: Option<u32>) {
        self.free.extend(stage);
    }
}

/// Staging places of a receiver.
#[derive(Clone, Debug, Hash)]
pub(super) struct RecvStages {
    base: usize,
    count: u32,
    bytes: usize,
}

impl RecvStages {
    /// Offset of the place of piece `number`; `None` while an earlier piece, from number `first` on, holds
    /// it.
    pub(super) fn place(&self, number: u32, first: u32) -> Option<usize> {
        let is_free = number.wrapping_sub(first) < self.count;
        is_free.then(|| self.base + (number % self.count) as usize * self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: u32 = 8;

    #[test]
    fn places_of_both_directions_do_not_overlap() {
        let (mut send, recv) = staging(1000, COUNT, 10);
        let mut places: Vec<usize> = std::iter::from_fn(|| send.take()).map(|(_, at)| at).collect();
        places.extend((0..COUNT).filter_map(|number| recv.place(number, 0)));
        places.sort_unstable();
        let all: Vec<usize> = (0..2 * COUNT as usize).map(|place| 1000 + place * 10).collect();
        assert_eq!(places, all);
        assert_eq!(all.len() * 10, staging_bytes(COUNT, 10));
    }

    #[test]
    fn a_place_is_used_again_when_its_piece_is_done() {
        let (mut send, recv) = staging(0, COUNT, 10);
        let taken: Vec<u32> = std::iter::from_fn(|| send.take()).map(|(stage, _)| stage).collect();
        assert_eq!(send.take(), None);
        send.put_back(None);
        assert_eq!(send.take(), None);
        send.put_back(Some(taken[3]));
        assert_eq!(send.take().map(|(stage, _)| stage), Some(taken[3]));
        assert_eq!((recv.place(COUNT, 0), recv.place(COUNT, 1)), (None, recv.place(0, 0)));
    }
}
