//! Liveness of processes: locks that the kernel releases when a process ends, and their handling at a fork.
//!
//! The lock is on the open file description, so it ends with the last descriptor of that description. A
//! forked child has such a descriptor, too. The child must close it at once, because its parent would seem to
//! live for as long as the child does otherwise.
//!
//! # Safety
//! `fcntl` gets descriptors that are open during the call and a `flock` that outlives it. The handler that
//! runs in a forked child calls only `close`, which is allowed there, and touches only atomics.

use rustix::{
    fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    io,
};
use std::sync::{
    Once,
    atomic::{
        AtomicI32, AtomicU32,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
};

/// Descriptors whose locks show that this process lives; -1 for free entries.
static LOCKED_FDS: [AtomicI32; 1024] = [const { AtomicI32::new(-1) }; 1024];
/// Forks between the first process and this one.
static FORK_EPOCH: AtomicU32 = AtomicU32::new(0);

/// Returns the number of forks between the first process and this one. Objects of another epoch belong to the
/// parent.
#[inline]
pub(crate) fn fork_epoch() -> u32 {
    FORK_EPOCH.load(Relaxed)
}

/// Makes forked children close the locked descriptors. Called before the first descriptor is locked.
pub(crate) fn watch_forks() {
    extern "C" fn in_child() {
        FORK_EPOCH.fetch_add(1, Relaxed);
        for life in &LOCKED_FDS {
            let fd = life.swap(-1, AcqRel);
            if fd >= 0 {
                // SAFETY: the parent's descriptor. Nobody in this child uses it: objects of another epoch
                // refuse every call and are never dropped.
                unsafe { libc::close(fd) };
            }
        }
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler may run in a child of a process with threads (see the module), and lives for
        // ever.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// A lock on a file that ends with this process.
#[derive(Debug)]
pub(super) struct LivenessLock {
    fd: Option<OwnedFd>,
    index: usize,
}

impl LivenessLock {
    /// Locks the file. `BUSY` if another process has locked it.
    pub(super) fn begin(fd: OwnedFd) -> io::Result<LivenessLock> {
        watch_forks();
        lock(fd.as_fd(), libc::F_OFD_SETLK)?;
        let raw = fd.as_raw_fd();
        let free = |life: &AtomicI32| life.compare_exchange(-1, raw, AcqRel, Acquire).is_ok();
        let index = LOCKED_FDS.iter().position(free).ok_or(io::Errno::MFILE)?;
        Ok(LivenessLock { fd: Some(fd), index })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("open until dropped").as_fd()
    }
}

impl Drop for LivenessLock {
    fn drop(&mut self) {
        let fd = self.fd.take().expect("dropped once");
        let ours = LOCKED_FDS[self.index].compare_exchange(fd.as_raw_fd(), -1, Release, Relaxed).is_ok();
        if !ours {
            // Closed already in a forked child. The number may be in use for another file.
            std::mem::forget(fd);
        }
    }
}

/// Whether a living process has locked this file.
pub(super) fn is_locked(fd: BorrowedFd<'_>) -> bool {
    let mut range = whole_file();
    // SAFETY: `range` is a `flock` that the kernel fills in.
    let asked = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut range) };
    asked != 0 || i32::from(range.l_type) != libc::F_UNLCK
}

/// Waits for the lock of a file. Closing the descriptor frees the lock.
pub(super) fn lock_and_wait(fd: BorrowedFd<'_>) -> io::Result<()> {
    loop {
        match lock(fd, libc::F_OFD_SETLKW) {
            Err(io::Errno::INTR) => {}
            other => return other,
        }
    }
}

fn lock(fd: BorrowedFd<'_>, how: libc::c_int) -> io::Result<()> {
    let range = whole_file();
    // SAFETY: `range` is a `flock` that the kernel reads.
    match unsafe { libc::fcntl(fd.as_raw_fd(), how, &raw const range) } {
        0 => Ok(()),
        _ => Err(match io::Errno::from_io_error(&std::io::Error::last_os_error()) {
            Some(io::Errno::AGAIN | io::Errno::ACCESS) | None => io::Errno::BUSY,
            Some(errno) => errno,
        }),
    }
}

fn whole_file() -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}
