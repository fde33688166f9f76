//! What travels between two ranks over queue pairs: headers, grants, and the marks behind data.
//!
//! Both ends are little-endian; the numbers are those of the peer's memory as they are. Every message that is not bare
//! data begins with a [`Header`], whose cumulative counters make a lost message harmless: the next one says the same and
//! more.
//!
//! Nothing here knows queue pairs. What is read from a message is checked by who uses it.

use bytemuck::{Pod, Zeroable};

#[cfg(not(target_endian = "little"))]
compile_error!("the verbs driver's messages are little-endian");

/// Lanes between two ranks.
pub(super) const LANES: usize = 2;
/// The version of everything in this file. Equal at both ends.
pub(super) const VERSION: u8 = 4;
const MAGIC: u16 = 0x7bcc;
/// Bytes of a slot: a message with a header fits in one, and one is a frame of a device that counts in frames.
pub(super) const SLOT_BYTES: usize = 4096;
/// Bytes that may follow a header.
pub(super) const PAYLOAD_BYTES: usize = SLOT_BYTES - size_of::<Header>();
/// Grants that fit in a message.
pub(super) const GRANTS_PER_MESSAGE: usize = PAYLOAD_BYTES / size_of::<Grant>();

/// What a message is. `*` numbered and repeated until acknowledged; the others may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// `*` The payload is a message of the runtime.
    Eager = 1,
    /// `*` The payload is a list of [`Grant`]s.
    Grants = 2,
    /// `*` The payload is a [`Mark`]: that piece has been sent, and has that checksum.
    Sent = 3,
    /// `*` The rail of that number is not to be used: its queue pairs here are dead.
    RailDown = 4,
    /// `*` The rail of that number can be used again: its queue pairs here are new.
    RailReady = 5,
    /// Says nothing but what every header says.
    Ack = 6,
    /// The payload is a [`Mark`]: has that piece been sent?
    Probe = 7,
    /// The payload is a [`Mark`]: it has, on this rail, before this message.
    Reply = 8,
    /// Follows a piece on its own queue pair; the payload is its [`Mark`].
    Trailer = 9,
    /// The sender is closing; it neither needs nor gives anything any more.
    Goodbye = 10,
    /// `*` The payload is a [`Mark`]: that piece, which was granted again, had arrived before.
    Arrived = 11,
    /// `*` The payload is a [`Mark`]: pieces of its lane from its number on need no grant.
    Unsolicited = 12,
}

impl Kind {
    fn of(number: u8) -> Option<Kind> {
        use Kind::{
            Ack, Arrived, Eager, Goodbye, Grants, Probe, RailDown, RailReady, Reply, Sent, Trailer,
            Unsolicited,
        };
        [Eager, Grants, Sent, RailDown, RailReady, Ack, Probe, Reply, Trailer, Goodbye, Arrived, Unsolicited]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }
}

/// The counters that every message carries. They only grow, and wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Tally {
    /// The number of the next message expected: all before it have been received.
    pub(super) ack: u32,
    /// Per lane: so many eager messages may be sent in all.
    pub(super) eager_limits: [u32; LANES],
    /// Per lane: so many pieces have been received in all.
    pub(super) pieces_done: [u32; LANES],
    /// Per lane: so many pieces have been handed over in all; their landing places are free.
    pub(super) pieces_taken: [u32; LANES],
}

/// Flag of an eager message: its sender waits until it is matched.
pub(super) const CONFIRM: u8 = 1;
/// Flag of an [`Kind::Ack`]: say what you have received, for an earlier word of it may have been lost.
pub(super) const ASK: u8 = 4;
/// Flag: a message is missing, repeat from `ack` on.
pub(super) const MISSING: u8 = 2;

/// What a message begins with.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Header {
    /// [`checksum`] of everything that follows, payload included; 0 when checksums are off.
    pub(super) crc: u32,
    pub(super) magic: u16,
    pub(super) version: u8,
    pub(super) kind: u8,
    pub(super) lane: u8,
    pub(super) flags: u8,
    pub(super) rail: u8,
    pub(super) zero: u8,
    /// The number of a sequenced message.
    pub(super) seq: u32,
    /// Bytes after the header.
    pub(super) len: u32,
    pub(super) tally: Tally,
    pub(super) digest: u64,
    /// The number of an eager message among all messages of its lane.
    pub(super) message: u32,
    /// How fast a rail carries what the sender sends; see `pace`.
    pub(super) pace: u32,
}

const _: () = assert!(size_of::<Header>() == 64 && PAYLOAD_BYTES == 4032);

impl Header {
    pub(super) fn new(kind: Kind, tally: Tally) -> Header {
        Header { magic: MAGIC, version: VERSION, kind: kind as u8, tally, ..Header::zeroed() }
    }

