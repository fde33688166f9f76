//! One end of a connection between a rank and the rendezvous: frames in and out over a socket that never waits.
//!
//! What is to be sent is queued and goes out as the socket takes it; what has come is kept until it makes a frame.
//! Both ends use it: the server from its event loop, a rank by waiting for its socket.
//!
//! Over TCP a [`Guard`] stands between frames and socket, so that nothing of a frame travels in the clear and nothing
//! of a stranger is read as a frame. What is queued may be shared by many connections; it is sealed for each only when
//! its socket can take it.

use super::{
    record_layer::{Decoded, RecordLayer},
    socket::Socket,
    wire::{decode, split_frame},
};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use serde::de::DeserializeOwned;
use std::{
    collections::VecDeque,
    io::{self, ErrorKind},
    sync::Arc,
};

/// Something to be sent.
#[derive(Clone, Debug)]
pub(super) enum Payload {
    /// Frames, or bytes that follow one; shared by those who get the same.
    Bytes(Arc<[u8]>),
    /// One byte, and a descriptor with it.
    Descriptor(Arc<OwnedFd>),
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Payload {
        Payload::Bytes(bytes.into())
    }
}

/// How far reading got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadProgress {
    /// All that there was.
    Drained,
    /// As much as was asked for; there may be more.
    More,
    /// The peer has closed its side.
    Closed,
}

/// Bytes read from a socket at a time.
const READ_CHUNK: usize = 16 << 10;

/// Sealed bytes are made while fewer than these wait to be written.
const SEALED_AHEAD: usize = 64 << 10;

/// One end of a connection.
#[derive(Debug)]
pub(super) struct FrameStream {
    socket: Socket,
    record_layer: RecordLayer,
    /// What came and is still sealed.
    sealed_in: Vec<u8>,
    /// What came and is no whole frame yet, from `taken` on.
    inbox: Vec<u8>,
    taken: usize,
    descriptors: VecDeque<OwnedFd>,
    outbox: VecDeque<Payload>,
    /// Bytes of the first parcel that are sent, or sealed.
    sent: usize,
    /// What is sealed and not yet written, from `written` on.
    sealed_out: Vec<u8>,
    written: usize,
}

impl FrameStream {
    /// Over a socket, behind a guard. A guard that has something to say first says it at the next [`Pipe::flush`].
    pub(super) fn new(socket: Socket, record_layer: RecordLayer) -> FrameStream {
        FrameStream {
            socket,
            record_layer,
            sealed_in: Vec::new(),
            inbox: Vec::new(),
            taken: 0,
            descriptors: VecDeque::new(),
            outbox: VecDeque::new(),
            sent: 0,
            sealed_out: Vec::new(),
            written: 0,
        }
    }

    pub(super) fn socket(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// Do both ends know that the other has the secret, where one is needed?
    pub(super) fn is_trusted(&self) -> bool {
        self.record_layer.is_trusted()
    }

    /// Is there nothing left to be written?
    pub(super) fn is_flushed(&self) -> bool {
        self.written == self.sealed_out.len() && (self.outbox.is_empty() || !self.record_layer.is_ready())
    }

    /// Reads what has come, about `most` bytes at most.
    ///
    /// # Errors
    /// When the connection is broken, or what came is not from one who has the secret.
    pub(super) fn fill(&mut self, limit: usize) -> io::Result<ReadProgress> {
        let mut read = 0;
        let mut chunk = [0; READ_CHUNK];
        while read < limit {
            match self.socket.read(&mut chunk, &mut self.descriptors) {
                Ok(0) => return Ok(ReadProgress::Closed),
                Ok(len) => {
                    read += len;
                    self.process_input(&chunk[..len])?;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(ReadProgress::Drained),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(ReadProgress::More)
    }

    fn process_input(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.taken > 0 {
            self.inbox.drain(..self.taken);
            self.taken = 0;
        }
        if self.record_layer.is_open() {
            self.inbox.extend_from_slice(bytes);
            return Ok(());
        }
        self.sealed_in.extend_from_slice(bytes);
        let mut done = 0;
        loop {
            match self.record_layer.open(&self.sealed_in[done..], &mut self.inbox, &mut self.sealed_out)? {
                Decoded::Incomplete => break,
                Decoded::Bytes(len) => done += len,
            }
        }
        self.sealed_in.drain(..done);
        Ok(())
    }

    /// The next frame, once all of it has come; of `most` bytes at most.
    ///
    /// # Errors
    /// When it is longer, or not what it should be.
    pub(super) fn frame<T: DeserializeOwned>(&mut self, limit: usize) -> io::Result<Option<T>> {
        let Some((text, end)) = split_frame(&self.inbox[self.taken..], limit)? else { return Ok(None) };
        let frame = decode(text)?;
        self.taken += end;
        Ok(Some(frame))
    }

    /// The next `len` bytes, once all of them have come.
    pub(super) fn bytes(&mut self, len: usize) -> Option<Vec<u8>> {
        let bytes = self.inbox.get(self.taken..self.taken + len)?.to_vec();
        self.taken += len;
        Some(bytes)
    }

    /// Throws away what has come and is not taken.
    pub(super) fn discard_input(&mut self) {
        self.inbox.clear();
        self.taken = 0;
        self.descriptors.clear();
    }

    /// The next descriptor, which came with a byte that has been taken.
    pub(super) fn descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop_front()
    }

    /// How many descriptors have come that are not taken.
    pub(super) fn waiting_descriptors(&self) -> usize {
        self.descriptors.len()
    }

    /// Queues something.
    pub(super) fn send(&mut self, payload: impl Into<Payload>) {
        self.outbox.push_back(payload.into());
    }

    /// Writes what the socket takes; true when nothing is left.
    ///
    /// # Errors
    /// When the connection is broken.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        match self.write_all() {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn write_all(&mut self) -> io::Result<()> {
        if self.record_layer.is_open() {
            return self.write_plain();
        }
        loop {
            self.seal_ahead()?;
            if self.written == self.sealed_out.len() {
                return Ok(());
            }
            self.written += write(&mut self.socket, &self.sealed_out[self.written..])?;
        }
    }

    /// Where nothing is sealed, parcels go to the socket as they are.
    fn write_plain(&mut self) -> io::Result<()> {
        while let Some(payload) = self.outbox.front() {
            match payload {
                Payload::Bytes(bytes) => {
                    while self.sent < bytes.len() {
                        self.sent += write(&mut self.socket, &bytes[self.sent..])?;
                    }
                }
                Payload::Descriptor(fd) => self.socket.send_descriptor(fd.as_fd())?,
            }
            self.outbox.pop_front();
            self.sent = 0;
        }
        Ok(())
    }

    fn seal_ahead(&mut self) -> io::Result<()> {
        if self.written == self.sealed_out.len() {
            self.sealed_out.clear();
            self.written = 0;
        }
        self.record_layer.write_handshake(&mut self.sealed_out)?;
        while self.record_layer.is_ready() && self.sealed_out.len() - self.written < SEALED_AHEAD {
            let Some(payload) = self.outbox.front() else { break };
            let Payload::Bytes(bytes) = payload else {
                return Err(io::Error::other("descriptors don't travel over TCP"));
            };
            let rest = &bytes[self.sent..];
            let some = &rest[..rest.len().min(RecordLayer::MAX_RECORD_BYTES)];
            self.record_layer.seal(some, &mut self.sealed_out)?;
            self.sent += some.len();
            if self.sent == bytes.len() {
                self.outbox.pop_front();
                self.sent = 0;
            }
        }
        Ok(())
    }
}

fn write(socket: &mut Socket, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match socket.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

impl AsFd for FrameStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
