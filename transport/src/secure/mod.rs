//! Authenticated and encrypted connections between the ranks of a job.
//!
//! Both ends of a connection prove to each other that they know a [`Secret`] of 32 bytes, by the Noise
//! protocol (`NNpsk0`, X25519, AES-256-GCM, SHA-256; the crate `snow`). The [`Handshake`] has three messages
//! with ephemeral keys: a recording is of no use on another connection, and encrypted data stays secret even
//! when the secret leaks later (forward secrecy). The third message proves to the responder that the
//! initiator is live; only then does the responder trust the initiator's hello.
//!
//! The result is a [`Session`]: the peer's hello, and a [`Sealer`] and an [`Opener`] to encrypt the traffic
//! that follows. A caller that needs no encryption goes on with the plain socket; the peer is authenticated
//! then, but an attacker who can change packets on the wire can change that traffic.
//!
//! The module reads no socket and no clock, except [`handshake_over_stream`], which runs a handshake over a
//! blocking stream with a deadline. Admission, rate limits and the handling of failed connections belong to
//! the callers.
//!
//! Invariants: a received length is checked before it is used. A handshake never requests more bytes than
//! belong to it, and never panics. A secret is wiped when it is dropped, and no formatting shows it.

mod aead;
mod error;
mod handshake;
mod purpose;
mod record;
mod secret;
mod stream;

pub use aead::{TAG_BYTES, Tag};
pub use error::SecureError;
pub use handshake::{Handshake, MAX_HELLO_BYTES, Session};
pub use purpose::Purpose;
pub use record::{Opener, Sealer};
pub use secret::{Secret, SecretError};
pub use stream::{TimedStream, handshake_over_stream};

/// The version of handshakes and records. Ends of other versions are refused with an error that says so.
pub const VERSION: u8 = 1;
