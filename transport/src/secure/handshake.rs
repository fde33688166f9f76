//! The Noise handshake: three messages that prove to both ends that the other one knows the job's secret.
//!
//! ```text
//! initiator                                                responder
//!     | -- 1: psk, e ------------------------------------------> |  made with the secret, perhaps a replay
//!     | <------------------------- 2: e, ee, responder's hello -- |
//!     | -- 3: sealed with the session's key: initiator's hello -> |  the initiator is live
//! ```
//!
//! The notes at the right say what the responder knows after the message. Each message has a plaintext header
//! (magic, version, purpose, number, length). The prologue binds the fields that are equal for both ends. The
//! header only serves to give clear errors.
//!
//! A [`Handshake`] is a state machine without I/O: the caller passes in received bytes and writes the
//! outgoing ones. Nothing here waits.

use super::{Opener, Purpose, Sealer, Secret, SecureError, TAG_BYTES, Tag, VERSION};
use snow::{Builder, HandshakeState};
use std::fmt;
use zeroize::Zeroize;

/// Maximum bytes of a hello, the payload by which an end describes itself.
pub const MAX_HELLO_BYTES: usize = 1024;

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
const MAGIC: [u8; 3] = *b"tbc";
const HEADER_BYTES: usize = 8;
/// Bytes of an X25519 public key.
const KEY_BYTES: usize = 32;
/// Maximum bytes of a message without its header.
const MAX_MESSAGE_BYTES: usize = KEY_BYTES + MAX_HELLO_BYTES + TAG_BYTES;

/// State of a handshake, named after the message that it expects next.
enum Stage {
    /// Responder, before message 1.
    AwaitsFirst(Box<HandshakeState>),
    /// Initiator, before message 2.
    AwaitsSecond(Box<HandshakeState>),
    /// Responder, before message 3.
    AwaitsThird(Sealer, Opener),
    /// Complete.
    Done(Session),
    /// Failed.
    Failed,
}

/// One end's state of a handshake.
pub struct Handshake {
    purpose: Purpose,
    /// Payload that describes this end.
    hello: Vec<u8>,
    stage: Stage,
    /// The bytes received so far of the current message: header and body.
    incoming: Vec<u8>,
    /// Bytes to send; those before `written` are sent.
    outgoing: Vec<u8>,
    written: usize,
}

/// The result of a handshake: the peer's hello and the keys of the connection.
pub struct Session {
    hello: Vec<u8>,
    sealer: Sealer,
    opener: Opener,
}

impl Session {
    /// Returns the payload by which the peer describes itself.
    #[must_use]
    pub fn hello(&self) -> &[u8] {
        &self.hello
    }

    /// Returns the cipher states of this end's direction and the peer's direction.
    #[must_use]
    pub fn into_ciphers(self) -> (Sealer, Opener) {
        (self.sealer, self.opener)
    }
}

impl Handshake {
    /// Starts a handshake as the initiator, the end that connects.
    ///
    /// `hello` is the payload by which this end describes itself, at most [`MAX_HELLO_BYTES`] bytes.
    ///
    /// # Errors
    /// - [`SecureError::Random`] when the system's random source fails.
    /// - [`SecureError::Malformed`] when `hello` is too long.
    pub fn initiator(secret: &Secret, purpose: Purpose, hello: &[u8]) -> Result<Handshake, SecureError> {
        let mut noise = noise_state(secret, purpose, |builder| builder.build_initiator())?;
        let mut handshake = Handshake::new(purpose, hello, Stage::Failed)?;
        let mut message = [0; MAX_MESSAGE_BYTES];
        let len = noise.write_message(&[], &mut message).map_err(|error| handshake_error(&error))?;
        handshake.queue_message(1, &message[..len]);
        handshake.stage = Stage::AwaitsSecond(Box::new(noise));
        Ok(handshake)
    }

    /// Starts a handshake as the responder, the end that is connected to.
    ///
    /// The responder sends nothing until the initiator has sent a message made with the secret.
    ///
    /// # Errors
    /// The same as [`Handshake::initiator`].
    pub fn responder(secret: &Secret, purpose: Purpose, hello: &[u8]) -> Result<Handshake, SecureError> {
        let noise = noise_state(secret, purpose, |builder| builder.build_responder())?;
        Handshake::new(purpose, hello, Stage::AwaitsFirst(Box::new(noise)))
    }

