//! Heads and payloads in encrypted records.
//!
//! ```text
//! 4 bytes    length of the ciphertext; bit 31: it begins with the head of a part
//! length     a head, if bit 31 is set, and payload
//! 16 bytes   authentication tag
//! ```
//!
//! A part begins with a record of its own. All its records but the last one hold [`RECORD_BYTES`] of payload,
//! so elements are whole and aligned. The sender copies the payload once and encrypts the copy. The receiver
//! decrypts in the read buffer, and copies or reduces from there.

use super::{
    part::{Expected, Failed, Polled, Progress, Taking},
    socket::{Came, Socket, Source},
    wire::{CUT_BYTES, HEAD_BYTES, Head},
};
use crate::{
    memory::{Span, SpanMut},
    secure::{Opener, Sealer, TAG_BYTES},
};
use std::io;

/// Bytes of payload per record: few enough to stay in cache while they are encrypted and sent.
pub(super) const RECORD_BYTES: usize = 64 << 10;
const MARK_BYTES: usize = 4;
const HAS_HEAD: u32 = 1 << 31;
/// The most that is encrypted in a record.
pub(super) const SEALED_MOST: usize = HEAD_BYTES + RECORD_BYTES;
/// Bytes that are read when nothing is known of what comes.
const AHEAD_BYTES: usize = 4096;
/// Records to write in one poll.
const RECORDS_MOST: usize = 8;

/// The sending side.
#[derive(Debug)]
pub(super) struct SealedOutgoing {
    sealer: Sealer,
    head: [u8; HEAD_BYTES],
    /// Bytes of the part's payload, and how many of them are encrypted.
    len: usize,
    sealed: usize,
    /// The part's head is encrypted.
    begun: bool,
    /// The record under way: `record[flushed..filled]` is still to be sent.
    record: Vec<u8>,
    filled: usize,
    flushed: usize,
    copied: u64,
}

impl SealedOutgoing {
    pub(super) fn new(sealer: Sealer) -> SealedOutgoing {
        SealedOutgoing {
            sealer,
            head: [0; HEAD_BYTES],
            len: 0,
            sealed: 0,
            begun: true,
            record: vec![0; MARK_BYTES + SEALED_MOST + TAG_BYTES],
            filled: 0,
            flushed: 0,
            copied: 0,
        }
    }

    pub(super) fn begin(&mut self, head: &Head, len: usize) {
        self.head = head.encode();
        (self.len, self.sealed, self.begun) = (len, 0, false);
    }

    pub(super) fn is_through(&self) -> bool {
        self.begun && self.sealed == self.len && self.flushed == self.filled
    }

    /// Whether the part's first record is encrypted. It must then be sent, since it has used up a sequence
    /// number.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    pub(super) fn take_copied(&mut self) -> u64 {
        std::mem::take(&mut self.copied)
    }

    /// Writes what there is room for of the first `ready` bytes of a part: all of it, or whole records.
    pub(super) fn write(&mut self, socket: &Socket, part: Span<'_>, ready: usize) -> io::Result<bool> {
        let mut moved = false;
        for _ in 0..RECORDS_MOST {
            if self.flushed == self.filled {
                let is_used_up = self.sealed == ready;
                if is_used_up && (self.begun || ready < self.len) {
                    break;
                }
                self.seal(part);
                moved = true;
            }
            let sent = socket.send(&[], Span::from(&self.record[self.flushed..self.filled]))?;
            self.flushed += sent;
            moved |= sent > 0;
            if self.flushed < self.filled {
                break;
            }
        }
        Ok(moved)
    }

    /// Makes the next record of the part.
    fn seal(&mut self, part: Span<'_>) {
        let payload = RECORD_BYTES.min(self.len - self.sealed);
        let head = if self.begun { 0 } else { HEAD_BYTES };
        let mark = (head + payload) as u32 | if head > 0 { HAS_HEAD } else { 0 };
        let (marks, rest) = self.record.split_at_mut(MARK_BYTES);
        marks.copy_from_slice(&mark.to_le_bytes());
        rest[..head].copy_from_slice(&self.head[..head]);
        SpanMut::from(&mut rest[head..head + payload]).copy_from(part.sub(self.sealed, payload));
        let (plain, tags) = rest.split_at_mut(head + payload);
        let tag = self.sealer.seal(marks, plain);
        tags[..TAG_BYTES].copy_from_slice(&tag);
        self.begun = true;
        self.sealed += payload;
        self.copied += payload as u64;
        (self.flushed, self.filled) = (0, MARK_BYTES + head + payload + TAG_BYTES);
    }
}

