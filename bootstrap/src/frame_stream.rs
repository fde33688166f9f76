//! One end of a connection between a rank and the rendezvous: frames over a nonblocking socket.
//!
//! Outgoing payloads are queued and written as the socket takes them. Received bytes are kept until they form
//! a frame. The server uses this from its event loop; a rank waits for its socket with `poll`.
//!
//! A [`RecordLayer`] lies between frames and socket if the job has a secret: no frame travels unencrypted,
//! and no byte of an unauthenticated peer is parsed as a frame. Connections may share a queued payload; each
//! seals it only when its socket can take it.

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

/// A payload to be sent.
#[derive(Clone, Debug)]
pub(super) enum Payload {
    /// Frames, or bytes that follow one. Shared by all connections that receive the same bytes.
    Bytes(Arc<[u8]>),
    /// One byte with a file descriptor.
    Descriptor(Arc<OwnedFd>),
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Payload {
        Payload::Bytes(bytes.into())
    }
}

/// Result of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadProgress {
    /// All available bytes were read.
    Drained,
    /// The requested number of bytes was read; more may be available.
    More,
    /// The peer has closed its side.
    Closed,
}

/// Bytes read from a socket at a time.
const READ_CHUNK: usize = 16 << 10;

/// Byte that a descriptor travels with.
const DESCRIPTOR_BYTE: u8 = 1;

/// Payloads are sealed while fewer sealed bytes than this wait to be written.
const SEALED_AHEAD: usize = 64 << 10;

/// One end of a connection.
#[derive(Debug)]
pub(super) struct FrameStream {
    socket: Socket,
    record_layer: RecordLayer,
    /// Received bytes that are still sealed.
    sealed_in: Vec<u8>,
    /// Received plain bytes, of which those from `taken` on are not consumed.
    inbox: Vec<u8>,
    taken: usize,
    descriptors: VecDeque<OwnedFd>,
    outbox: VecDeque<Payload>,
    /// Bytes of the first queued payload that are sent or sealed.
    sent: usize,
    /// Sealed bytes, of which those from `written` on are not written.
    sealed_out: Vec<u8>,
    written: usize,
    /// Descriptors to send with the sealed byte at their offset, in the order of the offsets.
    sealed_descriptors: VecDeque<(usize, Arc<OwnedFd>)>,
    /// Whether the write side is shut down.
    is_finished: bool,
}

impl FrameStream {
    /// Creates a stream over a socket. The initiator's handshake begins with the next [`FrameStream::flush`].
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
            sealed_descriptors: VecDeque::new(),
            is_finished: false,
        }
    }

    pub(super) fn socket(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// Whether the peer is known to belong to the job.
    pub(super) fn is_trusted(&self) -> bool {
        self.record_layer.is_trusted()
    }

    /// Shuts down the write side, once: each repetition would be an event of the socket.
    pub(super) fn finish(&mut self) {
        if !std::mem::replace(&mut self.is_finished, true) {
            self.socket.finish();
        }
    }

    /// Whether no bytes wait to be written.
    pub(super) fn is_flushed(&self) -> bool {
        self.written == self.sealed_out.len() && (self.outbox.is_empty() || !self.record_layer.is_ready())
    }

    /// Reads available bytes, about `limit` at most.
    ///
    /// # Errors
    /// If the connection is broken or the peer fails authentication.
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

    /// Returns the next frame once it is complete.
    ///
    /// # Errors
    /// If the frame is longer than `limit` or cannot be decoded as `T`.
    pub(super) fn frame<T: DeserializeOwned>(&mut self, limit: usize) -> io::Result<Option<T>> {
        let Some((text, end)) = split_frame(&self.inbox[self.taken..], limit)? else { return Ok(None) };
        let frame = decode(text)?;
        self.taken += end;
        Ok(Some(frame))
    }

    /// Returns the next `len` bytes once all of them have arrived.
    pub(super) fn bytes(&mut self, len: usize) -> Option<Vec<u8>> {
        let bytes = self.inbox.get(self.taken..self.taken + len)?.to_vec();
        self.taken += len;
        Some(bytes)
    }

    /// Discards received bytes and descriptors that are not consumed.
    pub(super) fn discard_input(&mut self) {
        self.inbox.clear();
        self.taken = 0;
        self.descriptors.clear();
    }

    /// Returns the next descriptor, which arrived with a byte that has been consumed.
    pub(super) fn descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop_front()
    }

    /// Returns the number of received descriptors that are not consumed.
    pub(super) fn waiting_descriptors(&self) -> usize {
        self.descriptors.len()
    }

    /// Queues a payload.
    pub(super) fn send(&mut self, payload: impl Into<Payload>) {
        self.outbox.push_back(payload.into());
    }

    /// Writes until the socket is full. Returns whether nothing is left to write.
    ///
    /// # Errors
    /// If the connection is broken.
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
            self.write_sealed()?;
        }
    }

    /// Writes sealed bytes up to the next one that travels with a descriptor, or that one and those after it.
    fn write_sealed(&mut self) -> io::Result<()> {
        let is_next = self.sealed_descriptors.front().is_some_and(|(offset, _)| *offset == self.written);
        let mut offsets = self.sealed_descriptors.iter().map(|(offset, _)| *offset);
        let end = offsets.nth(usize::from(is_next)).unwrap_or(self.sealed_out.len());
        let bytes = &self.sealed_out[self.written..end];
        match self.sealed_descriptors.front().filter(|_| is_next) {
            Some((_, fd)) => {
                self.written += self.socket.send_descriptor(fd.as_fd(), bytes)?;
                self.sealed_descriptors.pop_front();
            }
            None => self.written += write(&mut self.socket, bytes)?,
        }
        Ok(())
    }

    /// Writes payloads to the socket unencrypted.
    fn write_plain(&mut self) -> io::Result<()> {
        while let Some(payload) = self.outbox.front() {
            match payload {
                Payload::Bytes(bytes) => {
                    while self.sent < bytes.len() {
                        self.sent += write(&mut self.socket, &bytes[self.sent..])?;
                    }
                }
                Payload::Descriptor(fd) => {
                    self.socket.send_descriptor(fd.as_fd(), &[DESCRIPTOR_BYTE])?;
                }
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
            let bytes = match payload {
                Payload::Bytes(bytes) => bytes,
                Payload::Descriptor(_) if self.socket.is_tcp() => {
                    return Err(io::Error::other("descriptors don't travel over TCP"));
                }
                Payload::Descriptor(fd) => {
                    self.sealed_descriptors.push_back((self.sealed_out.len(), Arc::clone(fd)));
                    self.record_layer.seal(&[DESCRIPTOR_BYTE], &mut self.sealed_out)?;
                    self.outbox.pop_front();
                    continue;
                }
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
