//! The layer between the frames of a connection and its socket.
//!
//! A connection of a job with a secret begins with a handshake in which both ends prove that they have it.
//! Encrypted, numbered records follow: a length of four bytes, the ciphertext, and a tag that authenticates
//! both. A job without a secret has Unix sockets only, whose bytes pass unchanged: the kernel names the
//! peer's user.

use std::io;
use transport::secure::{Handshake, Opener, Purpose, Sealer, Secret, SecureError, TAG_BYTES, Tag};

/// Bytes of the length before a record.
const PREFIX: usize = 4;

/// State of the layer between frames and socket.
#[derive(Debug)]
pub(super) enum RecordLayer {
    /// Bytes pass unchanged.
    Open,
    /// The handshake is in progress.
    Shaking(Box<Handshake>),
    /// Encryption in both directions.
    Sealed(Box<(Sealer, Opener)>),
    /// The handshake failed; no bytes pass.
    Broken,
}

/// How much of the input was processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decoded {
    /// This many bytes; the rest of the input may hold more.
    Bytes(usize),
    /// Nothing, because the input ends before a complete message.
    Incomplete,
}

fn untrusted(error: SecureError) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, error)
}

impl RecordLayer {
    /// Maximum number of plain bytes in a record.
    pub(super) const MAX_RECORD_BYTES: usize = 64 << 10;

    /// Creates the layer of the connecting end.
    pub(super) fn initiator(secret: &Secret) -> io::Result<RecordLayer> {
        let handshake = Handshake::initiator(secret, Purpose::Bootstrap, &[]).map_err(untrusted)?;
        Ok(RecordLayer::Shaking(Box::new(handshake)))
    }

    /// Creates the layer of the accepting end, which sends nothing before the peer has proved that it has the
    /// secret.
    pub(super) fn responder(secret: &Secret) -> io::Result<RecordLayer> {
        let handshake = Handshake::responder(secret, Purpose::Bootstrap, &[]).map_err(untrusted)?;
        Ok(RecordLayer::Shaking(Box::new(handshake)))
    }

