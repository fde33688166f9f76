//! Mapped files, and typed records in them.
//!
//! # Safety
//! A [`Mapping`] owns its range of addresses: the kernel chose it, and it is unmapped once, on drop. Files
//! are never shortened while a process may have them mapped; they are unlinked instead. [`MappedRange::at`]
//! checks offset and alignment against the mapping, so an offset in a damaged file is an error and not a
//! stray access. Records consist of atomics, or are read and written through raw pointers, because other
//! processes write to them at the same time.

use rustix::{fd::AsFd, io, mm};
use std::{ffi::c_void, ptr};

/// A shared mapping of a file from its beginning.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: *mut u8,
    len: usize,
}

// SAFETY: the pages belong to the process; the users of their bytes synchronize their accesses.
unsafe impl Send for Mapping {}
// SAFETY: as above; the value itself does not change.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file, which must be that long.
    pub(crate) fn of_file(fd: impl AsFd, len: usize) -> io::Result<Mapping> {
        if (rustix::fs::fstat(&fd)?.st_size as u64) < len as u64 {
            return Err(io::Errno::INVAL);
        }
        let prot = mm::ProtFlags::READ | mm::ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe { mm::mmap(ptr::null_mut(), len, prot, mm::MapFlags::SHARED, fd, 0)? };
        // SAFETY: advice about the mapping just made; it changes no contents, and failing only makes dumps
        // larger or lets a child inherit the pages.
        unsafe {
            let _ = mm::madvise(start, len, mm::Advice::LinuxDontDump);
        }
        Ok(Mapping { start: start.cast(), len })
    }

    pub(crate) fn range(&self) -> MappedRange {
        MappedRange { start: self.start, len: self.len }
    }

    /// Releases the memory of the file from this offset on, for all processes that have it mapped. It reads
    /// as zeros from then on.
    pub(super) fn discard(&self, from: usize) {
        let from = from.min(self.len);
        // SAFETY: within our mapping of a shared file. Readers find zeros, as if another process had written
        // them.
        unsafe {
            let start = self.start.wrapping_add(from).cast();
            let _ = mm::madvise(start, self.len - from, mm::Advice::LinuxRemove);
        }
    }

    /// Replaces the file by private pages that read as zeros. The file's memory is no longer held by this
    /// mapping, and is not changed. Where the system refuses, the mapping stays as it is.
    pub(super) fn detach(&self) {
        let prot = mm::ProtFlags::READ | mm::ProtFlags::WRITE;
        let flags = mm::MapFlags::PRIVATE | mm::MapFlags::FIXED | mm::MapFlags::NORESERVE;
        // SAFETY: replaces exactly our mapping, whose addresses stay valid. Readers find zeros, as if another
        // process had written them, and nobody reads what writers write. The advice changes no contents.
        unsafe {
            if mm::mmap_anonymous(self.start.cast(), self.len, prot, flags).is_ok() {
                let _ = mm::madvise(self.start.cast(), self.len, mm::Advice::LinuxDontDump);
            }
        }
    }

    /// Returns a record of atomics at `offset`, if it is inside and aligned.
    #[inline]
    pub(super) fn record<T: Atomics>(&self, offset: u64) -> Option<&T> {
        // SAFETY: inside of the mapping and aligned, checked by `at`, and mapped while `self` lives. Every
        // bit pattern is a valid `T` and all of it is atomic, by the promise of `Atomics`.
        self.range().at::<T>(offset).map(|place| unsafe { &*place })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us, once. The users of addresses from the mapping keep the value alive.
        let _ = unsafe { mm::munmap(self.start.cast::<c_void>(), self.len) };
    }
}

/// A range of mapped bytes that it does not own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MappedRange {
    start: *mut u8,
    len: usize,
}

impl MappedRange {
    /// Returns the address of a `T` at `offset`, if it is inside and aligned.
    #[inline]
    pub(crate) fn at<T>(&self, offset: u64) -> Option<*mut T> {
        self.bytes(offset, size_of::<T>()).map(<*mut u8>::cast::<T>).filter(|place| place.is_aligned())
    }

    /// Returns the address of `len` bytes at `offset`, if they are inside.
    #[inline]
    pub(crate) fn bytes(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let offset = usize::try_from(offset).ok()?;
        (offset <= self.len && len <= self.len - offset).then(|| self.start.wrapping_add(offset))
    }
}

/// Types that consist of atomics only.
///
/// # Safety
/// Every bit pattern must be valid, and every member an atomic.
pub(super) unsafe trait Atomics {}