    /// The header of a message of that many bytes, if it is one of ours and of that length.
    #[inline]
    pub(super) fn checked(self, bytes: usize) -> Result<(Header, Kind), &'static str> {
        if bytes < size_of::<Header>() || self.magic != MAGIC {
            return Err("not a message of this library");
        }
        if self.version != VERSION {
            return Err("a message of another version");
        }
        let Some(kind) = Kind::of(self.kind) else { return Err("a message of no known kind") };
        if self.len as usize != bytes - size_of::<Header>() {
            return Err("a message of another length than it says");
        }
        if usize::from(self.lane) >= LANES {
            return Err("a message for a lane that is not there");
        }
        Ok((self, kind))
    }
}

/// Returns the checksum that the header of a whole message holds: CRC32C of all bytes after the checksum.
#[inline]
pub(super) fn message_checksum(message: &[u8]) -> u32 {
    checksum(&message[size_of::<u32>()..])
}

/// Returns the CRC32C (CRC-32/ISCSI) of some bytes.
#[inline]
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// "You may put that piece there." A receive for it is posted, where the device needs one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Grant {
    /// Where to, in the granting rank's memory.
    pub(super) address: u64,
    /// Names the operation that it is for.
    pub(super) digest: u64,
    /// Where the piece begins in its message.
    pub(super) offset: u64,
    /// Bytes of the whole message.
    pub(super) total: u64,
    /// The number of the piece on its lane.
    pub(super) piece: u32,
    /// Bytes of the piece.
    pub(super) len: u32,
    /// The key of the memory, for the granted rail.
    pub(super) rkey: u32,
    pub(super) lane: u8,
    pub(super) rail: u8,
    /// How often the piece has been granted before.
    pub(super) attempt: u16,
}

const _: () = assert!(size_of::<Grant>() == 48);

/// Names a piece, with its checksum where that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Mark {
    pub(super) piece: u32,
    pub(super) crc: u32,
    pub(super) lane: u32,
    /// Of the grant that is asked or told about.
    pub(super) attempt: u32,
}

/// A piece as 32 bits of immediate data: its lane, and the low bits of its number.
pub(super) fn immediate(lane: usize, piece: u32) -> u32 {
    (lane as u32) << 28 | piece & 0x0fff_ffff
}

/// The lane that immediate data names, and the piece nearest to `near` with those low bits.
pub(super) fn piece_of(immediate: u32, near: impl Fn(usize) -> u32) -> Option<(usize, u32)> {
    let lane = (immediate >> 28) as usize;
    if lane >= LANES {
        return None;
    }
    let near = near(lane);
    // The difference of the low 28 bits, with its sign.
    let ahead = (immediate.wrapping_sub(near) << 4) as i32 >> 4;
    Some((lane, near.wrapping_add(ahead as u32)))
}

/// Is `a` before `b`, of numbers that wrap?
#[inline]
pub(super) const fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediate_data_names_the_piece_nearest_to_the_expected_one() {
        for near in [0, 5, 0x0fff_fffe, 0x1000_0001, u32::MAX - 1] {
            for ahead in [0u32, 1, 63, u32::MAX, u32::MAX - 62] {
                for lane in 0..LANES {
                    let piece = near.wrapping_add(ahead);
                    assert_eq!(piece_of(immediate(lane, piece), |_| near), Some((lane, piece)));
                }
            }
        }
        assert_eq!(piece_of(0x7000_0000, |_| 0), None);
    }

    #[test]
    fn foreign_and_broken_headers_are_refused() {
        let good = Header { len: 8, ..Header::new(Kind::Eager, Tally::default()) };
        let bytes = size_of::<Header>() + 8;
        assert_eq!(good.checked(bytes).expect("right").1, Kind::Eager);
        assert!(good.checked(bytes - 1).is_err() && good.checked(40).is_err());
        for broken in [
            Header { magic: 1, ..good },
            Header { version: 9, ..good },
            Header { kind: 0, ..good },
            Header { kind: 13, ..good },
            Header { lane: 2, ..good },
        ] {
            broken.checked(bytes).expect_err("broken");
        }
    }

    #[test]
    fn a_wrong_bit_anywhere_changes_the_checksum() {
        let header = Header { len: 4, seq: 7, ..Header::new(Kind::Eager, Tally::default()) };
        let message = |header: Header| [bytemuck::bytes_of(&header), b"abcd"].concat();
        let right = message_checksum(&message(header));
        let with_crc = message(Header { crc: 99, ..header });
        assert_eq!(right, message_checksum(&with_crc), "the checksum does not cover itself");
        for at in 4..with_crc.len() {
            let mut wrong = with_crc.clone();
            wrong[at] ^= 1;
            assert_ne!(right, message_checksum(&wrong), "byte {at}");
        }
    }

    #[test]
    fn numbers_wrap() {
        assert!(is_before(u32::MAX, 0) && is_before(0, 1) && !is_before(1, 0) && !is_before(3, 3));
    }
}
