//! Headers and payloads in encrypted records.
//!
//! ```text
//! 4 bytes    prefix: length of the ciphertext; bit 31: it begins with the header of a part
//! length     a header, if bit 31 is set, and payload
//! 16 bytes   authentication tag
//! ```
//!
//! A part begins with a record of its own. All its records but the last one hold [`RECORD_BYTES`] of payload,
//! so elements are whole and aligned. The sender copies the payload once and encrypts the copy. The receiver
//! decrypts in the read buffer, and copies or reduces from there.

use super::{
    receive::{ExpectedPart, Polled, Progress, RecvError, RecvTarget},
    socket::{ReadResult, Socket, Source},
    wire::{HEADER_BYTES, Header, PART_ALIGNMENT},
};
use crate::{
    memory::{Span, SpanMut},
    secure::{Opener, Sealer, TAG_BYTES},
};
use std::io;

/// Bytes of payload per record: few enough to stay in cache while they are encrypted and sent.
pub(super) const RECORD_BYTES: usize = 64 << 10;
const PREFIX_BYTES: usize = 4;
const HAS_HEADER: u32 = 1 << 31;
/// Maximum bytes of plaintext per record.
pub(super) const MAX_RECORD_BYTES: usize = HEADER_BYTES + RECORD_BYTES;
/// Bytes to read while the next record's length is unknown.
const AHEAD_BYTES: usize = 4096;
/// Maximum number of records per poll.
const MAX_RECORDS_PER_WRITE: usize = 8;

/// The sending side of an encrypted connection.
#[derive(Debug)]
pub(super) struct EncryptedOutgoing {
    sealer: Sealer,
    header: [u8; HEADER_BYTES],
    /// Bytes of the part's payload, and the number of them that are encrypted.
    len: usize,
    encrypted: usize,
    /// Whether the part's header is encrypted.
    has_begun: bool,
    /// The current record: `record[flushed..filled]` is still to be sent.
    record: Vec<u8>,
    filled: usize,
    flushed: usize,
    copied: u64,
}

impl EncryptedOutgoing {
    pub(super) fn new(sealer: Sealer) -> EncryptedOutgoing {
        EncryptedOutgoing {
            sealer,
            header: [0; HEADER_BYTES],
            len: 0,
            encrypted: 0,
            has_begun: true,
            record: vec![0; PREFIX_BYTES + MAX_RECORD_BYTES + TAG_BYTES],
            filled: 0,
            flushed: 0,
            copied: 0,
        }
    }

    pub(super) fn begin(&mut self, header: &Header, len: usize) {
        self.header = header.encode();
        (self.len, self.encrypted, self.has_begun) = (len, 0, false);
    }

    pub(super) fn is_complete(&self) -> bool {
        self.has_begun && self.encrypted == self.len && self.flushed == self.filled
    }

    /// Whether the part's first record is encrypted. It must then be sent, since it has used up a sequence
    /// number.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    pub(super) fn take_copied(&mut self) -> u64 {
        std::mem::take(&mut self.copied)
    }

    /// Writes records of the first `ready` bytes of a part, as far as the socket has room.
    ///
    /// `ready` is the part's length or a multiple of [`RECORD_BYTES`].
    pub(super) fn write(&mut self, socket: &Socket, part: Span<'_>, ready: usize) -> io::Result<bool> {
        let mut moved = false;
        for record in 1..=MAX_RECORDS_PER_WRITE {
            if self.flushed == self.filled {
                let is_used_up = self.encrypted == ready;
                if is_used_up && (self.has_begun || ready < self.len) {
                    break;
                }
                self.seal(part);
                moved = true;
            }
            let others_follow = self.encrypted < ready && record < MAX_RECORDS_PER_WRITE;
            let sent = socket.send_record(&self.record[self.flushed..self.filled], others_follow)?;
            self.flushed += sent;
            moved |= sent > 0;
            if self.flushed < self.filled {
                break;
            }
        }
        Ok(moved)
    }

    /// Encrypts the next record of the part.
    fn seal(&mut self, part: Span<'_>) {
        let payload = RECORD_BYTES.min(self.len - self.encrypted);
        let header = if self.has_begun { 0 } else { HEADER_BYTES };
        let prefix = (header + payload) as u32 | if header > 0 { HAS_HEADER } else { 0 };
        let (prefixes, remainder) = self.record.split_at_mut(PREFIX_BYTES);
        prefixes.copy_from_slice(&prefix.to_le_bytes());
        remainder[..header].copy_from_slice(&self.header[..header]);
        SpanMut::from(&mut remainder[header..header + payload]).copy_from(part.sub(self.encrypted, payload));
        let (plain, tags) = remainder.split_at_mut(header + payload);
        let tag = self.sealer.seal(prefixes, plain);
        tags[..TAG_BYTES].copy_from_slice(&tag);
        self.has_begun = true;
        self.encrypted += payload;
        self.copied += payload as u64;
        (self.flushed, self.filled) = (0, PREFIX_BYTES + header + payload + TAG_BYTES);
    }
}

/// The receiving side of an encrypted connection.
#[derive(Debug)]
pub(super) struct EncryptedIncoming {
    opener: Opener,
    progress: Progress,
    /// Read buffer; `buffer[raw..end]` holds received bytes that are not decrypted yet.
    buffer: Vec<u8>,
    /// Offset in the buffer that is aligned for any element type.
    aligned: usize,
    raw: usize,
    end: usize,
    /// Range of decrypted bytes that are not consumed yet.
    plain: (usize, usize),
}