    fn new(purpose: Purpose, hello: &[u8], stage: Stage) -> Result<Handshake, SecureError> {
        if hello.len() > MAX_HELLO_BYTES {
            return Err(SecureError::Malformed("our own hello is too long"));
        }
        let (incoming, outgoing) = (Vec::new(), Vec::new());
        Ok(Handshake { purpose, hello: hello.to_vec(), stage, incoming, outgoing, written: 0 })
    }

    /// Returns the bytes to write to the other end.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        &self.outgoing[self.written..]
    }

    /// Marks the first `bytes` of [`Handshake::outgoing`] as written.
    pub fn mark_written(&mut self, bytes: usize) {
        self.written = self.outgoing.len().min(self.written + bytes);
    }

    /// Returns the maximum number of bytes to read next.
    ///
    /// This is the missing part of the current message, or of its header while the length is unknown. It is 0
    /// when no message is expected.
    #[must_use]
    pub fn bytes_wanted(&self) -> usize {
        match self.stage {
            Stage::Done(_) | Stage::Failed => 0,
            _ => self.incoming_len() - self.incoming.len(),
        }
    }

    /// Whether the handshake is complete and everything is written, so that [`Handshake::finish`] returns a
    /// session.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done(_)) && self.outgoing().is_empty()
    }

    /// Processes received bytes, at most [`Handshake::bytes_wanted`] of them.
    ///
    /// # Errors
    /// Any [`SecureError`] except `Closed`, `Late` and `Io` when the other end does not prove to be a rank of
    /// this job. The caller must close the connection then.
    pub fn receive(&mut self, mut bytes: &[u8]) -> Result<(), SecureError> {
        while !bytes.is_empty() {
            let wanted = self.bytes_wanted();
            if wanted == 0 {
                return self.fail(SecureError::Malformed("more bytes than a handshake has"));
            }
            let (now, later) = bytes.split_at(wanted.min(bytes.len()));
            self.incoming.extend_from_slice(now);
            bytes = later;
            if let Err(error) = self.check_header() {
                return self.fail(error);
            }
            if self.incoming.len() >= HEADER_BYTES && self.bytes_wanted() == 0 {
                let message = std::mem::take(&mut self.incoming);
                if let Err(error) = self.process_message(&message[HEADER_BYTES..]) {
                    return self.fail(error);
                }
            }
        }
        Ok(())
    }

    /// Returns the session, once the handshake [is done](Handshake::is_done).
    ///
    /// # Errors
    /// [`SecureError::Malformed`] when it is not done.
    pub fn finish(self) -> Result<Session, SecureError> {
        match self.stage {
            Stage::Done(session) if self.written == self.outgoing.len() => Ok(session),
            _ => Err(SecureError::Malformed("the handshake is not done")),
        }
    }

    fn fail(&mut self, error: SecureError) -> Result<(), SecureError> {
        self.stage = Stage::Failed;
        Err(error)
    }

    /// Returns the number of the expected message, and its minimum and maximum length.
    fn expected_message(&self) -> (u8, [usize; 2]) {
        let plain = KEY_BYTES + TAG_BYTES;
        match self.stage {
            Stage::AwaitsFirst(_) => (1, [plain, plain]),
            Stage::AwaitsSecond(_) => (2, [plain, plain + MAX_HELLO_BYTES]),
            _ => (3, [TAG_BYTES, TAG_BYTES + MAX_HELLO_BYTES]),
        }
    }

    /// Returns the length of the current message with its header; the header's length while the message's is
    /// unknown.
    fn incoming_len(&self) -> usize {
        match self.incoming.get(6..HEADER_BYTES) {
            Some(len) => HEADER_BYTES + usize::from(u16::from_le_bytes([len[0], len[1]])),
            None => HEADER_BYTES,
        }
    }

    /// Rejects a header as soon as one of its bytes is wrong, before its length is used.
    fn check_header(&self) -> Result<(), SecureError> {
        let received = &self.incoming;
        if received.iter().zip(MAGIC).any(|(found, expected)| *found != expected) {
            return Err(SecureError::UnknownProtocol);
        }
        match received.get(3) {
            Some(&version) if version != VERSION => return Err(SecureError::Version(version)),
            _ => {}
        }
        match received.get(4) {
            Some(&found) if found != self.purpose as u8 => {
                return Err(SecureError::Purpose { found, expected: self.purpose });
            }
            _ => {}
        }
        let (number, [least, most]) = self.expected_message();
        if received.get(5).is_some_and(|found| *found != number) {
            return Err(SecureError::Malformed("out of sequence"));
        }
        if received.len() >= HEADER_BYTES && !(least..=most).contains(&(self.incoming_len() - HEADER_BYTES)) {
            return Err(SecureError::Malformed("an invalid length"));
        }
        Ok(())
    }

    fn process_message(&mut self, message: &[u8]) -> Result<(), SecureError> {
        let mut payload = [0; MAX_MESSAGE_BYTES];
        match std::mem::replace(&mut self.stage, Stage::Failed) {
            Stage::AwaitsFirst(mut noise) => {
                noise.read_message(message, &mut payload).map_err(|error| handshake_error(&error))?;
                let mut answer = [0; MAX_MESSAGE_BYTES];
                let len =
                    noise.write_message(&self.hello, &mut answer).map_err(|error| handshake_error(&error))?;
                self.queue_message(2, &answer[..len]);
                let [initiators, ours] = keys(&mut noise);
                self.stage = Stage::AwaitsThird(Sealer::new(ours), Opener::new(initiators));
            }
            Stage::AwaitsSecond(mut noise) => {
                let len =
                    noise.read_message(message, &mut payload).map_err(|error| handshake_error(&error))?;
                let [ours, responders] = keys(&mut noise);
                let (mut sealer, opener) = (Sealer::new(ours), Opener::new(responders));
                let mut hello = std::mem::take(&mut self.hello);
                let tag = sealer.seal(&[], &mut hello);
                hello.extend_from_slice(&tag);
                self.queue_message(3, &hello);
                self.stage = Stage::Done(Session { hello: payload[..len].to_vec(), sealer, opener });
            }
            Stage::AwaitsThird(sealer, mut opener) => {
                let (hello, tag) = message.split_last_chunk::<TAG_BYTES>().expect("the length was checked");
                let mut hello = hello.to_vec();
                let tag: &Tag = tag;
                opener.open(&[], &mut hello, tag).map_err(|_| SecureError::Secret)?;
                self.stage = Stage::Done(Session { hello, sealer, opener });
            }
            Stage::Done(_) | Stage::Failed => return Err(SecureError::Malformed("out of sequence")),
        }
        Ok(())
    }

    fn queue_message(&mut self, number: u8, message: &[u8]) {
        let [m, a, g] = MAGIC;
        let [low, high] = (message.len() as u16).to_le_bytes();
        self.outgoing.drain(..self.written);
        self.written = 0;
        self.outgoing.extend_from_slice(&[m, a, g, VERSION, self.purpose as u8, number, low, high]);
        self.outgoing.extend_from_slice(message);
    }
}

