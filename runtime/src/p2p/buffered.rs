//! Sends whose memory is free again when they return, as with `MPI_Bsend`.
//!
//! A message that can't leave at once waits for its receiver for about as long as a copy of it takes. Often
//! the receiver asks for it meanwhile, and no copy is needed. Otherwise the request gets a copy of its own.
//!
//! # Safety
//! A request that is not complete when the send returns reads its copy, which lives as long as the request.

use super::{P2p, P2pRequest, message_copy::MessageCopy};
use crate::error::Result;
use std::{slice, time::Duration};
use topology::Rank;

/// Bytes that are copied to fresh memory in a microsecond, at least.
const COPIED_PER_MICROSECOND: usize = 4096;

impl P2p {
    /// Sends like [`P2p::send`], and returns when the memory may be reused. The request may not be complete:
    /// it has a copy then.
    ///
    /// # Errors
    /// Those of [`P2p::send`].
    ///
    /// # Safety
    /// The memory stays readable and unchanged until this returns.
    pub unsafe fn send_buffered(
        &self,
        to: Rank,
        context: u32,
        tag: i32,
        src: *const u8,
        bytes: usize,
    ) -> Result<P2pRequest> {
        // SAFETY: the caller's promise: the request is complete, or reads a copy, when this returns.
        let request = unsafe { self.send(to, context, tag, src, bytes)? };
        let patience = Duration::from_micros((bytes / COPIED_PER_MICROSECOND) as u64);
        let Some(state) = request.state() else { return Ok(request) };
        if request.wait(Some(patience)).is_some() {
            return Ok(request);
        }
        let give =
            |copy: Option<&MessageCopy>| self.0.core.with(|engine| Ok(engine.give_copy(to, state, copy)));
        // A message that its receiver has asked for needs no copy.
        if give(None)? {
            // SAFETY: readable and unchanged by the caller's promise. No message without bytes is pending.
            let copy = MessageCopy::of(unsafe { slice::from_raw_parts(src, bytes) });
            if give(Some(&copy))? {
                return Ok(request);
            }
        }
        while request.wait(None).is_none() {}
        Ok(request)
    }
}
