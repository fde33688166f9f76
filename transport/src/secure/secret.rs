//! The shared secret of a job, which every rank of the job knows.

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use snow::{
    params::HashChoice,
    resolvers::{CryptoResolver, DefaultResolver},
};
use std::{
    fmt,
    fs::File,
    io::{Read, Write},
    path::{Path, PathBuf},
};
use thiserror::Error;
use zeroize::Zeroizing;

/// The 32-byte shared secret of a job. It is wiped when dropped, and no formatting shows it.
#[derive(Clone)]
pub struct Secret(Zeroizing<[u8; Secret::BYTES]>);

/// Reason why a secret is missing or unusable. The error never contains the secret.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The text is not 64 hexadecimal digits.
    #[error("{found} characters, not 64 hexadecimal digits; `openssl rand -hex 32` makes some")]
    Digits {
        /// Characters found.
        found: usize,
    },
    /// The file can't be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Other users may read or change the file, or another user owns it.
    #[error("{path}: {what}; run: chmod 600 {path}")]
    Exposed {
        /// The file.
        path: PathBuf,
        /// The reason.
        what: String,
    },
    /// The file does not contain a secret.
    #[error("{path}: {why}")]
    Content {
        /// The file.
        path: PathBuf,
        /// The error in its content.
        why: Box<SecretError>,
    },
    /// The cryptographic library lacks SHA-256.
    #[error("the cryptographic library lacks SHA-256")]
    Derivation,
    /// The system's random source failed.
    #[error("the system's random source failed: {0}")]
    Random(getrandom::Error),
}

impl Secret {
    /// Bytes of a secret.
    pub const BYTES: usize = 32;

    /// Generates a random secret.
    ///
    /// # Errors
    /// [`SecretError::Random`] when the system's random source fails.
    pub fn generate() -> Result<Secret, SecretError> {
        let mut secret = Secret(Zeroizing::new([0; Secret::BYTES]));
        getrandom::fill(secret.0.as_mut_slice()).map_err(SecretError::Random)?;
        Ok(secret)
    }

