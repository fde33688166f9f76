//! Reads another process's memory by system call (`process_vm_readv`, Linux).
//!
//! Yama or a container may forbid the call, so it is probed before use.
//!
//! # Safety
//! The system call reads from the other process and checks addresses there itself. It writes to a span of
//! this process whose bytes are writable.

use crate::{
    TransportError,
    memory::{Span, SpanMut},
};
use std::io;

/// Bytes read at a time when the data is to be reduced: small enough to stay in the first-level caches.
const BOUNCE_BYTES: usize = 64 * 1024;

/// Reader of one process's memory.
#[derive(Debug)]
pub(crate) struct Puller {
    pid: u32,
    /// Buffer for data without a destination. Its elements are words, which aligns it for every element type.
    bounce: Vec<u64>,
}

impl Puller {
    /// Returns a reader of process `pid`.
    pub(crate) fn new(pid: u32) -> Puller {
        Puller { pid, bounce: vec![0; BOUNCE_BYTES / 8] }
    }

    /// Checks that reading 8 bytes at `address` of the process works and yields `expected`.
    pub(crate) fn probe(&mut self, address: u64, expected: u64) -> Result<(), TransportError> {
        self.read_bounced(address, 8)?;
        if self.bounce[0] == expected {
            return Ok(());
        }
        Err(self.unreadable(io::Error::other("the probe word has another value")))
    }

    /// Fills `to` with the bytes from `address` on.
    pub(crate) fn read(&self, address: u64, to: SpanMut<'_>) -> Result<(), TransportError> {
        let mut done = 0;
        while done < to.len() {
            let part = to.sub(done, to.len() - done);
            match read_some(self.pid, address.wrapping_add(done as u64), part) {
                Ok(0) => return Err(self.unreadable(io::ErrorKind::UnexpectedEof.into())),
                Ok(got) => done += got,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.unreadable(e)),
            }
        }
        Ok(())
    }

    /// Reads at most `len` bytes from `address` on into the bounce buffer.
    pub(crate) fn read_bounced(&mut self, address: u64, len: usize) -> Result<Span<'_>, TransportError> {
        let len = len.min(BOUNCE_BYTES);
        // SAFETY: the vector holds at least `BOUNCE_BYTES` and is not touched while the span is in use.
        let bounce = unsafe { SpanMut::new(self.bounce.as_mut_ptr().cast(), len) };
        self.read(address, bounce)?;
        Ok(bounce.as_span())
    }

    fn unreadable(&self, source: io::Error) -> TransportError {
        TransportError::Unreadable { pid: self.pid, source }
    }
}

#[cfg(target_os = "linux")]
fn read_some(pid: u32, address: u64, to: SpanMut<'_>) -> io::Result<usize> {
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: address as usize as *mut libc::c_void, iov_len: to.len() };
    // SAFETY: `local` describes writable bytes of this process. The kernel uses `remote` only as an address
    // in the other process.
    let got = unsafe { libc::process_vm_readv(pid as libc::pid_t, &local, 1, &remote, 1, 0) };
    if got < 0 { Err(io::Error::last_os_error()) } else { Ok(got as usize) }
}

#[cfg(not(target_os = "linux"))]
fn read_some(_pid: u32, _address: u64, _to: SpanMut<'_>) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_address_or_value_is_an_error_and_not_a_fault() {
        let ours = std::process::id();
        let word = Box::new(0x5eed_u64);
        let address = std::ptr::from_ref::<u64>(&word) as u64;
        let mut puller = Puller::new(ours);
        assert!(puller.probe(address, 0x5eed).is_ok());
        assert!(puller.probe(address, 0x5eee).is_err());
        assert!(puller.probe(8, 0).is_err());
    }
}
