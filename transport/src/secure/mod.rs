//! Connections between those who know a job's secret, and nobody else.
//!
//! Both ends of a connection prove to each other that they know a [`Secret`] of 32 bytes, by the Noise protocol
//! (`NNpsk0`, X25519, AES-256-GCM, SHA-256; the crate `snow`): a [`Handshake`] of three messages, each with keys made
//! for this connection alone, so that what was recorded on one is of no use on another, and what was encrypted stays
//! secret even when the secret leaks later. The third message proves to the one who was called that the caller is
//! there now; only from it on is anything believed that the caller says of itself.
//!
//! What comes of it is a [`Session`]: what the peer says of itself, and a [`Sealer`] and an [`Opener`] for those who
//! want what follows encrypted as well. Those who don't go on with the plain socket: then the peer is known, but who
//! can change packets on the wire can change what follows.
//!
//! Nothing here reads a socket or a clock, except [`over_stream`], which runs a handshake over a blocking stream with
//! a deadline. Who may connect, how often and what becomes of a connection that fails is the callers' business.
//!
//! Invariants: what comes from outside is checked before it is used as a length; a handshake never asks for more
//! bytes than belong to it; it never panics; a secret is wiped when it is dropped and no formatting shows it.

mod aead;
mod error;
mod handshake;
mod purpose;
mod record;
mod secret;
mod stream;

pub use aead::{TAG_BYTES, Tag};
pub use error::SecureError;
pub use handshake::{HELLO_MOST, Handshake, Session};
pub use purpose::Purpose;
pub use record::{Opener, Sealer};
pub use secret::{Secret, SecretError};
pub use stream::{TimedStream, over_stream};

/// The version of handshakes and records. Ends of other versions are refused with an error that says so.
pub const VERSION: u8 = 1;
