//! A connection whose stream travels in encrypted records.
//!
//! ```text
//! 4 bytes    length of the ciphertext
//! length     bytes of the stream
//! 16 bytes   authentication tag
//! ```
//!
//! Records have nothing to do with messages: the stream inside is the one of a plain connection. A record
//! that is cut off by the end of a connection counts as not received.

use super::{
    super::socket::{ReadResult, Socket, Source},
    carrier::Carrier,
};
use crate::{
    memory::{Span, SpanMut},
    secure::{Opener, Sealer, TAG_BYTES},
};
use std::{
    cell::RefCell,
    io::{self, ErrorKind},
    sync::Arc,
};

/// Maximum bytes of the stream per record.
const RECORD_BYTES: usize = 64 << 10;
const PREFIX_BYTES: usize = 4;
const MAX_WIRE_BYTES: usize = PREFIX_BYTES + RECORD_BYTES + TAG_BYTES;
/// Maximum records to seal in one call.
const MAX_RECORDS: usize = 8;

/// A connection with encrypted records.
#[derive(Debug)]
pub(in super::super) struct EncryptedCarrier {
    socket: Arc<Socket>,
    out: RefCell<RecordsOut>,
    into: RefCell<RecordsIn>,
}

#[derive(Debug)]
struct RecordsOut {
    sealer: Sealer,
    /// The current record: `record[flushed..filled]` is still to be sent.
    record: Vec<u8>,
    flushed: usize,
    filled: usize,
}

#[derive(Debug)]
struct RecordsIn {
    opener: Opener,
    /// Received bytes: `buffer[raw..end]` is not decrypted yet.
    buffer: Vec<u8>,
    raw: usize,
    end: usize,
    /// Range of decrypted bytes that are not consumed yet.
    plain: (usize, usize),
}

impl EncryptedCarrier {
    pub(super) fn new(socket: Arc<Socket>, (sealer, opener): (Sealer, Opener)) -> EncryptedCarrier {
        let out = RecordsOut { sealer, record: vec![0; MAX_WIRE_BYTES], flushed: 0, filled: 0 };
        let into = RecordsIn { opener, buffer: vec![0; 2 * MAX_WIRE_BYTES], raw: 0, end: 0, plain: (0, 0) };
        EncryptedCarrier { socket, out: RefCell::new(out), into: RefCell::new(into) }
    }

    pub(super) fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }
}

impl RecordsOut {
    /// Sends the current record, as far as the socket has room. Returns whether all of it is sent.
    ///
    /// `others_follow`: the caller sends the next record at once.
    fn flush(&mut self, socket: &Socket, others_follow: bool) -> io::Result<bool> {
        if self.flushed < self.filled {
            self.flushed += socket.send_record(&self.record[self.flushed..self.filled], others_follow)?;
        }
        Ok(self.flushed == self.filled)
    }

    /// Seals a record of `header` and the beginning of `body`. Returns the number of their bytes in it.
    fn seal(&mut self, header: &[u8], body: Span<'_>) -> usize {
        let payload = body.len().min(RECORD_BYTES - header.len());
        let len = header.len() + payload;
        let (prefix, rest) = self.record.split_at_mut(PREFIX_BYTES);
        prefix.copy_from_slice(&(len as u32).to_le_bytes());
        let (plain, tag) = rest.split_at_mut(len);
        plain[..header.len()].copy_from_slice(header);
        SpanMut::from(&mut plain[header.len()..]).copy_from(body.sub(0, payload));
        tag[..TAG_BYTES].copy_from_slice(&self.sealer.seal(prefix, plain));
        (self.flushed, self.filled) = (0, PREFIX_BYTES + len + TAG_BYTES);
        len
    }
}

impl RecordsIn {
    /// Decrypts the next record, if it has arrived completely.
    fn open_next(&mut self) -> io::Result<bool> {
        let Some(prefix) = self.buffer[self.raw..self.end].first_chunk::<PREFIX_BYTES>().copied() else {
            return Ok(false);
        };
        let len = u32::from_le_bytes(prefix) as usize;
        if !(1..=RECORD_BYTES).contains(&len) {
            return Err(io::Error::new(ErrorKind::InvalidData, "a record of invalid length"));
        }
        let whole = PREFIX_BYTES + len + TAG_BYTES;
        if self.end - self.raw < whole {
            return Ok(false);
        }
        let (record, tag) = self.buffer[self.raw + PREFIX_BYTES..self.raw + whole].split_at_mut(len);
        let tag = (&*tag).try_into().expect("a tag");
        let opened = self.opener.open(&prefix, record, tag);
        opened.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        self.plain = (self.raw + PREFIX_BYTES, self.raw + PREFIX_BYTES + len);
        self.raw += whole;
        Ok(true)
    }

    /// Moves decrypted bytes to `parts`.
    fn take(&mut self, parts: &[SpanMut<'_>]) -> usize {
        let mut taken = 0;
        for part in parts {
            let now = part.len().min(self.plain.1 - self.plain.0);
            part.sub(0, now).copy_from(Span::from(&self.buffer[self.plain.0..self.plain.0 + now]));
            self.plain.0 += now;
            taken += now;
        }
        taken
    }
}

impl Source for EncryptedCarrier {
    fn recv<const N: usize>(&self, parts: [SpanMut<'_>; N]) -> io::Result<ReadResult> {
        let mut into = self.into.borrow_mut();
        loop {
            if into.plain.0 < into.plain.1 || into.open_next()? {
                return Ok(ReadResult::Bytes(into.take(&parts)));
            }
            let RecordsIn { buffer, raw, end, .. } = &mut *into;
            buffer.copy_within(*raw..*end, 0);
            (*raw, *end) = (0, *end - *raw);
            match self.socket.recv([SpanMut::from(&mut buffer[*end..])])? {
                ReadResult::Bytes(bytes) => *end += bytes,
                other => return Ok(other),
            }
        }
    }
}

impl Carrier for EncryptedCarrier {
    fn send(&self, header: &[u8], body: Span<'_>) -> io::Result<usize> {
        let mut out = self.out.borrow_mut();
        let (mut accepted, all) = (0, header.len() + body.len());
        for _ in 0..MAX_RECORDS {
            match out.flush(&self.socket, accepted < all) {
                Ok(true) if accepted < all => {}
                // Records that were accepted in this call may have arrived, so they count.
                Err(error) if accepted == 0 => return Err(error),
                Ok(_) | Err(_) => return Ok(accepted),
            }
            let done = accepted.saturating_sub(header.len());
            accepted += out.seal(&header[accepted.min(header.len())..], body.sub(done, body.len() - done));
        }
        // The next call reports an error.
        let _ = out.flush(&self.socket, false);
        Ok(accepted)
    }

    fn flush(&self) -> io::Result<bool> {
        self.out.borrow_mut().flush(&self.socket, false)
    }

    fn unreceived(&self) -> u64 {
        let out = self.out.borrow();
        let held = (out.filled - out.flushed) as u64;
        match self.socket.unacknowledged() {
            Some(0) if held == 0 => 0,
            // The record that the acknowledged bytes end in can't be opened.
            Some(sent) => sent + held + MAX_WIRE_BYTES as u64,
            None => u64::MAX,
        }
    }
}
