//! Pages of memory, private or shared with other processes.
//!
//! Shared pages have no name. On Linux they are a memfd, elsewhere a POSIX shared-memory object that is
//! unlinked right after its creation, so nothing is left behind however the processes end.
//!
//! A mapping of [`HUGE_PAGE_BYTES`] or more begins at a multiple of it, so that one entry of the page tables
//! can map a huge page in every process that maps the object.
//!
//! # Safety
//! A [`Mapping`] owns its pages: it maps them once, at an address that the kernel chooses, and unmaps them
//! when dropped, except in a forked child. Every value that holds an address inside a mapping keeps the
//! mapping alive (`Arc<Mapping>`).

use crate::{TransportError, forks::Origin};
use rustix::{
    fd::{AsFd, OwnedFd},
    fs, io, mm,
};
use std::ptr::{self, NonNull};

/// Bytes of a huge page, which one entry of the TLB covers, on processors with pages of 4 KiB.
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bytes that are replaced by huge pages at a time.
#[cfg(all(target_os = "linux", not(miri)))]
const COLLAPSED_BYTES: usize = 64 << 20;

/// A range of pages, zero when new. Pages take up memory when they are first written.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    origin: Origin,
}

// SAFETY: the pages belong to the process, not to a thread; users synchronize access to their bytes.
unsafe impl Send for Mapping {}
// SAFETY: as above; `Mapping` itself is immutable.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps new pages that only this process sees.
    ///
    /// # Errors
    /// [`TransportError::Memory`] when the system refuses the address range.
    pub fn private(len: usize) -> Result<Mapping, TransportError> {
        // Miri knows no other flags than the first one.
        let reserve = if cfg!(miri) { mm::MapFlags::empty() } else { mm::MapFlags::NORESERVE };
        let flags = mm::MapFlags::PRIVATE | reserve;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            mm::mmap_anonymous(ptr::null_mut(), len, mm::ProtFlags::READ | mm::ProtFlags::WRITE, flags)
        };
        Mapping::mapped(start, len)
    }

    /// Maps private pages that a device can register as one region.
    ///
    /// The pages cross an address that is a multiple of `boundary` only if they are longer than `boundary`;
    /// in that case they begin at such an address. `boundary` is a multiple of a page.
    ///
    /// # Errors
    /// [`TransportError::Memory`] when the system refuses the address range, which is `boundary` bytes longer
    /// for a moment.
    pub fn private_for_device(len: usize, boundary: u64) -> Result<Mapping, TransportError> {
        Mapping::map_at_boundary(len, 0, boundary)
    }

    /// Maps new pages that other processes can map from the descriptor.
    ///
    /// The pages from `from` on (a multiple of a page) are placed in this process as by
    /// [`Mapping::private_for_device`].
    ///
    /// # Errors
    /// The same as [`Mapping::private_for_device`] and [`Mapping::shared`].
    pub fn shared_for_device(
        len: usize,
        from: usize,
        boundary: u64,
    ) -> Result<(Mapping, OwnedFd), TransportError> {
        let fd = new_object(len)?;
        let mapping = Mapping::map_at_boundary(len, from, boundary)?.of_object(&fd)?;
        Ok((mapping, fd))
    }

    /// Maps private pages of which those from `from` on are placed as by [`Mapping::private_for_device`].
    fn map_at_boundary(len: usize, from: usize, boundary: u64) -> Result<Mapping, TransportError> {
        let page = rustix::param::page_size();
        let (len, boundary) = (len.next_multiple_of(page), boundary as usize);
        assert!(
            from < len && from.is_multiple_of(page) && boundary.is_multiple_of(page),
            "whole pages, and not none"
        );
        let reserved = Mapping::private(len.saturating_add(boundary).saturating_add(HUGE_PAGE_BYTES))?;
        let start = reserved.as_ptr() as usize;
        let aligned = if len < HUGE_PAGE_BYTES { start } else { start.next_multiple_of(HUGE_PAGE_BYTES) };
        let first = aligned + from;
        let to_boundary = first.next_multiple_of(boundary) - first;
        let skipped = if len - from <= to_boundary { 0 } else { to_boundary };
        Ok(reserved.trimmed(aligned - start + skipped, len))
    }

    /// Replaces new private pages, of which no other value has an address, by those of an object that has as
    /// many.
    fn of_object(self, object: impl AsFd) -> Result<Mapping, TransportError> {
        let (prot, flags) =
            (mm::ProtFlags::READ | mm::ProtFlags::WRITE, mm::MapFlags::SHARED | mm::MapFlags::FIXED);
        // SAFETY: `self` has been taken over, so no other value has an address of its pages. It owns the new
        // ones as it owned those. The object reaches into the last page at least, and no process shortens it:
        // it is sealed, or of a system without seals, where tbccl never does.
        let mapped = unsafe { mm::mmap(self.as_ptr().cast(), self.len, prot, flags, object, 0) };
        mapped.map_err(|e| creation_error(e, self.len))?;
        self.exclude_from_core_dumps();
        Ok(self)
    }

    /// Keeps the `len` bytes from `skipped` on and unmaps the others. All are whole pages.
    fn trimmed(self, skipped: usize, len: usize) -> Mapping {
        let whole = std::mem::ManuallyDrop::new(self);
        let kept = whole.as_ptr().wrapping_add(skipped);
        let parts = [(whole.as_ptr(), skipped), (kept.wrapping_add(len), whole.len - skipped - len)];
        for (start, unwanted) in parts.into_iter().filter(|(_, unwanted)| *unwanted > 0) {
            // SAFETY: the range is part of the mapping that this function has taken over. No other value has
            // an address of it yet, and the kept part lies outside it.
            let unmapped = unsafe { mm::munmap(start.cast(), unwanted) };
            debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
        }
        Mapping { start: NonNull::new(kept).expect("within a mapping"), len, origin: whole.origin }
    }

    /// Maps new pages that other processes can map from the descriptor.
    ///
    /// # Errors
    /// [`TransportError::Memory`] when the system refuses; the error names the remedy.
    pub fn shared(len: usize) -> Result<(Mapping, OwnedFd), TransportError> {
        let fd = new_object(len)?;
        let mapping = Mapping::from_descriptor(fd.as_fd(), len)?;
        Ok((mapping, fd))
    }

    /// Maps pages that another process has created.
    ///
    /// # Errors
    /// [`TransportError::Memory`] when the object is shorter than `len`, may be shortened (Linux), or cannot
    /// be mapped.
    pub fn from_descriptor(fd: impl AsFd, len: usize) -> Result<Mapping, TransportError> {
        let size = fs::fstat(&fd).map_err(|e| creation_error(e, len))?.st_size;
        if (size as u64) < len as u64 {
            return Err(creation_error(io::Errno::INVAL, len));
        }
        if !has_fixed_length(&fd) {
            return Err(creation_error(io::Errno::PERM, len));
        }
        Mapping::map_at_boundary(len, 0, HUGE_PAGE_BYTES as u64)?.of_object(fd)
    }

    /// Maps the first `len` bytes of a file, which has them and which no process shortens.
    pub(super) fn of_file(file: impl AsFd, len: usize) -> std::io::Result<Mapping> {
        let prot = mm::ProtFlags::READ | mm::ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe { mm::mmap(ptr::null_mut(), len, prot, mm::MapFlags::SHARED, file, 0) }?;
        let mapping = Mapping::mapped(Ok(start), len).map_err(std::io::Error::other)?;
        mapping.exclude_from_core_dumps();
        Ok(mapping)
    }

    fn mapped(start: io::Result<*mut std::ffi::c_void>, len: usize) -> Result<Mapping, TransportError> {
        let start = start.map_err(|e| TransportError::Memory {
            what: format!("mapping {len} bytes of address space"),
            source: e.into(),
            remedy:
                "raise the limit on address space (ulimit -v) or make the slab smaller with TBCCL_SLAB_BYTES"
                    .into(),
        })?;
        let start = NonNull::new(start.cast()).expect("the kernel never maps address 0 unasked");
        Ok(Mapping { start, len, origin: Origin::here() })
    }

    /// Returns the process that mapped the pages.
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the address of the first byte, aligned to a page.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns false: a mapping has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes the page faults of the first stores to the first `most` bytes now, where the system can do that
    /// (Linux 5.14).
    pub(super) fn populate(&self, most: usize) {
        #[cfg(all(target_os = "linux", not(miri)))]
        // SAFETY: the range is within this mapping; the advice changes no contents. After a failure the
        // stores take the faults.
        let _ =
            unsafe { mm::madvise(self.as_ptr().cast(), self.len.min(most), mm::Advice::LinuxPopulateWrite) };
        #[cfg(not(all(target_os = "linux", not(miri))))]
        let _ = most;
    }

    /// Replaces the pages of a range by huge pages, as far as the system can, and makes them where there are
    /// none yet. Contents stay.
    ///
    /// The range consists of whole huge pages. A shared object gets huge pages from Linux 6.1 on unless
    /// `/sys/kernel/mm/transparent_hugepage/shmem_enabled` says `deny`; private pages become huge when they
    /// are first stored to, unless `.../enabled` says `never`.
    pub(super) fn make_huge(&self, range: std::ops::Range<usize>, is_shared: bool) {
        let start = self.as_ptr().wrapping_add(range.start);
        assert!(range.start <= range.end && range.end <= self.len, "a range of the mapping");
        assert!(start.addr().is_multiple_of(HUGE_PAGE_BYTES), "whole huge pages");
        #[cfg(all(target_os = "linux", not(miri)))]
        if is_shared {
            // Each advice waits for every core to give up its list of new pages.
            for at in (0..range.len()).step_by(COLLAPSED_BYTES) {
                let len = COLLAPSED_BYTES.min(range.len() - at);
                let first_page = start.wrapping_add(at);
                let has_pages = (0..len).step_by(HUGE_PAGE_BYTES).all(|page| {
                    let byte = first_page.wrapping_add(page).cast();
                    // The kernel makes no huge page where there is no page at all.
                    // SAFETY: the byte is within this mapping; the advice changes no contents.
                    unsafe { mm::madvise(byte, 1, mm::Advice::LinuxPopulateWrite) }.is_ok()
                });
                // SAFETY: likewise for the range.
                if !has_pages || unsafe { libc::madvise(first_page.cast(), len, libc::MADV_COLLAPSE) } != 0 {
                    return;
                }
            }
        } else {
            // SAFETY: the range is within this mapping; the advice changes no contents.
            let _ = unsafe { mm::madvise(start.cast(), range.len(), mm::Advice::LinuxHugepage) };
        }
        #[cfg(not(all(target_os = "linux", not(miri))))]
        let _ = is_shared;
    }

    fn exclude_from_core_dumps(&self) {
        #[cfg(all(target_os = "linux", not(miri)))]
        // SAFETY: the range is this mapping; the advice changes no contents. Failure only makes dumps larger.
        let _ = unsafe { mm::madvise(self.as_ptr().cast(), self.len, mm::Advice::LinuxDontDump) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A child may lack the pages (`MADV_DONTFORK`), and have other ones at their addresses.
        if !self.origin.is_here() {
            return;
        }
        // SAFETY: this value mapped the range, once, and every user of its bytes keeps this value alive.
        let unmapped = unsafe { mm::munmap(self.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
    }
}

fn creation_error(errno: io::Errno, len: usize) -> TransportError {
    let remedy = match errno {
        io::Errno::MFILE | io::Errno::NFILE => "raise the limit on open files (ulimit -n)".to_owned(),
        io::Errno::NOSPC | io::Errno::NOMEM => {
            "free memory, or use fewer ranks or smaller buffers".to_owned()
        }
        _ => "shared memory objects must be allowed for this user and container".to_owned(),
    };
    TransportError::Memory {
        what: format!("making {len} bytes of shared memory"),
        source: errno.into(),
        remedy,
    }
}

/// Creates a shared object of `len` zero bytes with a fixed length.
fn new_object(len: usize) -> Result<OwnedFd, TransportError> {
    check_file_size_limit(len)?;
    let fd = anonymous_shared_object().map_err(|e| creation_error(e, len))?;
    fs::ftruncate(&fd, len as u64).map_err(|e| creation_error(e, len))?;
    seal(&fd).map_err(|e| creation_error(e, len))?;
    Ok(fd)
}

/// Checks the file size limit: `ftruncate` beyond it raises SIGXFSZ, which would end the process silently.
fn check_file_size_limit(len: usize) -> Result<(), TransportError> {
    match rustix::process::getrlimit(rustix::process::Resource::Fsize).current {
        Some(limit) if limit < len as u64 => Err(TransportError::Memory {
            what: format!("making {len} bytes of shared memory under a file-size limit of {limit} bytes"),
            source: io::Errno::FBIG.into(),
            remedy: "raise it (ulimit -f unlimited) or make the slab smaller with TBCCL_SLAB_BYTES".into(),
        }),
        _ => Ok(()),
    }
}

#[cfg(target_os = "linux")]
fn anonymous_shared_object() -> io::Result<OwnedFd> {
    fs::memfd_create("tbccl", fs::MemfdFlags::CLOEXEC | fs::MemfdFlags::ALLOW_SEALING)
}

/// Fixes the object's length: a process that has it mapped may access all of it, no matter what other
/// processes do with the descriptor.
#[cfg(target_os = "linux")]
fn seal(fd: &OwnedFd) -> io::Result<()> {
    fs::fcntl_add_seals(fd, fs::SealFlags::SHRINK | fs::SealFlags::GROW | fs::SealFlags::SEAL)
}

/// Whether no process can shorten the object.
#[cfg(target_os = "linux")]
fn has_fixed_length(fd: impl AsFd) -> bool {
    fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(fs::SealFlags::SHRINK))
}

#[cfg(not(target_os = "linux"))]
fn has_fixed_length(_fd: impl AsFd) -> bool {
    true
}

#[cfg(not(target_os = "linux"))]
fn seal(_fd: &OwnedFd) -> io::Result<()> {
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn anonymous_shared_object() -> io::Result<OwnedFd> {
    use rustix::shm;
    use std::sync::atomic::{AtomicU32, Ordering};
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    loop {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("/tbccl.{}.{serial}", rustix::process::getpid().as_raw_nonzero());
        let flags = shm::OFlags::CREATE | shm::OFlags::EXCL | shm::OFlags::RDWR;
        match shm::open(&*name, flags, fs::Mode::RUSR | fs::Mode::WUSR) {
            Err(io::Errno::EXIST) => {}
            Err(e) => return Err(e),
            Ok(fd) => {
                shm::unlink(&*name)?;
                return Ok(fd);
            }
        }
    }
}

#[cfg(test)]
mod line_tests {
    use super::*;

    #[test]
    fn mappings_lie_private_for_device_or_begin_at_one() {
        let boundary = 1 << 20;
        let mut held = Vec::new();
        for len in [4096, 300_000, 1 << 20, (1 << 20) + 1, 5 << 20].into_iter().cycle().take(100) {
            let mapping = Mapping::private_for_device(len, boundary).expect("addresses");
            let (first, last) = (mapping.as_ptr() as u64, mapping.as_ptr() as u64 + len as u64 - 1);
            assert!(
                first / boundary == last / boundary
                    || (len as u64 > boundary && first.is_multiple_of(boundary))
            );
            assert!(mapping.len() >= len);
            // SAFETY: the mapping is at least `len` bytes long, and no other code uses it.
            unsafe {
                mapping.as_ptr().write(1);
                mapping.as_ptr().add(len - 1).write(1);
            }
            held.push(mapping);
        }
    }

    #[test]
    fn what_is_shared_lies_private_for_device_from_a_place_on_and_others_see_it() {
        let (boundary, from) = (1 << 20, 3 * 16384);
        let mut held = Vec::new();
        for len in [16384, 1 << 19, 1 << 20, (1 << 20) + 16384].into_iter().cycle().take(60) {
            let (ours, object) = Mapping::shared_for_device(from + len, from, boundary).expect("memory");
            let theirs = Mapping::from_descriptor(&object, from + len).expect("it can be mapped twice");
            let (first, last) =
                (ours.as_ptr() as u64 + from as u64, ours.as_ptr() as u64 + (from + len) as u64 - 1);
            assert!(
                first / boundary == last / boundary
                    || (len as u64 > boundary && first.is_multiple_of(boundary))
            );
            assert_eq!(ours.len(), from + len);
            // SAFETY: both mappings are that long, and no other code uses them.
            unsafe {
                ours.as_ptr().add(from + len - 1).write(7);
                ours.as_ptr().write(8);
                assert_eq!(theirs.as_ptr().add(from + len - 1).read(), 7);
                assert_eq!(theirs.as_ptr().read(), 8);
            }
            held.push((ours, theirs));
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn nobody_can_shorten_what_others_have_mapped() {
        let (mapping, fd) = Mapping::shared(1 << 16).expect("memory for a test");
        assert_eq!(fs::ftruncate(&fd, 0), Err(io::Errno::PERM));
        assert_eq!(mapping.len(), 1 << 16);
    }

    #[test]
    fn an_object_that_its_owner_could_shorten_is_refused() {
        let fd = anonymous_shared_object().expect("memory for a test");
        fs::ftruncate(&fd, 1 << 16).expect("memory for a test");
        assert!(matches!(Mapping::from_descriptor(&fd, 1 << 16), Err(TransportError::Memory { .. })));
        seal(&fd).expect("it has no seals yet");
        Mapping::from_descriptor(&fd, 1 << 16).expect("its length is fixed now");
    }
}
