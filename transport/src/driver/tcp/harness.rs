//! Receiving without a socket, for tests and the fuzz target `tcp_frames` under `fuzz/`.
//!
//! Hostile bytes arrive in portions that a script cuts. The script determines the bytes that a peer sends. A
//! second, minimal reader computes the expected result. Both readers must agree on every message up to the
//! first invalid one, and nothing may be written outside of the destination.

use super::{
    encrypted::{EncryptedIncoming, MAX_RECORD_BYTES},
    incoming::{Incoming, PlainIncoming},
    receive::{ExpectedPart, Polled, RecvTarget, ReduceBuffer},
    socket::{ReadResult, Source},
    wire::{HEADER_BYTES, Head, Header, PART_ALIGNMENT},
};
use crate::{
    Sink,
    memory::{Span, SpanMut},
    secure::{Opener, Sealer},
};
use std::{cell::Cell, io};

/// Lengths of messages, around the limits at which the receiving code path changes.
const LENS: [usize; 16] =
    [0, 1, 8, 64, 65, 1000, 1024, 1025, 4096, 5000, 65_535, 65_536, 65_537, 131_072, 131_080, 200_000];
/// Number of expected messages.
const MESSAGES: usize = 4;
/// Bytes around the destination of a message, to detect stray writes.
const MARGIN: usize = 64;

/// One piece of the bytes that a peer sends.
enum Piece {
    /// Raw bytes.
    Raw(Vec<u8>),
    /// An encrypted record: the header bit of its prefix, and the plaintext.
    Record(bool, Vec<u8>),
}

/// Unread rest of a script.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, remainder) = self.0.split_first()?;
        self.0 = remainder;
        Some(*first)
    }

    fn number(&mut self) -> usize {
        usize::from(self.byte().unwrap_or(0)) | usize::from(self.byte().unwrap_or(0)) << 8
    }

    fn literal(&mut self) -> &'a [u8] {
        let len = usize::from(self.byte().unwrap_or(0)).min(self.0.len());
        let (literal, remainder) = self.0.split_at(len);
        self.0 = remainder;
        literal
    }

    /// Builds the pieces that the peer sends.
    ///
    /// The first byte of a piece selects it: 0 for raw bytes of the script, 1 for the next message's header
    /// and some payload, 2 for payload, 3 for a header from the script. Its highest bit flips the header bit
    /// of the record's prefix.
    fn pieces(&mut self, lens: &[usize; MESSAGES], encrypted: bool) -> Vec<Piece> {
        let (mut pieces, mut headers) = (Vec::new(), 0);
        while let Some(kind) = self.byte() {
            let mut bytes = Vec::new();
            match kind & 3 {
                0 => bytes.extend(self.literal()),
                1 => {
                    let header = header_of(headers % MESSAGES, lens[headers % MESSAGES]);
                    bytes.extend(header.encode());
                    if !encrypted {
                        bytes.resize(HEADER_BYTES + Head::padding(header.len), 0);
                    }
                    headers += 1;
                    bytes.extend(payload(self.number()));
                }
                2 => bytes.extend(payload(self.number() + 1)),
                _ => {
                    let mut own = [0; HEADER_BYTES];
                    let literal = self.literal();
                    let len = literal.len().min(HEADER_BYTES);
                    own[..len].copy_from_slice(&literal[..len]);
                    bytes.extend(own);
                }
            }
            let has_header = (kind & 1 == 1) ^ (kind & 0x80 != 0);
            pieces.push(match kind & 0x40 == 0 && encrypted {
                true => Piece::Record(has_header, bytes),
                false => Piece::Raw(bytes),
            });
        }
        pieces
    }
}

fn payload(len: usize) -> impl Iterator<Item = u8> {
    (0..len).map(|at| ((at * 31) >> 3) as u8)
}

fn digest_of(message: usize) -> u64 {
    1000 + message as u64
}

fn header_of(message: usize, len: usize) -> Header {
    Header { digest: digest_of(message), len: len as u64, part: 0, match_ack: message % 2 == 1 }
}

/// Whether the bytes are the header of an expected message.
fn is_header_of(bytes: &[u8], message: usize, len: usize) -> bool {
    let header = bytes.first_chunk().and_then(Header::decode);
    header
        .is_some_and(|header| (header.digest, header.len, header.part) == (digest_of(message), len as u64, 0))
}

/// Expected result for plain bytes: the payloads of all messages before the first invalid one.
fn read_plain(bytes: &[u8], lens: &[usize; MESSAGES]) -> Vec<Vec<u8>> {
    let (mut messages, mut remainder) = (Vec::new(), bytes);
    for (message, len) in lens.iter().enumerate() {
        let head = HEADER_BYTES + Head::padding(*len as u64);
        if remainder.len() < head + len || !is_header_of(remainder, message, *len) {
            break;
        }
        messages.push(remainder[head..head + len].to_vec());
        remainder = &remainder[head + len..];
    }
    messages
}

