//! Errors of handshakes and records.

use super::{Purpose, VERSION};
use thiserror::Error;

/// Reason why a connection is not, or no longer, trusted. The message's subject is the other end: "it ...".
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SecureError {
    /// The first bytes are not the beginning of a handshake.
    #[error("it does not speak tbccl's protocol")]
    UnknownProtocol,
    /// The other end uses another version of the handshake.
    #[error(
        "it speaks version {0} of tbccl's handshake and we speak version {VERSION}; run the same version of \
         tbccl everywhere"
    )]
    Version(u8),
    /// The other end asks for a connection of another or an unknown purpose.
    #[error(
        "it asks for a connection of purpose {found} where purpose {} is expected; is this the right port?",
        *expected as u8
    )]
    Purpose {
        /// The byte that the other end sent.
        found: u8,
        /// The purpose expected here.
        expected: Purpose,
    },
    /// A message has an invalid length or is out of sequence.
    #[error("it sent an invalid handshake message: {0}")]
    Malformed(&'static str),
    /// A handshake message was not made with the job's secret.
    #[error(
        "it has another secret than this job (TBCCL_SECRET, TBCCL_SECRET_FILE), or its message was changed \
         in transit"
    )]
    Secret,
    /// A record was not sealed by the peer, or not at this position in the sequence.
    #[error("a record from it was changed in transit, or another sender made it")]
    Record,
    /// The other end closed the connection before the end of the handshake.
    #[error("it closed the connection during the handshake; it most likely has another secret than this job")]
    Closed,
    /// The deadline passed before the end of the handshake.
    #[error("it did not finish the handshake in time")]
    Late,
    /// The system's random source failed.
    #[error("the system's random source failed")]
    Random,
    /// The connection failed.
    #[error("the connection failed during the handshake: {0}")]
    Io(#[from] std::io::Error),
}
