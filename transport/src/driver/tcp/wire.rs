//! Wire format of a connection: headers and payloads, one after the other.
//!
//! ```text
//! byte  0..8    digest of the operation
//!       8..14   bytes of the whole message
//!       14      bits 0..6: number of the part; bit 6: the sender waits for a match acknowledgement
//!       15      marker byte, which detects a stream out of step
//! ```
//!
//! All numbers are little-endian. The part's payload follows the header. Both ends compute the length of the
//! payload from the length of the message ([`Striping`]).
//!
//! In plain streams zeros lie between the header of a long message's part and its payload ([`Head`]).

/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 16;

/// Maximum bytes of a header and the zeros behind it.
pub(super) const MAX_HEAD_BYTES: usize = 128;

/// Bytes of the shortest message with zeros behind its headers.
const MIN_PADDED_BYTES: u64 = 32 << 10;

/// Maximum bytes of a message.
pub(super) const MAX_MESSAGE_BYTES: u64 = (1 << 48) - 1;

/// Alignment of parts within a message, in bytes, so that no element is split.
pub(super) const PART_ALIGNMENT: usize = 64;

const MARKER: u8 = 0xc5;
const MATCH_ACK: u8 = 0x40;

/// Header of one part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) digest: u64,
    /// Bytes of the whole message.
    pub(super) len: u64,
    pub(super) part: u8,
    /// Whether the sender waits for an acknowledgement that the message was matched.
    pub(super) match_ack: bool,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        debug_assert!(self.len <= MAX_MESSAGE_BYTES && self.part < MATCH_ACK, "{self:?}");
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.digest.to_le_bytes());
        bytes[8..].copy_from_slice(&self.len.to_le_bytes());
        bytes[14] = self.part | if self.match_ack { MATCH_ACK } else { 0 };
        bytes[15] = MARKER;
        bytes
    }

    /// Parses a header; returns `None` if the bytes are not valid.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        if bytes[15] != MARKER || bytes[14] & 0x80 != 0 {
            return None;
        }
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Some(Header {
            digest: word(0),
            len: word(8) & MAX_MESSAGE_BYTES,
            part: bytes[14] & (MATCH_ACK - 1),
            match_ack: bytes[14] & MATCH_ACK != 0,
        })
    }
}

/// A header as it goes into a plain stream: with zeros behind it if the message is long.
///
/// Systems copy what is sent into pages of their own, from the start of a page when earlier data has been
/// received. A payload right behind its header then lies 16 bytes farther into its page there than an aligned
/// array does in its own. `rep movsb`, by which Linux copies, is slow where this distance is 1 to 63 bytes.
/// Half a round trip of 256 KiB from aligned memory, on two cores of a Zen 5, in us, without the zeros and
/// with them: 54 and 30 without a common cache, 22 and 20 with one. Messages of up to 48 KiB take as long at
/// either distance. 128 bytes suit arrays at the start of a page, and 16 bytes behind it, where `malloc` puts
/// long ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    bytes: [u8; MAX_HEAD_BYTES],
    len: usize,
}

impl Head {
    /// A head of no bytes.
    pub(super) const EMPTY: Head = Head { bytes: [0; MAX_HEAD_BYTES], len: 0 };

    /// Makes this the head of a part.
    #[inline]
    pub(super) fn set(&mut self, header: &Header) {
        self.bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
        self.len = HEADER_BYTES + Head::padding(header.len);
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Bytes between the headers of a message of `len` bytes and their payloads.
    #[inline]
    pub(super) fn padding(len: u64) -> usize {
        if len < MIN_PADDED_BYTES { 0 } else { MAX_HEAD_BYTES - HEADER_BYTES }
    }
}

/// Distribution of messages over the connections of a lane; the same at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Striping {
    /// Number of connections.
    pub(super) sockets: usize,
    /// Minimum bytes of a part, except for the last one.
    pub(super) min_part_bytes: usize,
}

impl Striping {
    /// Number of parts of a message of `len` bytes, at least one.
    #[inline]
    pub(super) fn count(&self, len: usize) -> usize {
        if self.sockets == 1 { 1 } else { (len / self.min_part_bytes).clamp(1, self.sockets) }
    }

    /// Offset and length of a part in bytes.
    #[inline]
    pub(super) fn range(&self, len: usize, part: usize) -> (usize, usize) {
        let count = self.count(len);
        if count == 1 {
            return (0, len);
        }
        let share = (len / count).next_multiple_of(PART_ALIGNMENT);
        let at = |part: usize| if part == count { len } else { (share * part).min(len) };
        (at(part), at(part + 1) - at(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_survive_and_other_bytes_are_none() {
        for header in [
            Header { digest: 0, len: 0, part: 0, match_ack: false },
            Header { digest: u64::MAX, len: MAX_MESSAGE_BYTES, part: 63, match_ack: true },
            Header { digest: 1 << 63, len: 1 << 40, part: 15, match_ack: false },
        ] {
            assert_eq!(Header::decode(&header.encode()), Some(header));
        }
        assert_eq!(Header::decode(&[0; 16]), None);
        assert_eq!(Header::decode(b"GET / HTTP/1.1\r\n"), None);
        let mut bytes = Header { digest: 5, len: 5, part: 0, match_ack: false }.encode();
        bytes[14] = 0x80;
        assert_eq!(Header::decode(&bytes), None);
    }

    #[test]
    fn parts_cover_a_message_without_gaps_and_cut_no_element() {
        for sockets in [1, 2, 3, 16] {
            let parts = Striping { sockets, min_part_bytes: 1024 };
            for len in (0..5000).chain([16 * 1024, 100_001, (1 << 20) + 63]) {
                let count = parts.count(len);
                assert!(count >= 1 && count <= sockets);
                let mut next = 0;
                for part in 0..count {
                    let (at, bytes) = parts.range(len, part);
                    assert_eq!(at, next, "{len} bytes on {sockets}");
                    assert!(at % PART_ALIGNMENT == 0 || part == 0);
                    next = at + bytes;
                }
                assert_eq!(next, len, "{len} bytes on {sockets}");
            }
        }
    }
}
