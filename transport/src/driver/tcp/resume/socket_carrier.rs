//! Connections over sockets that carry streams, plain or encrypted.

use super::{
    super::socket::{ReadResult, Socket, Source},
    carrier::{Carrier, PendingCarrier},
    encrypted_carrier::EncryptedCarrier,
};
use crate::{
    memory::{Span, SpanMut},
    secure::{Opener, Sealer, TAG_BYTES},
};
use std::{io, sync::Arc};

/// Bytes of a stream's position on the wire, sealed.
const OFFSET_BYTES: usize = 8 + TAG_BYTES;

/// An authenticated connection over a socket.
#[derive(Debug)]
pub(in super::super) enum SocketCarrier {
    Plain(Arc<Socket>),
    Encrypted(Box<EncryptedCarrier>),
}

impl SocketCarrier {
    pub(in super::super) fn socket(&self) -> &Arc<Socket> {
        match self {
            SocketCarrier::Plain(socket) => socket,
            SocketCarrier::Encrypted(encrypted) => encrypted.socket(),
        }
    }
}

impl Source for SocketCarrier {
    #[inline]
    fn recv<const N: usize>(&self, parts: [SpanMut<'_>; N]) -> io::Result<ReadResult> {
        match self {
            SocketCarrier::Plain(socket) => socket.recv(parts),
            SocketCarrier::Encrypted(encrypted) => encrypted.recv(parts),
        }
    }
}

impl Carrier for SocketCarrier {
    #[inline]
    fn send(&self, header: &[u8], body: Span<'_>) -> io::Result<usize> {
        match self {
            SocketCarrier::Plain(socket) => socket.send(header, body),
            SocketCarrier::Encrypted(encrypted) => encrypted.send(header, body),
        }
    }

    #[inline]
    fn flush(&self) -> io::Result<bool> {
        match self {
            SocketCarrier::Plain(_) => Ok(true),
            SocketCarrier::Encrypted(encrypted) => encrypted.flush(),
        }
    }

    fn unreceived(&self) -> u64 {
        match self {
            // Nothing counts as received where the system does not tell.
            SocketCarrier::Plain(socket) => socket.unacknowledged().unwrap_or(u64::MAX),
            SocketCarrier::Encrypted(encrypted) => encrypted.unreceived(),
        }
    }
}

/// An authenticated connection after the handshake, with the keys of both directions.
#[derive(Debug)]
pub(in super::super) struct PendingSocket {
    socket: Arc<Socket>,
    ciphers: Box<(Sealer, Opener)>,
    is_encrypted: bool,
    offset: [u8; OFFSET_BYTES],
    received: usize,
}

impl PendingSocket {
    pub(in super::super) fn new(
        socket: Arc<Socket>,
        ciphers: Box<(Sealer, Opener)>,
        is_encrypted: bool,
    ) -> PendingSocket {
        PendingSocket { socket, ciphers, is_encrypted, offset: [0; OFFSET_BYTES], received: 0 }
    }

    pub(in super::super) fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }

    /// Sends this end's position, as the initiator.
    ///
    /// # Errors
    /// The connection's. Only the handshake was sent before, so there is room.
    pub(in super::super) fn send_offset(&mut self, offset: u64) -> io::Result<()> {
        let mut bytes = [0; OFFSET_BYTES];
        let (plain, tag) = bytes.split_at_mut(8);
        plain.copy_from_slice(&offset.to_le_bytes());
        tag.copy_from_slice(&self.ciphers.0.seal(&[], plain));
        match self.socket.send(&[], Span::from(&bytes[..]))? {
            OFFSET_BYTES => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }
}

impl PendingCarrier for PendingSocket {
    type Carrier = SocketCarrier;

    fn poll_offset(&mut self) -> io::Result<Option<u64>> {
        while self.received < OFFSET_BYTES {
            match self.socket.recv([SpanMut::from(&mut self.offset[self.received..])])? {
                ReadResult::Bytes(bytes) => self.received += bytes,
                ReadResult::WouldBlock => return Ok(None),
                ReadResult::Eof => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        let (plain, tag) = self.offset.split_at_mut(8);
        let tag = (&*tag).try_into().expect("the rest of it");
        let opened = self.ciphers.1.open(&[], plain, tag);
        opened.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(Some(u64::from_le_bytes((&*plain).try_into().expect("eight bytes"))))
    }

    fn into_carrier(self) -> SocketCarrier {
        match self.is_encrypted {
            true => SocketCarrier::Encrypted(Box::new(EncryptedCarrier::new(self.socket, *self.ciphers))),
            false => SocketCarrier::Plain(self.socket),
        }
    }
}
