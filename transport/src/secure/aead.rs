//! AES-256-GCM in place, by the fastest implementation that this processor supports.
//!
//! Two crates compute the same function. `graviola` uses the instructions for AES and carry-less products (in
//! vectors of 512 bits where available); `aes-gcm` runs everywhere. Each end chooses when it gets a key.
//! `graviola` needs no compiler but Rust's. It refuses to run without the instructions that it requires, so
//! this module checks for them first.
//!
//! This module does not track nonces; see `record`.

use aes_gcm::{AeadInPlace, Aes256Gcm, KeyInit, Nonce};
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use graviola::aead::AesGcm;

/// Bytes of an authentication tag, by which a sealed record is longer than its content.
pub const TAG_BYTES: usize = 16;

/// Authentication tag of a record.
pub type Tag = [u8; TAG_BYTES];

/// Maximum bytes of one record.
pub(super) const MAX_RECORD_BYTES: usize = 1 << 20;

/// An expanded key. The crates wipe it when it is dropped.
pub(super) enum Aead {
    /// Hardware implementation (`graviola`).
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    Fast(Box<AesGcm>),
    /// Portable implementation (`aes-gcm`).
    Portable(Box<Aes256Gcm>),
}

/// Authentication failure: the ciphertext, the header, the nonce or the tag differs from the sealed one.
#[derive(Debug)]
pub(super) struct AuthenticationFailed;

impl Aead {
    pub(super) fn new(key: &[u8; 32]) -> Aead {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        if has_instructions() {
            return Aead::Fast(Box::new(AesGcm::new(key)));
        }
        Aead::portable(key)
    }

    fn portable(key: &[u8; 32]) -> Aead {
        Aead::Portable(Box::new(Aes256Gcm::new(key.into())))
    }

    /// Encrypts `bytes` in place and authenticates `header` with it.
    ///
    /// The caller never repeats a nonce with the same key. Neither part is longer than [`MAX_RECORD_BYTES`].
    pub(super) fn seal(&self, nonce: &[u8; 12], header: &[u8], bytes: &mut [u8]) -> Tag {
        debug_assert!(bytes.len() <= MAX_RECORD_BYTES && header.len() <= MAX_RECORD_BYTES);
        match self {
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            Aead::Fast(cipher) => {
                let mut tag = Tag::default();
                cipher.encrypt(nonce, header, bytes, &mut tag);
                tag
            }
            Aead::Portable(cipher) => {
                let sealed = cipher.encrypt_in_place_detached(Nonce::from_slice(nonce), header, bytes);
                sealed.expect("a record is shorter than what AES-GCM takes").into()
            }
        }
    }

    /// Decrypts `bytes` in place. After a failure their content is undefined.
    pub(super) fn open(
        &self,
        nonce: &[u8; 12],
        header: &[u8],
        bytes: &mut [u8],
        tag: &Tag,
    ) -> Result<(), AuthenticationFailed> {
        match self {
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            Aead::Fast(cipher) => cipher.decrypt(nonce, header, bytes, tag).map_err(|_| AuthenticationFailed),
            Aead::Portable(cipher) => cipher
                .decrypt_in_place_detached(Nonce::from_slice(nonce), header, bytes, tag.into())
                .map_err(|_| AuthenticationFailed),
        }
    }
}

/// Whether this processor has all instructions that `graviola` requires.
#[cfg(target_arch = "x86_64")]
fn has_instructions() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("aes")
        && has!("pclmulqdq")
        && has!("ssse3")
        && has!("avx")
        && has!("avx2")
        && has!("adx")
        && has!("bmi1")
        && has!("bmi2")
}

/// Whether this processor has all instructions that `graviola` requires.
#[cfg(target_arch = "aarch64")]
fn has_instructions() -> bool {
    use std::arch::is_aarch64_feature_detected as has;
    has!("neon") && has!("aes") && has!("pmull") && has!("sha2")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [7; 32];

    fn from_hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte =
            |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).expect("digits"), 16).expect("digits");
        digits.chunks(2).map(byte).collect()
    }

    #[test]
    fn the_test_case_of_the_specification_comes_out_on_both_ways() {
        // McGrew and Viega, The Galois/Counter Mode of Operation, appendix B, test case 16.
        let key: [u8; 32] = from_hex("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308")
            .try_into()
            .expect("32");
        let nonce: [u8; 12] = from_hex("cafebabefacedbaddecaf888").try_into().expect("12");
        let header = from_hex("feedfacedeadbeeffeedfacedeadbeefabaddad2");
        let plain = from_hex(
            "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72\
             1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
        );
        let sealed = from_hex(
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa\
             8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662",
        );
        for aead in [Aead::new(&key), Aead::portable(&key)] {
            let mut bytes = plain.clone();
            let tag = aead.seal(&nonce, &header, &mut bytes);
            assert_eq!(bytes, sealed);
            assert_eq!(tag[..], from_hex("76fc6ece0f4e1768cddf8853bb2d551b"));
            aead.open(&nonce, &header, &mut bytes, &tag).expect("as it was sealed");
            assert_eq!(bytes, plain);
        }
    }

    #[test]
    fn what_one_way_seals_the_other_one_opens() {
        let (ours, other) = (Aead::new(&KEY), Aead::portable(&KEY));
        let lens = (0..300).chain([511, 1024, 4095, 4096 + 17, 65_536 + 16, MAX_RECORD_BYTES]);
        for (number, len) in lens.enumerate() {
            let plain: Vec<u8> = (0..len).map(|i| (i * 7 + number) as u8).collect();
            let (nonce, header) = ([number as u8; 12], &plain[..number.min(40).min(len)]);
            for (from, to) in [(&ours, &other), (&other, &ours)] {
                let mut bytes = plain.clone();
                let tag = from.seal(&nonce, header, &mut bytes);
                to.open(&nonce, header, &mut bytes, &tag).expect("as it was sealed");
                assert_eq!(bytes, plain, "{len} bytes");
            }
        }
    }

    #[test]
    fn a_bit_that_is_changed_anywhere_is_noticed_on_both_ways() {
        for aead in [Aead::new(&KEY), Aead::portable(&KEY)] {
            let mut sealed = vec![3; 333];
            let tag = aead.seal(&[1; 12], b"header", &mut sealed);
            for at in 0..sealed.len() {
                let mut bytes = sealed.clone();
                bytes[at] ^= 1 << (at % 8);
                assert!(aead.open(&[1; 12], b"header", &mut bytes, &tag).is_err(), "byte {at}");
            }
            for bit in 0..128 {
                let mut tag = tag;
                tag[bit / 8] ^= 1 << (bit % 8);
                assert!(aead.open(&[1; 12], b"header", &mut sealed.clone(), &tag).is_err(), "bit {bit}");
            }
            assert!(aead.open(&[1; 12], b"Header", &mut sealed.clone(), &tag).is_err());
            assert!(aead.open(&[2; 12], b"header", &mut sealed.clone(), &tag).is_err());
            assert!(aead.open(&[1; 12], b"header", &mut sealed, &tag).is_ok());
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_processor_with_aes_in_vectors_is_not_left_to_portable_code() {
        if std::arch::is_x86_feature_detected!("vaes") {
            assert!(matches!(Aead::new(&KEY), Aead::Fast(_)));
        }
    }
}