/// Expected result for encrypted records.
fn read_records(pieces: &[Piece], lens: &[usize; MESSAGES]) -> Vec<Vec<u8>> {
    let mut pieces = pieces.iter().filter(|piece| !matches!(piece, Piece::Raw(raw) if raw.is_empty()));
    let mut record = |with_head: bool| match pieces.next() {
        Some(Piece::Record(has_header, bytes)) if *has_header == with_head => {
            let least = if with_head { HEADER_BYTES } else { 1 };
            (least..=MAX_RECORD_BYTES).contains(&bytes.len()).then_some(bytes)
        }
        _ => None,
    };
    let mut message = |message: usize, len: usize| {
        let first = record(true).filter(|bytes| is_header_of(bytes, message, len))?;
        let (mut received, mut next) = (Vec::new(), &first[HEADER_BYTES..]);
        loop {
            let left = len - received.len();
            if next.len() > left || (next.len() < left && !next.len().is_multiple_of(PART_ALIGNMENT)) {
                return None;
            }
            received.extend(next);
            if received.len() == len {
                return Some(received);
            }
            next = record(false)?;
        }
    };
    lens.iter().enumerate().map_while(|(number, len)| message(number, *len)).collect()
}

/// Source that delivers bytes in portions of random size.
struct Portions<'a> {
    bytes: Cell<&'a [u8]>,
    /// State of the random number generator.
    state: Cell<u64>,
}

impl Source for Portions<'_> {
    fn recv<const N: usize>(&self, parts: [SpanMut<'_>; N]) -> io::Result<ReadResult> {
        let state =
            self.state.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.state.set(state);
        assert!(parts.iter().any(|part| !part.is_empty()), "there is room");
        // Delivers nothing, a few bytes, or many.
        let max = match state >> 61 {
            0 => return Ok(ReadResult::WouldBlock),
            1 => 1,
            2 => 1 + (state >> 32 & 31) as usize,
            3 => 1 + (state >> 32 & 4095) as usize,
            _ => usize::MAX,
        };
        let (mut received, mut remainder) = (0, self.bytes.get());
        for part in parts {
            let now = part.len().min(remainder.len()).min(max - received);
            part.sub(0, now).copy_from(Span::from(&remainder[..now]));
            (received, remainder) = (received + now, &remainder[now..]);
        }
        self.bytes.set(remainder);
        Ok(if received == 0 { ReadResult::Eof } else { ReadResult::Bytes(received) })
    }
}

/// Destination of a message; checks that it receives whole elements at aligned addresses.
struct TestSink<'a> {
    bytes: &'a mut [u8],
    reduced: bool,
}

impl Sink for TestSink<'_> {
    fn write(&mut self, offset: usize, data: Span<'_>) {
        let is_aligned =
            offset.is_multiple_of(PART_ALIGNMENT) && data.as_ptr().addr().is_multiple_of(PART_ALIGNMENT);
        assert!(is_aligned, "an element is split");
        SpanMut::from(&mut self.bytes[offset..offset + data.len()]).copy_from(data);
    }

    fn destination(&mut self) -> Option<SpanMut<'_>> {
        (!self.reduced).then(|| SpanMut::from(&mut *self.bytes))
    }
}

/// Receives a message; returns `None` if the connection fails.
fn receive(
    incoming: &mut Incoming,
    source: &Portions<'_>,
    message: usize,
    len: usize,
    reduced: bool,
) -> Option<Vec<u8>> {
    let mut memory = vec![0xa5; len + 2 * MARGIN];
    let expected = ExpectedPart { digest: digest_of(message), total: len, part: 0, base: 0, len };
    let (mut reduce_buffer, mut copied, mut polls) = (ReduceBuffer::default(), 0, 0);
    let done = loop {
        let mut sink = TestSink { bytes: &mut memory[MARGIN..MARGIN + len], reduced };
        let mut target =
            RecvTarget { sink: &mut sink, reduce_buffer: &mut reduce_buffer, copied: &mut copied };
        match incoming.poll(source, &expected, &mut target) {
            Ok(Polled::Complete) => break true,
            Ok(_) => polls += 1,
            Err(_) => break false,
        }
        assert!(polls < 2_000_000, "the receiver makes no progress");
    };
    assert!(incoming.received() <= len);
    let beside = memory[..MARGIN].iter().chain(&memory[MARGIN + len..]);
    assert!(beside.copied().all(|byte| byte == 0xa5), "bytes outside of the destination were written");
    done.then(|| {
        incoming.next();
        memory[MARGIN..MARGIN + len].to_vec()
    })
}