/// The receiving side.
#[derive(Debug)]
pub(super) struct SealedIncoming {
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

impl SealedIncoming {
    pub(super) fn new(opener: Opener) -> SealedIncoming {
        let buffer = vec![0; 3 * CUT_BYTES + SEALED_MOST + TAG_BYTES + AHEAD_BYTES];
        let aligned = buffer.as_ptr().align_offset(CUT_BYTES) + CUT_BYTES;
        SealedIncoming {
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

    pub(super) fn next_head(&self) -> Option<Head> {
        self.progress.head
    }

    pub(super) fn next(&mut self) {
        self.progress = Progress::default();
    }

    pub(super) fn poll(
        &mut self,
        source: &impl Source,
        expected: &Expected,
        taking: &mut Taking<'_>,
    ) -> Result<Polled, Failed> {
        let mut moved = false;
        loop {
            if self.plain.0 < self.plain.1 || self.progress.head.is_some() {
                self.progress.check(expected)?;
                self.consume(expected, taking)?;
                if self.progress.got == expected.len {
                    return Ok(Polled::All);
                }
            }
            if self.open_next()? {
                moved = true;
                continue;
            }
            if moved || !self.read(source)? {
                return Ok(if moved { Polled::Some } else { Polled::Nothing });
            }
            moved = true;
            if !self.open_next()? {
                return Ok(Polled::Some);
            }
        }
    }

    /// The mark of the record that comes, once it is there.
    fn mark(&self) -> Result<Option<(usize, bool)>, Failed> {
        let Some(bytes) = self.buffer[self.raw..self.end].first_chunk::<MARK_BYTES>() else {
            return Ok(None);
        };
        let mark = u32::from_le_bytes(*bytes);
        let (len, has_head) = ((mark & !HAS_HEAD) as usize, mark & HAS_HEAD != 0);
        let least = if has_head { HEAD_BYTES } else { 1 };
        if !(least..=SEALED_MOST).contains(&len) {
            return Err(Failed::Broken("a record of a length that none has"));
        }
        Ok(Some((len, has_head)))
    }

    /// Opens the next record, if all of it has come and the one before it is used up.
    fn open_next(&mut self) -> Result<bool, Failed> {
        if self.plain.0 < self.plain.1 {
            return Ok(false);
        }
        let Some((len, has_head)) = self.mark()? else { return Ok(false) };
        if self.end - self.raw < MARK_BYTES + len + TAG_BYTES {
            return Ok(false);
        }
        if has_head != self.progress.head.is_none() {
            return Err(Failed::Broken("a record out of turn"));
        }
        self.align();
        let (mark, rest) = self.buffer[self.raw..].split_at_mut(MARK_BYTES);
        let (record, rest) = rest.split_at_mut(len);
        let tag = rest.first_chunk().expect("all of the record has come");
        self.opener.open(mark, record, tag).map_err(|_| Failed::Changed)?;
        self.plain = (self.raw + MARK_BYTES, self.raw + MARK_BYTES + len);
        self.raw += MARK_BYTES + len + TAG_BYTES;
        if has_head {
            let head = self.buffer[self.plain.0..self.plain.1].first_chunk().and_then(Head::decode);
            let head = head.ok_or(Failed::Broken("what is no head of a message"))?;
            self.plain.0 += HEAD_BYTES;
            self.progress = Progress { head: Some(head), got: 0 };
        }
        Ok(true)
    }

    /// Moves what has come and is not opened, so that the payload of the next record lies aligned.
    fn align(&mut self) {
        let before = MARK_BYTES + if self.progress.head.is_none() { HEAD_BYTES } else { 0 };
        let place = self.aligned - before;
        if self.raw != place {
            self.buffer.copy_within(self.raw..self.end, place);
            (self.raw, self.end) = (place, place + self.end - self.raw);
        }
    }

    /// Reads the rest of the current record and the next mark; without a mark, reads as much as is available.
    fn read(&mut self, source: &impl Source) -> Result<bool, Failed> {
        self.align();
        let most = match self.mark()? {
            Some((len, _)) => 2 * MARK_BYTES + len + TAG_BYTES,
            None => AHEAD_BYTES,
        };
        let room = &mut self.buffer[self.end..self.raw + most];
        match source.recv([SpanMut::from(room)])? {
            Came::Nothing => Ok(false),
            Came::End => Err(Failed::Ended),
            Came::Bytes(came) => {
                self.end += came;
                Ok(true)
            }
        }
    }

    /// Takes the payload of the opened record to where it belongs.
    fn consume(&mut self, expected: &Expected, taking: &mut Taking<'_>) -> Result<(), Failed> {
        let (from, to) = self.plain;
        let (len, left) = (to - from, expected.len - self.progress.got);
        if len > left || (len < left && !len.is_multiple_of(CUT_BYTES)) {
            return Err(Failed::Broken("a record that does not fit its message"));
        }
        if len == 0 {
            return Ok(());
        }
        let offset = expected.base + self.progress.got;
        let bytes = Span::from(&self.buffer[from..to]);
        match taking.sink.destination() {
            Some(destination) => {
                destination.sub(offset, len).copy_from(bytes);
                *taking.copied += len as u64;
            }
            None => taking.sink.write(offset, bytes),
        }
        self.progress.got += len;
        self.plain = (0, 0);
        Ok(())
    }
}
