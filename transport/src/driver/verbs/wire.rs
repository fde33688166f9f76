//! Bytes that travel between two ranks over queue pairs: headers, grants and marks.
//!
//! Both ends are little-endian, and numbers travel as they lie in memory. Every message except the bare bytes
//! of a piece begins with a [`Header`]. Its cumulative counters make a lost message harmless: the next one
//! carries the same counters or later ones.
//!
//! This module knows no queue pairs. The code that uses a field checks it.

use super::checksum::{self, checksum};
use bytemuck::{Pod, Zeroable};

#[cfg(not(target_endian = "little"))]
compile_error!("the verbs driver's messages are little-endian");

/// Lanes of a communicator between two ranks. Each is a stream.
pub(super) const LANES: usize = 2;

/// Returns a number that the streams of one communicator have in common, from that of one of them.
pub(super) fn communicator_of(stream: u32) -> u32 {
    stream / LANES as u32
}

/// In [`Header::stream`]: the message belongs to no stream, and carries the counters of none.
pub(super) const NO_STREAM: u32 = u32::MAX;
/// Version of everything in this file; equal at both ends.
pub(super) const VERSION: u8 = 8;
const MAGIC: u16 = 0x7bcc;
/// Bytes of a frame, on devices that count in frames.
pub(super) const FRAME_BYTES: usize = 4096;
/// Bytes of a short slot: one frame.
pub(super) const SHORT_BYTES: usize = FRAME_BYTES;
/// Payload of a message in a short slot, at most.
pub(super) const SHORT_PAYLOAD: usize = SHORT_BYTES - size_of::<Header>();
/// Bytes of a long slot, on devices that count in frames: the fewest frames that take 8 KiB and their header.
pub(super) const LONG_BYTES: usize = 3 * FRAME_BYTES;
/// Payload of a message in a long slot, at most.
pub(super) const LONG_PAYLOAD: usize = LONG_BYTES - size_of::<Header>();
/// Payload of a message on other devices, at most.
pub(super) const SHARED_PAYLOAD: usize = 16 << 10;
/// Bytes of a slot on other devices.
pub(super) const SHARED_BYTES: usize = SHARED_PAYLOAD + size_of::<Header>();
/// Grants that fit into a message.
pub(super) const GRANTS_PER_MESSAGE: usize = SHORT_PAYLOAD / size_of::<Grant>();
/// Rails between two ranks, at most.
pub(super) const MAX_RAILS: usize = 8;

/// Kind of a message. Kinds marked with `*` are sequenced: they are numbered and repeated until acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// `*` A part of a runtime message.
    Eager = 1,
    /// `*` The beginning of a runtime message whose bytes travel in pieces.
    Head = 2,
    /// `*` A list of [`Grant`]s.
    Grants = 3,
    /// `*` A [`Mark`]: the piece has been sent and has this checksum.
    Sent = 4,
    /// `*` A [`Mark`]: the piece was granted again, but had arrived before.
    Arrived = 5,
    /// `*` The rail `value` is dead at the sender's end, in the life `flags` of that end.
    RailDown = 6,
    /// `*` The placed queues are dead at the sender's end; `value` is the next epoch.
    PlacedDown = 7,
    /// `*` The placed queues are new at the sender's end; the payload is a [`Ready`].
    PlacedReady = 8,
    /// `*` Receives are posted for the bulk messages of the stream from number `value` on.
    Placed = 9,
    /// `*` The bulk message `value` of the stream must travel in slots.
    Relay = 10,
    /// `*` The placed queue is wanted for another stream.
    Revoke = 11,
    /// `*` Bulk messages of the stream from number `value` on wait for a new [`Kind::Placed`].
    Revoked = 12,
    /// `*` The stream has ended at the sender's end before all of its messages were received.
    Ended = 13,
    /// Acknowledges, with the counters of every header and selective acknowledgements.
    Ack = 16,
    /// The queue pairs of a rail are new at the sender's end.
    Hello = 17,
    /// Asks for a [`Kind::Pong`] on the same rail.
    Ping = 18,
    /// Answers a [`Kind::Ping`].
    Pong = 19,
    /// A [`Mark`]: asks whether this piece has been sent.
    Probe = 20,
    /// A [`Mark`]: this piece has been sent.
    Reply = 21,
    /// A [`Mark`] that follows a piece on its queue pair.
    Trailer = 22,
    /// The sender closes its end.
    Goodbye = 23,
}