impl EncryptedIncoming {
    pub(super) fn new(opener: Opener) -> EncryptedIncoming {
        let buffer = vec![0; 3 * PART_ALIGNMENT + MAX_RECORD_BYTES + TAG_BYTES + AHEAD_BYTES];
        let aligned = buffer.as_ptr().align_offset(PART_ALIGNMENT) + PART_ALIGNMENT;
        EncryptedIncoming {
            opener,
            progress: Progress::default(),
            buffer,
            aligned,
            raw: aligned,
            end: aligned,
            plain: (0, 0),
        }
    }

    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    pub(super) fn next_header(&self) -> Option<Header> {
        self.progress.header
    }

    pub(super) fn next(&mut self) {
        self.progress = Progress::default();
    }

    pub(super) fn poll(
        &mut self,
        source: &impl Source,
        expected: &ExpectedPart,
        target: &mut RecvTarget<'_>,
    ) -> Result<Polled, RecvError> {
        let mut moved = false;
        loop {
            if self.plain.0 < self.plain.1 || self.progress.header.is_some() {
                self.progress.check(expected)?;
                self.deliver(expected, target)?;
                if self.progress.received == expected.len {
                    return Ok(Polled::Complete);
                }
            }
            if self.open_next()? {
                moved = true;
                continue;
            }
            if moved || !self.read(source, expected)? {
                return Ok(if moved { Polled::Advanced } else { Polled::Idle });
            }
            moved = true;
            if !self.open_next()? {
                return Ok(Polled::Advanced);
            }
        }
    }

    /// Parses the next record's prefix, once it has arrived: the length, and whether it begins with a header.
    fn prefix(&self) -> Result<Option<(usize, bool)>, RecvError> {
        let Some(bytes) = self.buffer[self.raw..self.end].first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        let prefix = u32::from_le_bytes(*bytes);
        let (len, has_header) = ((prefix & !HAS_HEADER) as usize, prefix & HAS_HEADER != 0);
        let min = if has_header { HEADER_BYTES } else { 1 };
        if !(min..=MAX_RECORD_BYTES).contains(&len) {
            return Err(RecvError::Protocol("a record of invalid length"));
        }
        Ok(Some((len, has_header)))
    }

    /// Decrypts the next record, if it has arrived completely and the previous one is consumed.
    fn open_next(&mut self) -> Result<bool, RecvError> {
        if self.plain.0 < self.plain.1 {
            return Ok(false);
        }
        let Some((len, has_header)) = self.prefix()? else { return Ok(false) };
        if self.end - self.raw < PREFIX_BYTES + len + TAG_BYTES {
            return Ok(false);
        }
        if has_header != self.progress.header.is_none() {
            return Err(RecvError::Protocol("a record in the wrong order"));
        }
        self.align();
        let (prefix, remainder) = self.buffer[self.raw..].split_at_mut(PREFIX_BYTES);
        let (record, remainder) = remainder.split_at_mut(len);
        let tag = remainder.first_chunk().expect("the record is complete");
        self.opener.open(prefix, record, tag).map_err(|_| RecvError::Authentication)?;
        self.plain = (self.raw + PREFIX_BYTES, self.raw + PREFIX_BYTES + len);
        self.raw += PREFIX_BYTES + len + TAG_BYTES;
        if has_header {
            let header = self.buffer[self.plain.0..self.plain.1].first_chunk().and_then(Header::decode);
            let header = header.ok_or(RecvError::Protocol("bytes that are not a message header"))?;
            self.plain.0 += HEADER_BYTES;
            self.progress = Progress { header: Some(header), received: 0 };
        }
        Ok(true)
    }

    /// Moves the bytes that are not decrypted, so that the payload of the next record is aligned.
    fn align(&mut self) {
        let before = PREFIX_BYTES + if self.progress.header.is_none() { HEADER_BYTES } else { 0 };
        let start = self.aligned - before;
        if self.raw != start {
            self.buffer.copy_within(self.raw..self.end, start);
            (self.raw, self.end) = (start, start + self.end - self.raw);
        }
    }

    /// Reads the rest of the current record and the next prefix. Without a prefix, reads as much as a record
    /// of the expected part takes, and short messages that follow each other.
    fn read(&mut self, source: &impl Source, expected: &ExpectedPart) -> Result<bool, RecvError> {
        self.align();
        let max = match self.prefix()? {
            Some((len, _)) => 2 * PREFIX_BYTES + len + TAG_BYTES,
            None => {
                let header = if self.progress.header.is_none() { HEADER_BYTES } else { 0 };
                let len = header + RECORD_BYTES.min(expected.len - self.progress.received);
                (2 * PREFIX_BYTES + len + TAG_BYTES).max(AHEAD_BYTES)
            }
        };
        let room = &mut self.buffer[self.end..self.raw + max];
        match source.recv([SpanMut::from(room)])? {
            ReadResult::WouldBlock => Ok(false),
            ReadResult::Eof => Err(RecvError::Ended),
            ReadResult::Bytes(received) => {
                self.end += received;
                Ok(true)
            }
        }
    }

    /// Delivers the payload of the decrypted record to the sink.
    fn deliver(&mut self, expected: &ExpectedPart, target: &mut RecvTarget<'_>) -> Result<(), RecvError> {
        let (from, to) = self.plain;
        let (len, left) = (to - from, expected.len - self.progress.received);
        if len > left || (len < left && !len.is_multiple_of(PART_ALIGNMENT)) {
            return Err(RecvError::Protocol("a record that does not fit its message"));
        }
        if len == 0 {
            return Ok(());
        }
        let offset = expected.base + self.progress.received;
        let bytes = Span::from(&self.buffer[from..to]);
        match target.sink.destination() {
            Some(destination) => {
                destination.sub(offset, len).copy_from(bytes);
                *target.copied += len as u64;
            }
            None => target.sink.write(offset, bytes),
        }
        self.progress.received += len;
        self.plain = (0, 0);
        Ok(())
    }
}
