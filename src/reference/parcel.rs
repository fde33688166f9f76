//! Tagged messages that own their memory.
//!
//! # Safety
//! A message's memory is a vector that its [`Parcel`] owns and does not access before the request is done. A
//! parcel that is dropped earlier leaks the vector, so that the request can still access it.

use std::{mem, time::Duration};
use tbccl::{Delivery, Error, P2p, P2pRequest, Rank, Result};

/// Time limit of waits, far longer than any wait on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A message that is sent or received, with its memory.
#[derive(Debug)]
pub struct Parcel {
    /// The request.
    pub request: P2pRequest,
    bytes: Vec<u8>,
}

/// Sends bytes.
///
/// # Errors
/// Those of [`P2p::send`].
pub fn send(p2p: &P2p, to: u32, context: u32, tag: i32, bytes: Vec<u8>) -> Result<Parcel> {
    // SAFETY: see the module.
    let request = unsafe { p2p.send(Rank(to), context, tag, bytes.as_ptr(), bytes.len())? };
    Ok(Parcel { request, bytes })
}

/// Sends a slice, and returns when it may be written to again.
///
/// # Errors
/// Those of [`P2p::send_buffered`].
pub fn send_buffered(p2p: &P2p, to: u32, context: u32, tag: i32, bytes: &[u8]) -> Result<P2pRequest> {
    // SAFETY: the slice is borrowed until the call returns.
    unsafe { p2p.send_buffered(Rank(to), context, tag, bytes.as_ptr(), bytes.len()) }
}

/// Receives up to `capacity` bytes.
///
/// # Errors
/// Those of [`P2p::recv`].
pub fn recv(p2p: &P2p, from: Option<u32>, context: u32, tag: Option<i32>, capacity: usize) -> Result<Parcel> {
    let mut bytes = vec![0xee; capacity];
    // SAFETY: see the module.
    let request = unsafe { p2p.recv(from.map(Rank), context, tag, bytes.as_mut_ptr(), capacity)? };
    Ok(Parcel { request, bytes })
}

/// Sends a slice, and waits until it may be written to again.
///
/// # Errors
/// Those of [`P2p::send`], and of the message.
pub fn send_slice(p2p: &P2p, to: u32, tag: i32, bytes: &[u8]) -> Result<Delivery> {
    // SAFETY: the slice is borrowed until the request is done; if the wait fails, the test ends.
    let request = unsafe { p2p.send(Rank(to), 0, tag, bytes.as_ptr(), bytes.len())? };
    request.wait(Some(TIMEOUT)).unwrap_or_else(|| std::process::abort())
}

/// Receives into a slice, and waits until the message is complete.
///
/// # Errors
/// Those of [`P2p::recv`], and of the message.
pub fn recv_slice(p2p: &P2p, from: u32, tag: i32, bytes: &mut [u8]) -> Result<Delivery> {
    // SAFETY: as for `send_slice`.
    let request = unsafe { p2p.recv(Some(Rank(from)), 0, Some(tag), bytes.as_mut_ptr(), bytes.len())? };
    request.wait(Some(TIMEOUT)).unwrap_or_else(|| std::process::abort())
}

impl Parcel {
    /// Waits for the message; returns its delivery and its memory.
    ///
    /// # Errors
    /// The error of the message.
    ///
    /// # Panics
    /// If it is not done within [`TIMEOUT`].
    pub fn open(self) -> Result<(Delivery, Vec<u8>)> {
        self.open_within(TIMEOUT).expect("done in time")
    }

    /// Waits for the message up to `limit`; returns its delivery and its memory, or `None` if it is not done.
    pub fn open_within(mut self, limit: Duration) -> Option<Result<(Delivery, Vec<u8>)>> {
        let delivery = self.request.wait(Some(limit))?;
        Some(delivery.map(|delivery| (delivery, mem::take(&mut self.bytes))))
    }

    /// Waits until the message fails; returns the error.
    ///
    /// # Panics
    /// If it succeeds, or is not done within [`TIMEOUT`].
    #[must_use]
    pub fn error(self) -> Error {
        self.request.wait(Some(TIMEOUT)).expect("done in time").expect_err("it has failed")
    }
}

impl Drop for Parcel {
    fn drop(&mut self) {
        if self.request.test().is_none() {
            mem::forget(mem::take(&mut self.bytes));
        }
    }
}