impl Kind {
    /// All kinds.
    const ALL: [Kind; 21] = {
        use Kind::{
            Ack, Arrived, Eager, Ended, Goodbye, Grants, Head, Hello, Ping, Placed, PlacedDown, PlacedReady,
            Pong, Probe, RailDown, Relay, Reply, Revoke, Revoked, Sent, Trailer,
        };
        [
            Eager,
            Head,
            Grants,
            Sent,
            Arrived,
            RailDown,
            PlacedDown,
            PlacedReady,
            Placed,
            Relay,
            Revoke,
            Revoked,
            Ended,
            Ack,
            Hello,
            Ping,
            Pong,
            Probe,
            Reply,
            Trailer,
            Goodbye,
        ]
    };

    /// Kinds by number.
    const BY_NUMBER: [Option<Kind>; 32] = {
        let (mut kinds, mut at) = ([None; 32], 0);
        while at < Kind::ALL.len() {
            kinds[Kind::ALL[at] as usize] = Some(Kind::ALL[at]);
            at += 1;
        }
        kinds
    };

    #[inline]
    fn from_number(number: u8) -> Option<Kind> {
        *Kind::BY_NUMBER.get(usize::from(number))?
    }

    /// Whether messages of this kind are numbered and repeated until acknowledged.
    pub(super) fn is_sequenced(self) -> bool {
        (self as u8) < Kind::Ack as u8
    }
}

/// Flag of an eager message: its sender waits until it is matched.
pub(super) const CONFIRM: u8 = 1;
/// Flag of an [`Kind::Ack`]: messages are missing, the selective acknowledgements tell which.
pub(super) const MISSING: u8 = 2;
/// Flag of an [`Kind::Ack`]: the peer must acknowledge at once.
pub(super) const ASK: u8 = 4;

/// The beginning of a message.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Header {
    /// [`message_checksum`] of the message; 0 when checksums are off.
    pub(super) crc: u32,
    pub(super) magic: u16,
    pub(super) version: u8,
    pub(super) zero: u8,
    /// Number of a sequenced message.
    pub(super) seq: u32,
    /// Number of the stream that the message and its counters belong to, or [`NO_STREAM`].
    pub(super) stream: u32,
    /// Bytes after the header.
    pub(super) len: u16,
    pub(super) flags: u8,
    pub(super) kind: u8,
    /// Life of the rail at the sender's end.
    pub(super) life: u8,
    /// Life of the rail at the receiver's end, as the sender knows it.
    pub(super) their_life: u8,
    /// Low bits of the number of the sequenced message before this one on the same queue pair.
    pub(super) previous: u16,
    /// Operation that the message belongs to.
    pub(super) digest: u64,
    /// Bytes of the whole runtime message.
    pub(super) total: u64,
    /// Number of the runtime message on its stream.
    pub(super) message: u32,
    /// Multi-purpose number: the offset of a fragment divided by [`OFFSET_UNIT`], or as its kind says.
    pub(super) value: u32,
    /// Number of the next sequenced message expected.
    pub(super) ack: u32,
    /// Eager messages that may be sent on the stream in all.
    pub(super) limit: u32,
    /// Pieces received in all: of the stream where pieces are granted, of all streams where they are placed.
    pub(super) done: u32,
    /// Bandwidth of one of the sender's rails, as `bandwidth` encodes it.
    pub(super) bandwidth: u32,
}

/// Fragments begin at multiples of this many bytes.
pub(super) const OFFSET_UNIT: usize = 64;

const _: () = assert!(size_of::<Header>() == 64 && SHORT_PAYLOAD.is_multiple_of(OFFSET_UNIT));

impl Header {
    pub(super) fn new(kind: Kind) -> Header {
        Header { magic: MAGIC, version: VERSION, kind: kind as u8, stream: NO_STREAM, ..Header::zeroed() }
    }

    /// Returns the header as it lies in memory, without its checksum, in words that a core can store one by
    /// one. A checksum that loads these words need not wait until they have left the core's store buffer.
    #[inline(always)]
    pub(super) fn words(&self) -> [u64; size_of::<Header>() / 8] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let quad = |[a, b, c, d]: [u8; 4]| u32::from_le_bytes([a, b, c, d]);
        let lives = quad([self.life, self.their_life, 0, 0]) | u32::from(self.previous) << 16;
        let [magic, more] = self.magic.to_le_bytes();
        [
            pair(0, quad([magic, more, self.version, self.zero])),
            pair(self.seq, self.stream),
            pair(u32::from(self.len) | quad([0, 0, self.flags, self.kind]), lives),
            self.digest,
            self.total,
            pair(self.message, self.value),
            pair(self.ack, self.limit),
            pair(self.done, self.bandwidth),
        ]
    }

    /// Returns the kind of a message of `bytes` bytes that begins with this header, or why it is not valid.
    /// Messages may be padded.
    #[inline]
    pub(super) fn checked(&self, bytes: usize) -> Result<Kind, &'static str> {
        if bytes < size_of::<Header>() || self.magic != MAGIC || self.zero != 0 {
            return Err("not a message of this library");
        }
        if self.version != VERSION {
            return Err("a message of another version");
        }
        let Some(kind) = Kind::from_number(self.kind) else { return Err("a message of no known kind") };
        if usize::from(self.len) > bytes - size_of::<Header>() {
            return Err("a message that is shorter than its header says");
        }
        Ok(kind)
    }
}