fn noise_state(
    secret: &Secret,
    purpose: Purpose,
    build: fn(Builder<'_>) -> Result<HandshakeState, snow::Error>,
) -> Result<HandshakeState, SecureError> {
    let prologue = [MAGIC.as_slice(), &[VERSION, purpose as u8]].concat();
    let parameters = PATTERN.parse().map_err(|error| handshake_error(&error))?;
    let builder = Builder::new(parameters).prologue(&prologue).and_then(|b| b.psk(0, secret.bytes()));
    builder.and_then(build).map_err(|error| handshake_error(&error))
}

/// Returns the keys of the initiator's and of the responder's direction.
fn keys(noise: &mut HandshakeState) -> [[u8; 32]; 2] {
    let mut split = noise.dangerously_get_raw_split();
    let keys = [split.0, split.1];
    split.0.zeroize();
    split.1.zeroize();
    keys
}

fn handshake_error(error: &snow::Error) -> SecureError {
    match error {
        snow::Error::Rng => SecureError::Random,
        // A public key whose shared secret is zero is treated like a message that can't be decrypted.
        snow::Error::Decrypt | snow::Error::Dh => SecureError::Secret,
        _ => SecureError::Malformed("not a message of the Noise protocol"),
    }
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            Stage::AwaitsFirst(_) => "awaits the first message",
            Stage::AwaitsSecond(_) => "awaits the second message",
            Stage::AwaitsThird(..) => "awaits the third message",
            Stage::Done(_) => "done",
            Stage::Failed => "failed",
        };
        f.debug_struct("Handshake")
            .field("purpose", &self.purpose)
            .field("stage", &stage)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("hello", &self.hello).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
