//! Files of this user, opened for appending or created.
//!
//! Others may be able to write to the folder, as to `/tmp`. So a file is written only if it is a regular file
//! of this user with no other name, and never through a symbolic link.

use rustix::fs::OFlags;
use std::{
    fs::{self, File, Metadata, OpenOptions},
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
    if is_own(&file.metadata()?) { Ok(file) } else { Err(not_own()) }
}

/// Creates a file for reading and writing, in the place of an earlier file of this user.
///
/// # Errors
/// The system's error, or one that says that the earlier file is not this user's alone.
pub fn create_own(path: &Path) -> io::Result<File> {
    let create = || OpenOptions::new().read(true).write(true).create_new(true).open(path);
    match create() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if !is_own(&fs::symlink_metadata(path)?) {
                return Err(not_own());
            }
            fs::remove_file(path)?;
            create()
        }
        created => created,
    }
}

/// Whether a file is a regular file of this user with no other name.
fn is_own(found: &Metadata) -> bool {
    found.is_file() && found.nlink() == 1 && found.uid() == rustix::process::geteuid().as_raw()
}

fn not_own() -> io::Error {
    io::Error::other("there is a file of that name that is not this user's alone")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

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
            assert!(create_own(&at(name)).is_err(), "{name}");
        }
        assert!(!at("missing").exists());
        assert_eq!(fs::read_to_string(at("precious")).expect("read"), "mine");
        for _ in 0..2 {
            open_own(&at("own")).expect("this user's").write_all(b"x").expect("written");
        }
        assert_eq!(fs::read_to_string(at("own")).expect("read"), "xx");
    }

    #[test]
    fn a_created_file_takes_the_place_of_an_earlier_one_whose_readers_keep_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("own");
        fs::write(&path, "earlier").expect("written");
        let mut earlier = File::open(&path).expect("opened");
        create_own(&path).expect("this user's").write_all(b"new").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("read"), "new");
        let mut text = String::new();
        earlier.read_to_string(&mut text).expect("read");
        assert_eq!(text, "earlier");
    }
}
