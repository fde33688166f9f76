//! Why a connection was not, or is no longer, trusted.

use super::{Purpose, VERSION};
use thiserror::Error;

/// Why a connection was not, or is no longer, trusted. Begins with the other end: "it ...".
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SecureError {
    /// What came first is not the beginning of a handshake.
    #[error("it does not speak tbccl's protocol")]
    Stranger,
    /// A handshake of another version.
    #[error(
        "it speaks version {0} of tbccl's handshake and we speak version {VERSION}; run the same version of tbccl everywhere"
    )]
    Version(u8),
    /// A connection of another kind, or one of a kind that there is not.
    #[error(
        "it asks for a connection of kind {found} where those of kind {} are taken; is this the right port?", *expected as u8
    )]
    Purpose {
        /// What the other end asks for, as the byte it sent.
        found: u8,
        /// What is expected here.
        expected: Purpose,
    },
    /// A message of a length that none has, or out of turn.
    #[error("it sent a handshake message that can't be: {0}")]
    Malformed(&'static str),
    /// A message that only who knows the secret can make was not made so.
    #[error(
        "it has another secret than this job (TBCCL_SECRET, TBCCL_SECRET_FILE), or what it sent was changed on the way"
    )]
    Secret,
    /// A record that was not sealed by the peer, or not in this place.
    #[error("what it sent was changed on the way, or is not from it")]
    Record,
    /// It closed the connection before it was through.
    #[error("it closed the connection during the handshake; it most likely has another secret than this job")]
    Closed,
    /// It did not come to an end in time.
    #[error("it did not finish the handshake in time")]
    Late,
    /// The system has no random numbers for us.
    #[error("the system's random source failed")]
    Random,
    /// The connection failed.
    #[error("the connection failed during the handshake: {0}")]
    Io(#[from] std::io::Error),
}
