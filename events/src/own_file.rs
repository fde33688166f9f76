//! Files of this user, opened for appending.
//!
//! Others may be able to write to the folder, as to `/tmp`. So a file is written only if it is a regular file
//! of this user with no other name, and never through a symbolic link.

use rustix::fs::OFlags;
use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

/// Opens a file of this user for appending, and creates it if it does not exist.
///
/// # Errors
/// The system's error, or one that says that the file is not this user's alone.
pub fn open_own(path: &Path) -> io::Result<File> {
    // Opening a pipe without a reader is an error instead of a wait.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new().append(true).create(true).custom_flags(flags.bits() as i32).open(path)?;
    let found = file.metadata()?;
    if found.is_file() && found.nlink() == 1 && found.uid() == rustix::process::geteuid().as_raw() {
        return Ok(file);
    }
    Err(io::Error::other("there is a file of that name that is not this user's alone"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, io::Write};

    #[test]
    fn no_file_is_opened_that_another_user_has_put_in_its_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("precious"), "mine").expect("written");
        std::os::unix::fs::symlink(at("precious"), at("link")).expect("linked");
        std::os::unix::fs::symlink(at("missing"), at("dangling")).expect("linked");
        fs::hard_link(at("precious"), at("second name")).expect("linked");
        for name in ["link", "dangling", "second name"] {
            assert!(open_own(&at(name)).is_err(), "{name}");
        }
        assert!(!at("missing").exists());
        assert_eq!(fs::read_to_string(at("precious")).expect("read"), "mine");
        for _ in 0..2 {
            open_own(&at("own")).expect("this user's").write_all(b"x").expect("written");
        }
        assert_eq!(fs::read_to_string(at("own")).expect("read"), "xx");
    }
}
