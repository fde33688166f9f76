//! The three messages by which both ends of a connection prove that they know the job's secret.
//!
//! ```text
//! initiator                                                responder
//!     | -- 1: psk, e ------------------------------------------> |  knows: made with the secret, perhaps a recording
//!     | <------------------------- 2: e, ee, responder's hello -- |
//!     | -- 3: sealed with the session's key: initiator's hello -> |  knows: the initiator is there now
//! ```
//!
//! Each message has a header in plain sight (magic, version, purpose, number, length), which the prologue binds as
//! far as it is the same for both, and which only serves to say clearly what is wrong.
//!
//! Bytes are handed in as they come and taken out as they can be written; nothing here waits.

use super::{Opener, Purpose, Sealer, Secret, SecureError, TAG_BYTES, Tag, VERSION};
use snow::{Builder, HandshakeState};
use std::fmt;
use zeroize::Zeroize;

/// The most bytes that an end can say of itself.
pub const HELLO_MOST: usize = 1024;

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
const MAGIC: [u8; 3] = *b"tbc";
const HEADER_BYTES: usize = 8;
/// A public key of X25519.
const KEY_BYTES: usize = 32;
/// The longest message behind its header.
const MESSAGE_MOST: usize = KEY_BYTES + HELLO_MOST + TAG_BYTES;

/// What is to come next.
enum Stage {
    /// As responder: message 1.
    AwaitsFirst(Box<HandshakeState>),
    /// As initiator: message 2.
    AwaitsSecond(Box<HandshakeState>),
    /// As responder: message 3.
    AwaitsThird(Sealer, Opener),
    /// Nothing.
    Done(Session),
    /// Nothing: it failed.
    Failed,
}

/// One end's part of a handshake.
pub struct Handshake {
    purpose: Purpose,
    /// What we say of ourselves.
    hello: Vec<u8>,
    stage: Stage,
    /// The message that is coming: header and body, as far as it has come.
    incoming: Vec<u8>,
    /// What is to be written, from `written` on.
    outgoing: Vec<u8>,
    written: usize,
}

/// What comes of a handshake: who the peer is, and keys for what follows.
pub struct Session {
    hello: Vec<u8>,
    sealer: Sealer,
    opener: Opener,
}

impl Session {
    /// What the peer said of itself.
    #[must_use]
    pub fn hello(&self) -> &[u8] {
        &self.hello
    }

    /// What seals what we send, and what opens what the peer sends.
    #[must_use]
    pub fn into_ciphers(self) -> (Sealer, Opener) {
        (self.sealer, self.opener)
    }
}

impl Handshake {
    /// The end that connects. `hello` is what it says of itself, [`HELLO_MOST`] bytes at most.
    ///
    /// # Errors
    /// [`SecureError::Random`]; [`SecureError::Malformed`] when `hello` is too long.
    pub fn initiator(secret: &Secret, purpose: Purpose, hello: &[u8]) -> Result<Handshake, SecureError> {
        let mut noise = begin(secret, purpose, |builder| builder.build_initiator())?;
        let mut handshake = Handshake::new(purpose, hello, Stage::Failed)?;
        let mut message = [0; MESSAGE_MOST];
        let len = noise.write_message(&[], &mut message).map_err(|error| trouble(&error))?;
        handshake.say(1, &message[..len]);
        handshake.stage = Stage::AwaitsSecond(Box::new(noise));
        Ok(handshake)
    }

    /// The end that is connected to. It says nothing before the other one has shown a message made with the secret.
    ///
    /// # Errors
    /// As for [`Handshake::initiator`].
    pub fn responder(secret: &Secret, purpose: Purpose, hello: &[u8]) -> Result<Handshake, SecureError> {
        let noise = begin(secret, purpose, |builder| builder.build_responder())?;
        Handshake::new(purpose, hello, Stage::AwaitsFirst(Box::new(noise)))
    }

    fn new(purpose: Purpose, hello: &[u8], stage: Stage) -> Result<Handshake, SecureError> {
        if hello.len() > HELLO_MOST {
            return Err(SecureError::Malformed("our own hello is too long"));
        }
        let (incoming, outgoing) = (Vec::new(), Vec::new());
        Ok(Handshake { purpose, hello: hello.to_vec(), stage, incoming, outgoing, written: 0 })
    }