    /// Creates a secret from its bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Secret::BYTES]) -> Secret {
        Secret(Zeroizing::new(bytes))
    }

    /// Parses 64 hexadecimal digits; white space around them is ignored.
    ///
    /// # Errors
    /// [`SecretError::Digits`] for any other text.
    pub fn from_hex(text: &str) -> Result<Secret, SecretError> {
        let digits = text.trim().as_bytes();
        let wrong = || SecretError::Digits { found: text.trim().chars().count() };
        if digits.len() != 2 * Secret::BYTES {
            return Err(wrong());
        }
        let value = |digit: u8| char::from(digit).to_digit(16).ok_or_else(wrong);
        let mut secret = Secret(Zeroizing::new([0; Secret::BYTES]));
        for (byte, pair) in secret.0.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = (value(pair[0])? << 4 | value(pair[1])?) as u8;
        }
        Ok(secret)
    }

    /// Returns the secret as 64 hexadecimal digits.
    #[must_use]
    pub fn to_hex(&self) -> Zeroizing<String> {
        let digit = |value: u8| char::from_digit(u32::from(value), 16).expect("below 16");
        Zeroizing::new(self.0.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect())
    }

    /// Reads the secret from a file of 64 hexadecimal digits.
    ///
    /// The file must belong to this user and be readable by nobody else (mode 0600).
    ///
    /// # Errors
    /// [`SecretError::File`], [`SecretError::Exposed`] or [`SecretError::Content`]; each names the file.
    pub fn from_file(path: &Path) -> Result<Secret, SecretError> {
        let failed = |source: std::io::Error| SecretError::File { path: path.to_owned(), source };
        // `fstat` and the read use the same descriptor, so both see the same file. NONBLOCK keeps `open` from
        // waiting for the writer of a pipe.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = open(path, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
        let about = fstat(&file).map_err(|errno| failed(errno.into()))?;
        let exposed = |what: String| SecretError::Exposed { path: path.to_owned(), what };
        if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
            return Err(failed(std::io::Error::other("not a regular file")));
        }
        if about.st_uid != rustix::process::geteuid().as_raw() {
            return Err(exposed(format!("its owner is user {} and not us", about.st_uid)));
        }
        let mode = about.st_mode & 0o777;
        if mode & 0o077 != 0 {
            return Err(exposed(format!("others may use it (mode {mode:04o})")));
        }
        let mut text = Zeroizing::new(String::with_capacity(256));
        let most = 200;
        File::from(file).take(most).read_to_string(&mut text).map_err(failed)?;
        Secret::from_hex(&text)
            .map_err(|why| SecretError::Content { path: path.to_owned(), why: Box::new(why) })
    }

    /// Writes the secret to a new file of mode 0600.
    ///
    /// # Errors
    /// [`SecretError::File`], also when the file exists.
    pub fn to_new_file(&self, path: &Path) -> Result<(), SecretError> {
        let failed = |source: std::io::Error| SecretError::File { path: path.to_owned(), source };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| failed(errno.into()))?;
        let text = Zeroizing::new(format!("{}\n", *self.to_hex()));
        File::from(file).write_all(text.as_bytes()).map_err(failed)
    }

    /// Returns a copy of the bytes, which is wiped when dropped.
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<[u8; Secret::BYTES]> {
        self.0.clone()
    }

    /// Derives a secret from this one and a public value, as Noise's HKDF does with SHA-256.
    ///
    /// # Errors
    /// [`SecretError::Derivation`] if the cryptographic library lacks SHA-256.
    pub fn derive(&self, public: &[u8]) -> Result<Secret, SecretError> {
        let hash = DefaultResolver.resolve_hash(&HashChoice::SHA256);
        let mut hash = hash.ok_or(SecretError::Derivation)?;
        let mut derived = Secret(Zeroizing::new([0; Secret::BYTES]));
        let input = [b"tbccl: a secret of one communicator".as_slice(), public].concat();
        hash.hkdf(self.bytes(), &input, 1, derived.0.as_mut_slice(), &mut [], &mut []);
        Ok(derived)
    }

    pub(crate) fn bytes(&self) -> &[u8; Secret::BYTES] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    #[test]
    fn a_secret_goes_through_digits_and_shows_in_no_other_way() {
        let secret = Secret::generate().expect("random numbers");
        let digits = secret.to_hex();
        assert_eq!(digits.len(), 64);
        let again = Secret::from_hex(&format!(" {}\n", digits.to_uppercase())).expect("the same digits");
        assert_eq!(again.0, secret.0);
        assert_eq!(format!("{secret:?}"), "Secret");
        assert_ne!(Secret::generate().expect("random numbers").0, secret.0);
    }

    #[test]
    fn a_derived_secret_depends_on_the_secret_and_on_the_public_value() {
        let [one, two] = [1, 2].map(|byte| Secret::from_bytes([byte; Secret::BYTES]));
        let derived = |secret: &Secret, public: &[u8]| secret.derive(public).expect("SHA-256").0;
        // HKDF of RFC 5869 by another implementation, with the secret as the salt.
        let known = Secret::from_hex("eeea4b1564f94b34f2ec8b0a0f69a5df9f87dbca5a026195acd915ff1e4105b1")
            .expect("digits");
        assert_eq!(derived(&one, b"public"), known.0);
        assert_ne!(derived(&one, b"public"), derived(&two, b"public"));
        assert_ne!(derived(&one, b"public"), derived(&one, b"Public"));
    }

    #[test]
    fn other_text_is_no_secret_and_is_not_shown() {
        let almost = "0123456789abcdef".repeat(4);
        for text in ["", "hunter2", &almost[1..], &format!("{almost}0"), &almost.replace('9', "g")] {
            let error = Secret::from_hex(text).expect_err(text).to_string();
            assert!(error.contains("64 hexadecimal digits"), "{error}");
            assert!(text.is_empty() || !error.contains(text), "{error}");
        }
    }

    #[test]
    fn a_file_is_read_only_if_nobody_else_can() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        let secret = Secret::generate().expect("random numbers");
        secret.to_new_file(&path).expect("a new file");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(Secret::from_file(&path).expect("readable").0, secret.0);
        assert!(matches!(secret.to_new_file(&path), Err(SecretError::File { .. })), "it is there already");
        for mode in [0o640, 0o604, 0o660, 0o602, 0o610] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("ours");
            let error = Secret::from_file(&path).expect_err("others may use it").to_string();
            assert!(error.contains("chmod 600") && error.contains(&format!("{mode:04o}")), "{error}");
        }
    }

    #[test]
    fn what_is_no_secret_file_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        let refused = |path: &Path| {
            let error = Secret::from_file(path).expect_err("no secret").to_string();
            assert!(error.contains(&path.display().to_string()), "{error}");
        };
        refused(&path);
        refused(folder.path());
        fs::write(&path, "x".repeat(1 << 20)).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
        refused(&path);
        fs::write(&path, [0xff; 64]).expect("written");
        refused(&path);
    }

    #[test]
    fn a_pipe_in_the_place_of_the_file_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg("-m").arg("600").arg(&path).status();
        assert!(made.expect("mkfifo").success());
        assert!(matches!(Secret::from_file(&path), Err(SecretError::File { .. })));
    }
}
