//! Words of 64 bits in pages of their own, private or of a file that survives the process.
//!
//! Words of a file are for a reader that comes after the process: the kernel keeps each completed store, also
//! when the process is killed. All of the file's blocks are allocated at the start, so no store meets a full
//! disk. This module gives the words no meaning.
//!
//! # Safety
//! The pages belong to one [`Words`], which only lends them as atomics. Another process can change the words
//! of a file, which atomics allow, and must not shorten the file: the kernel would end this process (SIGBUS).

use super::Mapping;
use rustix::{
    io::Errno,
    process::{Resource, getrlimit},
};
use std::{fs::File, io, slice, sync::atomic::AtomicU64};

/// A range of words, zero when new.
#[derive(Debug)]
pub struct Words {
    mapping: Mapping,
    len: usize,
}

impl Words {
    /// Maps `len` words of memory of this process.
    ///
    /// # Errors
    /// The system's error when it refuses the address range.
    pub fn private(len: usize) -> io::Result<Words> {
        let mapping = Mapping::private(bytes_of(len)?).map_err(io::Error::other)?;
        Ok(Words { mapping, len })
    }

    /// Takes the page faults of the first stores to the first `most` bytes now.
    pub fn populate(&self, most: usize) {
        self.mapping.populate(most);
    }

    /// Allocates the first `len` words of a new, empty file and maps them.
    ///
    /// # Errors
    /// The system's error: the disk is full, a limit or quota is reached, or the file system maps no files.
    pub fn of_file(file: &File, len: usize) -> io::Result<Words> {
        let bytes = bytes_of(len)?;
        allocate(file, bytes as u64)?;
        Ok(Words { mapping: Mapping::of_file(file, bytes)?, len })
    }

    /// Returns the words.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has `len` words, begins at a page, and lives as long as `self`. Its bytes are
        // valid atomics, and this process accesses them by this slice only.
        unsafe { slice::from_raw_parts(self.mapping.as_ptr().cast(), self.len) }
    }
}

fn bytes_of(words: usize) -> io::Result<usize> {
    words.max(1).checked_mul(size_of::<u64>()).ok_or_else(|| Errno::OVERFLOW.into())
}

/// Allocates all blocks of an empty file. A file beyond the limit of file sizes would raise SIGXFSZ, which
/// ends the process.
fn allocate(file: &File, len: u64) -> io::Result<()> {
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < len) {
        return Err(Errno::FBIG.into());
    }
    #[cfg(target_os = "linux")]
    {
        let flags = rustix::fs::FallocateFlags::empty();
        match rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, flags, 0, len)) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            allocated => return Ok(allocated?),
        }
    }
    write_zeros(file, len)
}

/// Allocates the blocks of an empty file by writing them.
fn write_zeros(mut file: &File, len: u64) -> io::Result<()> {
    io::copy(&mut io::Read::take(io::repeat(0), len), &mut file)?;
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::MetadataExt, sync::atomic::Ordering::Relaxed};

    #[test]
    fn words_of_a_file_are_in_the_file_and_have_all_of_its_blocks() {
        let folder = tempfile::tempdir().expect("a folder");
        for is_written in [false, true] {
            let path = folder.path().join(format!("words {is_written}"));
            let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path);
            let file = file.expect("a file");
            let words = if is_written {
                write_zeros(&file, 80_000).expect("room on the disk");
                Words { mapping: Mapping::of_file(&file, 80_000).expect("a mapping"), len: 10_000 }
            } else {
                Words::of_file(&file, 10_000).expect("room on the disk")
            };
            assert!(file.metadata().expect("metadata").blocks() * 512 >= 80_000);
            words.as_slice()[9_999].store(u64::from_le_bytes(*b"the last"), Relaxed);
            drop(words);
            let bytes = fs::read(&path).expect("read");
            assert_eq!((bytes.len(), &bytes[79_992..]), (80_000, &b"the last"[..]));
        }
    }

    #[test]
    fn private_words_are_zero() {
        let words = Words::private(1000).expect("memory for a test");
        assert!(words.as_slice().iter().all(|word| word.load(Relaxed) == 0));
        assert_eq!(words.as_slice().len(), 1000);
        assert!(Words::private(usize::MAX).is_err());
    }

    #[test]
    fn a_file_that_cannot_be_written_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, "").expect("written");
        assert!(Words::of_file(&File::open(&path).expect("a file"), 10).is_err());
    }
}
