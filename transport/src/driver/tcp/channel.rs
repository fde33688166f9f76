//! The sending and receiving sides of one connection, plain or encrypted.
//!
//! A connection is encrypted if the handshake left ciphers with it.

use super::{
    incoming::{Incoming, PlainIncoming},
    outgoing::{Outgoing, PlainOutgoing},
    part::Failed,
    sealed::{SealedIncoming, SealedOutgoing},
    socket::Socket,
    table::{Connection, Table},
};
use crate::TransportError;
use std::{io, sync::Arc};

/// The two directions of a connection.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) socket: Arc<Socket>,
    pub(super) outgoing: Outgoing,
    pub(super) incoming: Incoming,
}

/// A channel over a connection.
pub(super) fn channel(table: &Table, connection: Connection) -> Channel {
    let socket = table.register(Socket::new(connection.stream));
    let (outgoing, incoming) = match connection.ciphers.map(|ciphers| *ciphers) {
        None => (Outgoing::Plain(PlainOutgoing::default()), Incoming::Plain(PlainIncoming::new())),
        Some((sealer, opener)) => (
            Outgoing::Sealed(Box::new(SealedOutgoing::new(sealer))),
            Incoming::Sealed(Box::new(SealedIncoming::new(opener))),
        ),
    };
    Channel { socket, outgoing, incoming }
}

/// The error for a connection that has failed.
#[cold]
pub(super) fn lost(peer: u32, error: &io::Error) -> TransportError {
    let what = match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => return TransportError::Closed { peer },
        io::ErrorKind::TimedOut => "no answer from its host; check the cable and the host".to_owned(),
        _ => error.to_string(),
    };
    TransportError::Lost { peer, what }
}

impl Failed {
    /// The error that it is.
    #[cold]
    pub(super) fn of(self, peer: u32) -> TransportError {
        match self {
            Failed::Io(error) => lost(peer, &error),
            Failed::Ended => TransportError::Closed { peer },
            Failed::Broken(what) => TransportError::Protocol { peer, what },
            Failed::Changed => {
                let what = "what it sent was changed on the way".to_owned();
                TransportError::Lost { peer, what }
            }
            Failed::Unexpected(error) => error,
        }
    }
}
