//! Copies bytes between mapped memory and the memory of another process.
//!
//! Programs watch the last byte of a message to learn that the message has arrived. So the last byte is
//! stored last, after a fence: in mapped memory by a store of its own, in another process by a second range
//! of the same system call.
//!
//! # Safety
//! Callers pass locations that are valid for as many bytes as are copied, and that stay valid meanwhile: see
//! `transfer`. The memory belongs to programs that may change it at any time, so it is only accessed through
//! raw pointers. Process identifiers belong to processes that were seen alive and that run as the same user.

use std::{
    io, ptr,
    sync::atomic::{AtomicU8, AtomicU64, Ordering::Release, fence},
};

/// The location of bytes, as this process reaches them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Location {
    /// In memory that is mapped into this process.
    Mapped(*mut u8),
    /// In the memory of another process.
    Remote { pid: u32, address: u64 },
}

/// The reason why bytes could not be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferError {
    /// The source memory is not accessible.
    Source,
    /// The destination memory is not accessible.
    Destination,
    /// The other process is dead, or this process may not access it.
    PeerGone,
}

/// Copies `len` bytes, of which the last ones are stored last.
#[inline]
pub(super) fn copy(destination: Location, source: Location, len: usize) -> Result<(), TransferError> {
    match (destination, source) {
        (Location::Mapped(to), Location::Mapped(from)) => {
            store(to, from, len);
            Ok(())
        }
        (Location::Remote { pid, address }, Location::Mapped(from)) => {
            let split = len.saturating_sub(8);
            let local = [libc::iovec { iov_base: from.cast(), iov_len: len }];
            let remote = ranges(address as *mut u8, split, len);
            // SAFETY: `from` is valid for `len` bytes; the kernel checks the other process's addresses.
            let moved = unsafe {
                libc::process_vm_writev(pid as libc::pid_t, local.as_ptr(), 1, remote.as_ptr(), 2, 0)
            };
            check(moved, len, TransferError::Destination)
        }
        (Location::Mapped(to), Location::Remote { pid, address }) => {
            let split = len.saturating_sub(8);
            let local = ranges(to, split, len);
            let remote = [libc::iovec { iov_base: address as *mut libc::c_void, iov_len: len }];
            // SAFETY: `to` is valid for `len` bytes; the kernel checks the other process's addresses.
            let moved = unsafe {
                libc::process_vm_readv(pid as libc::pid_t, local.as_ptr(), 2, remote.as_ptr(), 1, 0)
            };
            check(moved, len, TransferError::Source)
        }
        // The process that executes a request is one of its two ends.
        (Location::Remote { .. }, Location::Remote { .. }) => Err(TransferError::PeerGone),
    }
}

/// Returns two ranges of `len` bytes: those before `split`, and the rest.
fn ranges(start: *mut u8, split: usize, len: usize) -> [libc::iovec; 2] {
    let range = |from: usize, to: usize| libc::iovec {
        iov_base: start.wrapping_add(from).cast(),
        iov_len: to - from,
    };
    [range(0, split), range(split, len)]
}

/// Returns the error of a system call that has moved `moved` of `len` bytes.
fn check(moved: isize, len: usize, fault: TransferError) -> Result<(), TransferError> {
    if moved == len as isize {
        return Ok(());
    }
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::ESRCH | libc::EPERM) if moved < 0 => Err(TransferError::PeerGone),
        _ => Err(fault),
    }
}

/// Copies within mapped memory. The bytes of the last aligned word are stored after all others.
#[inline]
fn store(to: *mut u8, from: *const u8, len: usize) {
    let end = to as usize + len;
    let last = (end - 1) & !7;
    let head = last.saturating_sub(to as usize);
    let tail = len - head;
    // SAFETY: both ranges are valid for `len` bytes; `head + tail` is `len` and `tail` is 1 to 8. An aligned
    // tail of 8 bytes is one store. The last byte of a shorter tail is stored by itself. The ranges may
    // overlap, since a program may send from memory that it receives into.
    unsafe {
        if tail == 8 {
            let word = from.add(head).cast::<u64>().read_unaligned();
            ptr::copy(from, to, head);
            fence(Release);
            AtomicU64::from_ptr(to.add(head).cast()).store(word, Release);
        } else {
            let byte = from.add(len - 1).read();
            ptr::copy(from, to, len - 1);
            fence(Release);
            AtomicU8::from_ptr(to.add(len - 1)).store(byte, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_is_copied_whole() {
        let source: Vec<u8> = (1..=64).collect();
        for start in 0..8 {
            for len in 1..=40 {
                let mut target = [0u8; 64];
                store(target.as_mut_ptr().wrapping_add(start), source.as_ptr(), len);
                assert_eq!(target[start..start + len], source[..len]);
                assert!(target[..start].iter().chain(&target[start + len..]).all(|&byte| byte == 0));
            }
        }
    }

    #[test]
    fn memory_of_another_process_is_written_through_the_kernel() {
        let source = [7u8; 100];
        let mut target = [0u8; 100];
        let there = Location::Remote { pid: std::process::id(), address: target.as_mut_ptr() as u64 };
        assert_eq!(copy(there, Location::Mapped(source.as_ptr().cast_mut()), 100), Ok(()));
        assert_eq!(target, source);
        let nowhere = Location::Remote { pid: std::process::id(), address: 8 };
        assert_eq!(
            copy(nowhere, Location::Mapped(source.as_ptr().cast_mut()), 100),
            Err(TransferError::Destination)
        );
        let nobody = Location::Remote { pid: i32::MAX as u32, address: 8 };
        assert_eq!(
            copy(nobody, Location::Mapped(source.as_ptr().cast_mut()), 100),
            Err(TransferError::PeerGone)
        );
    }
}
