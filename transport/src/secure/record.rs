//! Encryption of the records that follow a handshake, in place.
//!
//! A record has up to [`MAX_RECORD_BYTES`] bytes, a header that is authenticated and not encrypted, and a
//! [`Tag`]. Both ends count the records, so that a record that was dropped, repeated or moved does not open.
//!
//! No nonce is used twice with a key, because that would void all guarantees of AES-GCM. A nonce is the
//! number of a record. A [`Sealer`] increments the number before it seals, can't be cloned, and is the only
//! value that seals with its key. Each handshake makes new keys, one for each direction. After
//! [`REKEY_EVERY`] records both ends rekey with the one nonce that no record has; the numbers continue.
//!
//! Limit of one key: after 2^b blocks of AES, an attacker can distinguish the stream from a random one with a
//! probability of about 2^(2b-129) (Luykx and Paterson, Limits on Authenticated Encryption Use in TLS, 2016).
//! With records of [`MAX_RECORD_BYTES`] bytes that is 2^-57 until the key changes; with those of the TCP
//! driver, of 64 KiB, 2^-65.

use super::{
    SecureError,
    aead::{Aead, MAX_RECORD_BYTES, Tag},
};
use std::fmt;
use zeroize::{Zeroize, Zeroizing};

/// With records of [`MAX_RECORD_BYTES`] bytes (2^16 blocks), one key encrypts at most 2^36 blocks of AES.
const REKEY_EVERY: u64 = 1 << 20;

/// A cipher state as in Noise: a key and the number of the next record. The number does not overflow: 2^64
/// records take centuries.
struct CipherState {
    key: Zeroizing<[u8; 32]>,
    cipher: Aead,
    next: u64,
}

impl CipherState {
    fn new(key: [u8; 32]) -> CipherState {
        let key = Zeroizing::new(key);
        CipherState { cipher: Aead::new(&key), key, next: 0 }
    }

    /// Returns the nonce as Noise defines it for AES-GCM: four zero bytes and the number in big-endian order.
    fn nonce(number: u64) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&number.to_be_bytes());
        nonce
    }

    fn next_nonce(&mut self) -> [u8; 12] {
        if self.next != 0 && self.next.is_multiple_of(REKEY_EVERY) {
            self.rekey();
        }
        self.next += 1;
        CipherState::nonce(self.next - 1)
    }

    /// Noise's REKEY: the encryption of zeros under the nonce 2^64-1, which no record has.
    fn rekey(&mut self) {
        let mut key = [0; 32];
        let _ = self.cipher.seal(&CipherState::nonce(u64::MAX), &[], &mut key);
        self.key.copy_from_slice(&key);
        key.zeroize();
        self.cipher = Aead::new(&self.key);
    }
}

/// Cipher state of the sending direction.
pub struct Sealer(CipherState);

/// Cipher state of the receiving direction: opens the other end's records in the order in which they were
/// sealed.
pub struct Opener(CipherState);

impl Sealer {
    pub(crate) fn new(key: [u8; 32]) -> Sealer {
        Sealer(CipherState::new(key))
    }

    /// Encrypts the next record in place and returns its tag. `header` is authenticated and stays plaintext.
    ///
    /// # Panics
    /// If the record or the header is longer than 1 MiB.
    #[must_use = "without its tag a record can't be opened"]
    pub fn seal(&mut self, header: &[u8], record: &mut [u8]) -> Tag {
        assert!(
            record.len() <= MAX_RECORD_BYTES && header.len() <= MAX_RECORD_BYTES,
            "a record of {} bytes",
            record.len()
        );
        let nonce = self.0.next_nonce();
        self.0.cipher.seal(&nonce, header, record)
    }
}

impl Opener {
    pub(crate) fn new(key: [u8; 32]) -> Opener {
        Opener(CipherState::new(key))
    }

    /// Decrypts the next record in place.
    ///
    /// # Errors
    /// [`SecureError::Record`] when the record, its header, its tag or its position in the sequence is not as
    /// it was sealed. The connection is of no further use then.
    pub fn open(&mut self, header: &[u8], record: &mut [u8], tag: &Tag) -> Result<(), SecureError> {
        let nonce = self.0.next_nonce();
        self.0.cipher.open(&nonce, header, record, tag).map_err(|_| SecureError::Record)
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("next", &self.0.next).finish_non_exhaustive()
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener").field("next", &self.0.next).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Sealer, Opener) {
        (Sealer::new([7; 32]), Opener::new([7; 32]))
    }

    #[test]
    fn what_was_sealed_opens_in_order_and_is_not_readable_before() {
        let (mut sealer, mut opener) = pair();
        for len in [0, 1, 15, 16, 17, 4096, 100_000] {
            let plain: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let mut record = plain.clone();
            let tag = sealer.seal(b"header", &mut record);
            assert!(len < 15 || record != plain);
            opener.open(b"header", &mut record, &tag).expect("as it was sealed");
            assert_eq!(record, plain);
        }
    }

    #[test]
    fn what_was_changed_moved_repeated_or_left_out_does_not_open() {
        type Tamper = fn(&mut [u8], &mut Vec<u8>, &mut Tag);
        let tamperings: [Tamper; 3] =
            [|header, _, _| header[0] ^= 1, |_, record, _| record[50] ^= 0x80, |_, _, tag| tag[15] ^= 1];
        for spoil in tamperings {
            let (mut sealer, mut opener) = pair();
            let (mut header, mut record) = ([1, 2, 3], vec![9; 100]);
            let mut tag = sealer.seal(&header, &mut record);
            spoil(&mut header, &mut record, &mut tag);
            assert!(matches!(opener.open(&header, &mut record, &tag), Err(SecureError::Record)));
        }
        let (mut sealer, mut opener) = pair();
        let mut seal = || {
            let mut record = vec![9; 100];
            let tag = sealer.seal(&[], &mut record);
            (record, tag)
        };
        let (first, second, third) = (seal(), seal(), seal());
        let mut open = |(mut record, tag): (Vec<u8>, Tag)| opener.open(&[], &mut record, &tag);
        open(first.clone()).expect("the first");
        assert!(open(first).is_err(), "repeated");
        assert!(open(second).is_err(), "its place was taken");
        assert!(open(third.clone()).is_err() && open(third).is_err());
    }

    #[test]
    fn keys_change_at_the_same_record_on_both_sides() {
        let (mut sealer, mut opener) = pair();
        let before = *sealer.0.key;
        (sealer.0.next, opener.0.next) = (REKEY_EVERY - 1, REKEY_EVERY - 1);
        for _ in 0..3 {
            let mut record = vec![5; 64];
            let tag = sealer.seal(&[], &mut record);
            opener.open(&[], &mut record, &tag).expect("the same key");
        }
        assert_ne!(*sealer.0.key, before);
        assert_eq!(sealer.0.key, opener.0.key);
    }

    #[test]
    fn formatting_shows_no_key() {
        let (sealer, opener) = pair();
        assert_eq!(format!("{sealer:?} {opener:?}"), "Sealer { next: 0, .. } Opener { next: 0, .. }");
    }
}