/// Bytes of a long message that have a checksum of their own: one line of a cache, so that the rest begins at
/// a line.
pub(super) const HEAD_BYTES: usize = 64;
/// Length of a message from which its rest has a checksum of its own, which a copy computes.
pub(super) const SPLIT_BYTES: usize = HEAD_BYTES + checksum::LEAST_HASHED_BYTES;

/// Bytes in front of those that a checksum covers: itself, and what [`Header::checked`] compares.
const UNSUMMED_BYTES: usize = 8;

/// Returns the checksum of a whole message, without padding: that of all bytes after [`UNSUMMED_BYTES`],
/// where a whole word of the header begins.
#[inline]
pub(super) fn message_checksum(message: &[u8]) -> u32 {
    if message.len() < SPLIT_BYTES {
        return checksum(&message[UNSUMMED_BYTES..]);
    }
    let (head, rest) = message.split_at(HEAD_BYTES);
    split_checksum(head, checksum(rest))
}

/// Returns the checksum of a message of at least [`SPLIT_BYTES`] from its first [`HEAD_BYTES`] and the
/// checksum of its rest.
#[inline]
pub(super) fn split_checksum(head: &[u8], rest: u32) -> u32 {
    checksum::join(checksum(&head[UNSUMMED_BYTES..]), rest)
}

/// Permission to write a piece to a place of the granting rank's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Grant {
    /// Address in the granting rank's memory.
    pub(super) address: u64,
    /// Operation that the piece belongs to.
    pub(super) digest: u64,
    /// Offset of the piece in its message.
    pub(super) offset: u64,
    /// Bytes of the whole message.
    pub(super) total: u64,
    /// Number of the piece on its stream.
    pub(super) piece: u32,
    /// Bytes of the piece.
    pub(super) len: u32,
    /// Key of the memory, for the granted rail.
    pub(super) rkey: u32,
    /// Number of the stream.
    pub(super) stream: u32,
    /// Immediate data of the write, by which the granting rank knows the piece; see [`immediate`].
    pub(super) immediate: u32,
    pub(super) rail: u8,
    /// Number of earlier grants of the piece; wraps.
    pub(super) attempt: u8,
    /// Life of the rail at the granting end. The grant is void in any other.
    pub(super) life: u8,
    pub(super) zero: u8,
}

const _: () = assert!(size_of::<Grant>() == 56);

/// Name of a piece, with its checksum where that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Mark {
    pub(super) piece: u32,
    pub(super) crc: u32,
    /// Number of the stream.
    pub(super) stream: u32,
    /// Attempt of the grant, or epoch of the placed queues.
    pub(super) attempt: u32,
}

/// Payload of an [`Kind::Ack`]: selective acknowledgements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Selective {
    /// Bit `i`: the message `ack + 1 + i` has been received.
    pub(super) received: [u64; 2],
}

/// Payload of a [`Kind::PlacedReady`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Ready {
    pub(super) epoch: u32,
    /// Number of the first piece that the sender of this message has not received.
    pub(super) first: u32,
    /// Bit `i`: rail `i` has a new placed queue.
    pub(super) rails: u32,
    /// Rail by which this message is sent, behind all earlier messages; [`ANY_RAIL`] if there is none.
    pub(super) via: u32,
    /// Nanoseconds for a MiB by each rail in the sender's direction; 0 where that is unknown.
    pub(super) costs: [u32; MAX_RAILS],
}

/// In [`Ready`]: no rail has a new placed queue, so any rail may carry the message.
pub(super) const ANY_RAIL: u32 = u32::MAX;

/// Streams to a peer that may be open at a time where pieces are granted.
pub(super) const MAX_STREAMS: usize = 1 << (32 - PIECE_BITS);
/// Bits of immediate data that hold the low bits of a piece's number.
const PIECE_BITS: u32 = 20;