/// Runs one script against the receiving side of a connection.
///
/// Bit 0 of the first byte selects records, and bit 1 reduction. Two bytes seed the sizes of portions, two
/// bytes select the lengths of messages, and the pieces follow.
pub fn run_script(script: &[u8]) {
    let mut script = Script(script);
    let flags = script.byte().unwrap_or(0);
    let (encrypted, reduced) = (flags & 1 != 0, flags & 2 != 0);
    let state = Cell::new(script.number() as u64);
    let sizes = script.number();
    let lens = std::array::from_fn(|message| LENS[sizes >> (4 * message) & 15]);
    let pieces = script.pieces(&lens, encrypted);
    let (mut sealer, opener) = (Sealer::new([9; 32]), Opener::new([9; 32]));
    let mut bytes = Vec::new();
    for piece in &pieces {
        match piece {
            Piece::Raw(raw) => bytes.extend(raw),
            Piece::Record(has_header, record) => {
                let mark = (record.len() as u32 | u32::from(*has_header) << 31).to_le_bytes();
                let mut record = record.clone();
                let tag = sealer.seal(&mark, &mut record);
                bytes.extend([&mark[..], &record, &tag].concat());
            }
        }
    }
    let (due, mut incoming) = match encrypted {
        true => (read_records(&pieces, &lens), Incoming::Encrypted(Box::new(EncryptedIncoming::new(opener)))),
        false => (read_plain(&bytes, &lens), Incoming::Plain(PlainIncoming::new())),
    };
    let source = Portions { bytes: Cell::new(&bytes), state };
    let mut messages = lens.iter().enumerate();
    let received: Vec<Vec<u8>> = messages
        .by_ref()
        .map_while(|(number, len)| receive(&mut incoming, &source, number, *len, reduced))
        .collect();
    assert!(received == due, "{} messages came, and {} are due", received.len(), due.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a valid script: four messages of the lengths `sizes`, in plain pieces or in records.
    fn as_it_should_be(flags: u8, sizes: u16) -> Vec<u8> {
        let mut script = vec![flags, 7, 1];
        script.extend(sizes.to_le_bytes());
        for message in 0..MESSAGES {
            let len = LENS[usize::from(sizes) >> (4 * message) & 15];
            let first = len.min(49_152);
            script.push(1);
            script.extend((first as u16).to_le_bytes());
            let mut left = len - first;
            while left > 0 {
                let now = left.min(65_536);
                script.push(2);
                script.extend((now as u16).wrapping_sub(1).to_le_bytes());
                left -= now;
            }
        }
        script
    }

    /// Returns the number of messages that a script must deliver, computed without receiving.
    fn due(script: &[u8]) -> usize {
        let mut script = Script(script);
        let encrypted = script.byte().unwrap_or(0) & 1 != 0;
        let _ = script.number();
        let sizes = script.number();
        let lens = std::array::from_fn(|message| LENS[sizes >> (4 * message) & 15]);
        let pieces = script.pieces(&lens, encrypted);
        if encrypted {
            return read_records(&pieces, &lens).len();
        }
        let raw = |piece: &Piece| match piece {
            Piece::Raw(raw) | Piece::Record(_, raw) => raw.clone(),
        };
        read_plain(&pieces.iter().flat_map(raw).collect::<Vec<u8>>(), &lens).len()
    }

    #[test]
    fn messages_of_all_lengths_come_as_they_were_sent_in_all_portions() {
        let sizes = [0x3210u16, 0x7654, 0xba98, 0xfedc, 0x0f0f, 0xc1d2];
        // Miri takes a second for some ten thousand bytes.
        let (sizes, seeds) = if cfg!(miri) { (&sizes[..1], 2) } else { (&sizes[..], 20) };
        for flags in 0..4 {
            for &sizes in sizes {
                let mut script = as_it_should_be(flags, sizes);
                assert_eq!(due(&script), MESSAGES, "{sizes:x}");
                for seed in 0..seeds {
                    script[1] = seed;
                    run_script(&script);
                }
            }
        }
    }

    #[test]
    fn scripts_that_are_spoiled_anywhere_end_in_an_error_or_in_what_is_due() {
        let mut state = 5u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as usize
        };
        let mut refused = 0;
        for round in 0..400usize {
            let mut script = as_it_should_be(round as u8 % 4, [0x5310, 0x8765, 0xfb92][round % 3]);
            for _ in 0..1 + random() % 3 {
                let at = random() % script.len();
                match random() % 3 {
                    0 => script[at] = random() as u8,
                    1 => script.truncate(at.max(6)),
                    _ => script.insert(at, random() as u8),
                }
                if script.len() < 8 {
                    break;
                }
            }
            refused += usize::from(due(&script) < MESSAGES);
            run_script(&script);
        }
        assert!(refused > 100, "{refused} of 400 were spoiled");
    }

    #[test]
    fn what_fuzzing_has_found_is_replayed() {
        let mut whole = 0;
        let count = support::replay("tcp_frames", |script| {
            run_script(script);
            whole += usize::from(due(script) == MESSAGES);
        });
        assert!(whole > 0 && count > whole, "some are as they should be, and some are not");
    }
}