    /// Bytes to be written to the other end.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        &self.outgoing[self.written..]
    }

    /// So many of them were.
    pub fn written(&mut self, bytes: usize) {
        self.written = self.outgoing.len().min(self.written + bytes);
    }

    /// How many bytes to read at most: what is missing of the message that is coming, as far as that is known. None
    /// when no message is to come.
    #[must_use]
    pub fn wants(&self) -> usize {
        match self.stage {
            Stage::Done(_) | Stage::Failed => 0,
            _ => self.incoming_bytes() - self.incoming.len(),
        }
    }

    /// Is all said and written, so that [`Handshake::finish`] gives a session?
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done(_)) && self.outgoing().is_empty()
    }

    /// Takes bytes that have come, [`Handshake::wants`] of them at most.
    ///
    /// # Errors
    /// When the other end is not one of ours; the connection is to be closed then.
    pub fn take(&mut self, mut bytes: &[u8]) -> Result<(), SecureError> {
        while !bytes.is_empty() {
            let wanted = self.wants();
            if wanted == 0 {
                return self.fail(SecureError::Malformed("more bytes than a handshake has"));
            }
            let (now, later) = bytes.split_at(wanted.min(bytes.len()));
            self.incoming.extend_from_slice(now);
            bytes = later;
            if let Err(error) = self.check_header() {
                return self.fail(error);
            }
            if self.incoming.len() >= HEADER_BYTES && self.wants() == 0 {
                let message = std::mem::take(&mut self.incoming);
                if let Err(error) = self.understand(&message[HEADER_BYTES..]) {
                    return self.fail(error);
                }
            }
        }
        Ok(())
    }

    /// The session, once it [is done](Handshake::is_done).
    ///
    /// # Errors
    /// [`SecureError::Malformed`] when it is not.
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

    /// The number of the message that is to come, and the lengths it may have.
    fn awaited(&self) -> (u8, [usize; 2]) {
        let plain = KEY_BYTES + TAG_BYTES;
        match self.stage {
            Stage::AwaitsFirst(_) => (1, [plain, plain]),
            Stage::AwaitsSecond(_) => (2, [plain, plain + HELLO_MOST]),
            _ => (3, [TAG_BYTES, TAG_BYTES + HELLO_MOST]),
        }
    }

    /// Bytes of the message that is coming, as far as they are known: at first those of its header.
    fn incoming_bytes(&self) -> usize {
        match self.incoming.get(6..HEADER_BYTES) {
            Some(len) => HEADER_BYTES + usize::from(u16::from_le_bytes([len[0], len[1]])),
            None => HEADER_BYTES,
        }
    }

    /// Refuses a header as soon as a byte of it is wrong, before its length is used.
    fn check_header(&self) -> Result<(), SecureError> {
        let came = &self.incoming;
        if came.iter().zip(MAGIC).any(|(found, expected)| *found != expected) {
            return Err(SecureError::Stranger);
        }
        match came.get(3) {
            Some(&version) if version != VERSION => return Err(SecureError::Version(version)),
            _ => {}
        }
        match came.get(4) {
            Some(&found) if found != self.purpose as u8 => {
                return Err(SecureError::Purpose { found, expected: self.purpose });
            }
            _ => {}
        }
        let (number, [least, most]) = self.awaited();
        if came.get(5).is_some_and(|found| *found != number) {
            return Err(SecureError::Malformed("out of turn"));
        }
        if came.len() >= HEADER_BYTES && !(least..=most).contains(&(self.incoming_bytes() - HEADER_BYTES)) {
            return Err(SecureError::Malformed("a length that none has"));
        }
        Ok(())
    }

    fn understand(&mut self, message: &[u8]) -> Result<(), SecureError> {
        let mut payload = [0; MESSAGE_MOST];
        match std::mem::replace(&mut self.stage, Stage::Failed) {
            Stage::AwaitsFirst(mut noise) => {
                noise.read_message(message, &mut payload).map_err(|error| trouble(&error))?;
                let mut answer = [0; MESSAGE_MOST];
                let len = noise.write_message(&self.hello, &mut answer).map_err(|error| trouble(&error))?;
                self.say(2, &answer[..len]);
                let [initiators, ours] = keys(&mut noise);
                self.stage = Stage::AwaitsThird(Sealer::new(ours), Opener::new(initiators));
            }
            Stage::AwaitsSecond(mut noise) => {
                let len = noise.read_message(message, &mut payload).map_err(|error| trouble(&error))?;
                let [ours, responders] = keys(&mut noise);
                let (mut sealer, opener) = (Sealer::new(ours), Opener::new(responders));
                let mut hello = std::mem::take(&mut self.hello);
                let tag = sealer.seal(&[], &mut hello);
                hello.extend_from_slice(&tag);
                self.say(3, &hello);
                self.stage = Stage::Done(Session { hello: payload[..len].to_vec(), sealer, opener });
            }
            Stage::AwaitsThird(sealer, mut opener) => {
                let (hello, tag) = message.split_last_chunk::<TAG_BYTES>().expect("the length was checked");
                let mut hello = hello.to_vec();
                let tag: &Tag = tag;
                opener.open(&[], &mut hello, tag).map_err(|_| SecureError::Secret)?;
                self.stage = Stage::Done(Session { hello, sealer, opener });
            }
            Stage::Done(_) | Stage::Failed => return Err(SecureError::Malformed("out of turn")),
        }
        Ok(())
    }

    fn say(&mut self, number: u8, message: &[u8]) {
        let [m, a, g] = MAGIC;
        let [low, high] = (message.len() as u16).to_le_bytes();
        self.outgoing.drain(..self.written);
        self.written = 0;
        self.outgoing.extend_from_slice(&[m, a, g, VERSION, self.purpose as u8, number, low, high]);
        self.outgoing.extend_from_slice(message);
    }
}

fn begin(
    secret: &Secret,
    purpose: Purpose,
    build: fn(Builder<'_>) -> Result<HandshakeState, snow::Error>,
) -> Result<HandshakeState, SecureError> {
    let prologue = [MAGIC.as_slice(), &[VERSION, purpose as u8]].concat();
    let parameters = PATTERN.parse().map_err(|error| trouble(&error))?;
    let builder = Builder::new(parameters).prologue(&prologue).and_then(|b| b.psk(0, secret.bytes()));
    builder.and_then(build).map_err(|error| trouble(&error))
}

/// The keys of what the initiator sends and of what the responder sends.
fn keys(noise: &mut HandshakeState) -> [[u8; 32]; 2] {
    let mut split = noise.dangerously_get_raw_split();
    let keys = [split.0, split.1];
    split.0.zeroize();
    split.1.zeroize();
    keys
}

fn trouble(error: &snow::Error) -> SecureError {
    match error {
        snow::Error::Rng => SecureError::Random,
        // A public key that gives no secret in common is no more to be trusted than a message that can't be decrypted.
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