/// Returns a piece as 32 bits of immediate data: the granting rank's index of the stream, and the low bits of
/// the piece's number.
pub(super) fn immediate(stream: usize, piece: u32) -> u32 {
    (stream as u32) << PIECE_BITS | piece & ((1 << PIECE_BITS) - 1)
}

/// Returns the index of the stream that immediate data names, and the piece nearest to `near(stream)` with
/// these low bits; `None` if `near` knows no such stream.
pub(super) fn piece_of(immediate: u32, near: impl Fn(usize) -> Option<u32>) -> Option<(usize, u32)> {
    let stream = (immediate >> PIECE_BITS) as usize;
    let near = near(stream)?;
    // The difference of the low bits, with its sign.
    let ahead = (immediate.wrapping_sub(near) << (32 - PIECE_BITS)) as i32 >> (32 - PIECE_BITS);
    Some((stream, near.wrapping_add(ahead as u32)))
}

/// Returns the number nearest to `near` whose low 16 bits are `low`.
pub(super) fn nearest(low: u16, near: u32) -> u32 {
    near.wrapping_add(low.wrapping_sub(near as u16) as i16 as u32)
}

/// Whether `a` is before `b`, for numbers that wrap.
#[inline]
pub(super) const fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediate_data_names_the_piece_nearest_to_the_expected_one() {
        for near in [0, 5, 0x000f_fffe, 0x1000_0001, u32::MAX - 1] {
            for ahead in [0u32, 1, 63, u32::MAX, u32::MAX - 62] {
                for stream in [0, 1, MAX_STREAMS - 1] {
                    let piece = near.wrapping_add(ahead);
                    let near = |index| (index == stream).then_some(near);
                    assert_eq!(piece_of(immediate(stream, piece), near), Some((stream, piece)));
                }
            }
        }
        assert_eq!(piece_of(0x7000_0000, |_| None), None);
    }

    #[test]
    fn low_bits_name_the_nearest_number() {
        for near in [0, 7, 0xffff, 0x1_0003, u32::MAX] {
            for distance in [0u32, 1, 100, u32::MAX, u32::MAX - 99] {
                let number = near.wrapping_add(distance);
                assert_eq!(nearest(number as u16, near), number);
            }
        }
    }

    #[test]
    fn foreign_and_broken_headers_are_refused() {
        let good = Header { len: 8, ..Header::new(Kind::Eager) };
        let bytes = size_of::<Header>() + 8;
        assert_eq!(good.checked(bytes), Ok(Kind::Eager));
        assert_eq!(good.checked(bytes + 100), Ok(Kind::Eager), "padded");
        assert!(good.checked(bytes - 1).is_err() && good.checked(40).is_err());
        for broken in [
            Header { magic: 1, ..good },
            Header { version: 9, ..good },
            Header { kind: 0, ..good },
            Header { kind: 14, ..good },
        ] {
            broken.checked(bytes).expect_err("broken");
        }
    }

    #[test]
    fn words_of_a_header_are_its_bytes_without_its_checksum() {
        let bytes: [u8; size_of::<Header>()] = std::array::from_fn(|at| if at < 4 { 0 } else { at as u8 });
        let header: Header = bytemuck::cast(bytes);
        assert_eq!(bytemuck::bytes_of(&Header { crc: 7, ..header }.words()), bytes);
    }

    #[test]
    fn a_wrong_bit_anywhere_is_found() {
        let header = Header { len: 4, seq: 7, ..Header::new(Kind::Eager) };
        for payload in [4, 1055, 1056, 4000] {
            let message = |header: Header| [bytemuck::bytes_of(&header), &vec![7; payload]].concat();
            let right = message_checksum(&message(header));
            let with_crc = message(Header { crc: 99, ..header });
            assert_eq!(right, message_checksum(&with_crc), "the checksum does not cover itself");
            for at in 4..with_crc.len() {
                let mut wrong = with_crc.clone();
                wrong[at] ^= 1;
                let header: Header = bytemuck::pod_read_unaligned(&wrong[..size_of::<Header>()]);
                let is_refused = header.checked(wrong.len()).is_err();
                let is_found = is_refused || right != message_checksum(&wrong);
                assert!(is_found, "byte {at} of a payload of {payload}");
            }
        }
    }

    #[test]
    fn numbers_wrap() {
        assert!(is_before(u32::MAX, 0) && is_before(0, 1) && !is_before(1, 0) && !is_before(3, 3));
    }
}
