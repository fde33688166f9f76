//! Pages of a file, mapped here, and typed places within them.
//!
//! # Safety
//! A [`Mapping`] owns its range of addresses: the kernel chose it and it is unmapped once, on drop. Files are
//! never shortened while somebody may have them mapped: they are unlinked instead. [`Area::at`] checks offset
//! and alignment against the mapping whatever the file says, so an offset out of a damaged file is an error
//! and not a stray access. Records are made of atomics or are read and written through raw pointers, because
//! other processes write to them at the same time.

use rustix::{fd::AsFd, io, mm};
use std::{ffi::c_void, ptr};

/// A shared mapping of a file from its beginning.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: *mut u8,
    len: usize,
}

// SAFETY: the pages belong to the process; access to their bytes is synchronised by those who use them.
unsafe impl Send for Mapping {}
// SAFETY: as above; the value itself does not change.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The first `len` bytes of the file, which must be that long.
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

    pub(crate) fn area(&self) -> Area {
        Area { start: self.start, len: self.len }
    }

    /// Gives the memory behind the file back from this page on, whoever has it mapped. It reads as zeroes from now on.
    pub(super) fn discard(&self, from: usize) {
        let from = from.min(self.len);
        // SAFETY: within our mapping, of a file that is shared. Whoever reads it finds zeroes, as any other process
        // could have written there.
        unsafe {
            let start = self.start.wrapping_add(from).cast();
            let _ = mm::madvise(start, self.len - from, mm::Advice::LinuxRemove);
        }
    }

    /// A record made of atomics at `offset`, when it lies inside and is aligned.
    #[inline]
    pub(super) fn record<T: Atomics>(&self, offset: u64) -> Option<&T> {
        // SAFETY: inside of the mapping and aligned, checked by `at`, and mapped while `self` lives; every
        // bit pattern is a valid `T` and all of it is atomic, which is what implementing `Atomics` promises.
        self.area().at::<T>(offset).map(|place| unsafe { &*place })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us, once; whoever derives addresses from it keeps the value alive.
        let _ = unsafe { mm::munmap(self.start.cast::<c_void>(), self.len) };
    }
}

/// A range of mapped bytes, without owning it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    start: *mut u8,
    len: usize,
}

impl Area {
    /// The address of a `T` at `offset`, when it lies inside and is aligned.
    #[inline]
    pub(crate) fn at<T>(&self, offset: u64) -> Option<*mut T> {
        self.bytes(offset, size_of::<T>()).map(<*mut u8>::cast::<T>).filter(|place| place.is_aligned())
    }

    /// The address of `len` bytes at `offset`, when they lie inside.
    #[inline]
    pub(crate) fn bytes(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let offset = usize::try_from(offset).ok()?;
        (offset <= self.len && len <= self.len - offset).then(|| self.start.wrapping_add(offset))
    }
}

/// Types that consist of atomics only, valid for every bit pattern.
///
/// # Safety
/// That is the promise.
pub(super) unsafe trait Atomics {}