    /// Whether bytes pass unchanged.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, RecordLayer::Open)
    }

    /// Whether frames may be sent.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self, RecordLayer::Open | RecordLayer::Sealed(_))
    }

    /// Whether the peer is known to belong to the job.
    pub(super) fn is_trusted(&self) -> bool {
        self.is_ready()
    }

    /// Appends outgoing bytes of the handshake to `out`.
    pub(super) fn write_handshake(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        if let RecordLayer::Shaking(handshake) = self {
            let bytes = handshake.outgoing();
            out.extend_from_slice(bytes);
            let len = bytes.len();
            handshake.mark_written(len);
        }
        self.finish_handshake()
    }

    /// Switches from the handshake to encryption once the handshake is complete.
    fn finish_handshake(&mut self) -> io::Result<()> {
        if matches!(self, RecordLayer::Shaking(handshake) if handshake.is_done())
            && let RecordLayer::Shaking(handshake) = std::mem::replace(self, RecordLayer::Broken)
        {
            let session = handshake.finish().map_err(untrusted)?;
            *self = RecordLayer::Sealed(Box::new(session.into_ciphers()));
        }
        Ok(())
    }

    /// Processes the first message in `bytes`. Appends decrypted bytes to `plain` and bytes of the handshake
    /// to `answer`.
    ///
    /// # Errors
    /// If the peer does not have the secret or the record was altered. `plain` is then unchanged.
    pub(super) fn open(
        &mut self,
        bytes: &[u8],
        plain: &mut Vec<u8>,
        answer: &mut Vec<u8>,
    ) -> io::Result<Decoded> {
        match self {
            RecordLayer::Open => {
                plain.extend_from_slice(bytes);
                Ok(if bytes.is_empty() { Decoded::Incomplete } else { Decoded::Bytes(bytes.len()) })
            }
            RecordLayer::Shaking(handshake) => {
                let len = handshake.bytes_wanted().min(bytes.len());
                if len == 0 {
                    return Ok(Decoded::Incomplete);
                }
                handshake.receive(&bytes[..len]).map_err(untrusted)?;
                self.write_handshake(answer)?;
                Ok(Decoded::Bytes(len))
            }
            RecordLayer::Sealed(ciphers) => open_record(&mut ciphers.1, bytes, plain),
            RecordLayer::Broken => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Seals at most [`RecordLayer::MAX_RECORD_BYTES`] bytes and appends the record to `out`.
    pub(super) fn seal(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let RecordLayer::Sealed(ciphers) = self else { return Err(io::ErrorKind::NotConnected.into()) };
        let prefix = (bytes.len() as u32).to_le_bytes();
        out.extend_from_slice(&prefix);
        let start = out.len();
        out.extend_from_slice(bytes);
        let tag = ciphers.0.seal(&prefix, &mut out[start..]);
        out.extend_from_slice(&tag);
        Ok(())
    }
}

fn open_record(opener: &mut Opener, bytes: &[u8], plain: &mut Vec<u8>) -> io::Result<Decoded> {
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else { return Ok(Decoded::Incomplete) };
    let len = u32::from_le_bytes(*prefix) as usize;
    if len > RecordLayer::MAX_RECORD_BYTES {
        return Err(untrusted(SecureError::Record));
    }
    let Some((sealed, tag)) = rest.get(..len + TAG_BYTES).and_then(|record| record.split_last_chunk()) else {
        return Ok(Decoded::Incomplete);
    };
    let tag: &Tag = tag;
    let start = plain.len();
    plain.extend_from_slice(sealed);
    opener.open(prefix, &mut plain[start..], tag).map_err(|e| {
        plain.truncate(start);
        untrusted(e)
    })?;
    Ok(Decoded::Bytes(PREFIX + len + TAG_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes bytes between two layers until neither has output.
    fn exchange_handshakes(a: &mut RecordLayer, b: &mut RecordLayer) -> io::Result<()> {
        let (mut to_b, mut to_a) = (Vec::new(), Vec::new());
        let mut plain = Vec::new();
        a.write_handshake(&mut to_b)?;
        while !to_b.is_empty() || !to_a.is_empty() {
            while let Decoded::Bytes(len) = b.open(&to_b, &mut plain, &mut to_a)? {
                to_b.drain(..len);
            }
            while let Decoded::Bytes(len) = a.open(&to_a, &mut plain, &mut to_b)? {
                to_a.drain(..len);
            }
        }
        assert!(plain.is_empty(), "a handshake says nothing to those behind it");
        Ok(())
    }

    fn pair() -> (RecordLayer, RecordLayer) {
        let secret = Secret::generate().expect("random numbers");
        let mut a = RecordLayer::initiator(&secret).expect("a handshake");
        let mut b = RecordLayer::responder(&secret).expect("a handshake");
        assert!(!a.is_trusted() && !b.is_trusted());
        exchange_handshakes(&mut a, &mut b).expect("the same secret");
        assert!(a.is_trusted() && b.is_trusted());
        (a, b)
    }

    #[test]
    fn what_is_sealed_is_opened_in_any_pieces_and_never_travels_in_the_clear() {
        let (mut a, mut b) = pair();
        let text = b"the remote key is 4711".repeat(100);
        let mut sealed = Vec::new();
        a.seal(&text, &mut sealed).expect("ready");
        a.seal(b"more", &mut sealed).expect("ready");
        assert!(!sealed.windows(10).any(|part| text.windows(10).any(|open| open == part)));
        let (mut received, mut plain, mut answer) = (Vec::new(), Vec::new(), Vec::new());
        for piece in sealed.chunks(7) {
            received.extend_from_slice(piece);
            while let Decoded::Bytes(len) = b.open(&received, &mut plain, &mut answer).expect("ours") {
                received.drain(..len);
            }
        }
        assert_eq!(plain, [&text[..], b"more"].concat());
        assert!(received.is_empty() && answer.is_empty());
    }

    #[test]
    fn what_was_changed_repeated_or_left_out_on_the_way_is_not_opened() {
        let spoil: [fn(&mut Vec<u8>); 5] = [
            |bytes| bytes[6] ^= 1,
            |bytes| bytes[0] -= 1,
            |bytes| *bytes.last_mut().expect("a tag") ^= 0x80,
            |bytes| {
                bytes.drain(..PREFIX + 5 + TAG_BYTES);
            },
            |bytes| bytes[2] = 0xff,
        ];
        for (which, spoil) in spoil.into_iter().enumerate() {
            let (mut a, mut b) = pair();
            let mut sealed = Vec::new();
            a.seal(b"first", &mut sealed).expect("ready");
            a.seal(b"other", &mut sealed).expect("ready");
            spoil(&mut sealed);
            let (mut plain, mut answer) = (Vec::new(), Vec::new());
            let mut opened = || -> io::Result<()> {
                while let Decoded::Bytes(len) = b.open(&sealed, &mut plain, &mut answer)? {
                    sealed.drain(..len);
                }
                Ok(())
            };
            assert!(opened().is_err(), "{which}");
            assert!(plain.is_empty() || plain == b"first", "{which}: {plain:?}");
        }
        let (mut a, mut b) = pair();
        let (mut sealed, mut plain) = (Vec::new(), Vec::new());
        a.seal(b"once", &mut sealed).expect("ready");
        b.open(&sealed, &mut plain, &mut Vec::new()).expect("the first time");
        assert!(b.open(&sealed, &mut plain, &mut Vec::new()).is_err(), "a repetition");
    }
}
