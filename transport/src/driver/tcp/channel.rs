//! The sending and receiving sides of one connection, plain or encrypted.
//!
//! A connection is encrypted if the handshake kept its ciphers.

use super::{
    connection_table::{Connection, ConnectionTable},
    encrypted::{EncryptedIncoming, EncryptedOutgoing},
    incoming::{Incoming, PlainIncoming},
    outgoing::{Outgoing, PlainOutgoing},
    receive::RecvError,
    socket::Socket,
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

/// Makes the channel of a connection to a peer, and registers its socket in the table.
pub(super) fn open_channel(table: &ConnectionTable, peer: u32, connection: Connection) -> Channel {
    let socket = table.register(connection.stream, peer);
    let (outgoing, incoming) = match connection.ciphers.map(|ciphers| *ciphers) {
        None => (Outgoing::Plain(PlainOutgoing::default()), Incoming::Plain(PlainIncoming::new())),
        Some((sealer, opener)) => (
            Outgoing::Encrypted(Box::new(EncryptedOutgoing::new(sealer))),
            Incoming::Encrypted(Box::new(EncryptedIncoming::new(opener))),
        ),
    };
    Channel { socket, outgoing, incoming }
}

/// Returns the error for a connection that has failed.
#[cold]
pub(super) fn connection_error(peer: u32, error: &io::Error) -> TransportError {
    let what = match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => return TransportError::Closed { peer },
        io::ErrorKind::TimedOut => "no answer from its host; check the cable and the host".to_owned(),
        _ => error.to_string(),
    };
    TransportError::Lost { peer, what }
}

impl RecvError {
    /// Converts to the error that the link returns.
    #[cold]
    pub(super) fn into_transport_error(self, peer: u32) -> TransportError {
        match self {
            RecvError::Io(error) => connection_error(peer, &error),
            RecvError::Ended => TransportError::Closed { peer },
            RecvError::Protocol(what) => TransportError::Protocol { peer, what },
            RecvError::Authentication => {
                let what = "its data was changed on the way".to_owned();
                TransportError::Lost { peer, what }
            }
            RecvError::Unexpected(error) => error,
        }
    }
}
