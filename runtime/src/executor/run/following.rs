//! Sends that follow a receive: polled with the bytes combined so far, while the receive is in flight.
//!
//! A send does not begin before its receive has some bytes, nor does it end before the receive is complete:
//! the order of steps relies on that (`collectives::pass::fuse`). Once the receive is complete, the send is
//! like any other.
//!
//! A link may send the beginning of a message or wait for the rest. Where beginnings are expensive, a stream
//! that has sent before gets them in large parts. Its direction of the link is busy with the message before,
//! and half a message ahead is enough to keep it busy.

use super::{Run, link, observer::Observer};
use crate::executor::{
    binding::Binding,
    program::{Followed, Program, Stream},
    protocols::{Owner, Protocols},
};
use collectives::schedule::Buffer;
use transport::{
    Link, Protocol, SendProgress, SendState, SizeClass, TransportError,
    memory::{Slab, Span},
};

impl<const ANNOUNCES: bool, const GROUPED: bool, O: Observer> Run<'_, '_, ANNOUNCES, GROUPED, O> {
    /// Sends the part of a message that a send's receive has so far, if that receive is the only step that
    /// the send waits for. `has_sent` tells whether the send's stream has sent a message before.
    #[inline(never)]
    pub(super) fn poll_following(
        &mut self,
        stream: &Stream,
        step: u32,
        has_sent: bool,
    ) -> Result<bool, TransportError> {
        let Some(Followed { stream: source, position }) = self.program.followed[step as usize] else {
            return Ok(false);
        };
        let cursor = &self.workspace.cursors[source as usize];
        // A receive behind its stream's next one is complete, so the send waits for another step.
        if cursor.next != position {
            return Ok(false);
        }
        let received = if ANNOUNCES { self.workspace.recv_state(source as usize) } else { cursor.recv };
        let received = received.map_or(0, |state| state.received());
        if received == 0 {
            return Ok(false);
        }
        let op = &self.program.ops[step as usize];
        let binding = self.binding(op);
        let src = binding.source(&op.a);
        let link = link(self.links, stream);
        let is_coarse = has_sent && link.capabilities().coarse_prefixes;
        let ready = if is_coarse { whole_parts(received, src.len()) } else { received };
        if ready == 0 {
            return Ok(false);
        }
        self.observer.polled(step);
        let (slab, protocols, program) = (self.slab, &self.protocols, self.program);
        let state = self.workspace.sends[step as usize].get_or_insert_with(|| {
            begun((program, binding), slab, protocols, link.as_ref(), (src, op.a.buffer))
        });
        debug_assert!(ready < src.len(), "a receive that has all of its bytes is complete");
        Ok(link.poll_send_prefix(state, src, ready)? == SendProgress::Advanced)
    }
}

/// Bytes of a large part of a message, at least and at most.
const PARTS: [usize; 2] = [64 << 10, 512 << 10];

/// Rounds the first `received` bytes of a message of `len` bytes down to whole large parts.
fn whole_parts(received: usize, len: usize) -> usize {
    let [least, most] = PARTS;
    let part = (len / 2).clamp(least, most);
    received / part * part
}

/// Returns the state of a message to send.
#[inline(always)]
pub(super) fn begun(
    (program, binding): (&Program, &Binding<'_>),
    slab: &Slab,
    protocols: &Protocols,
    link: &dyn Link,
    (src, buffer): (Span<'_>, Buffer),
) -> SendState {
    let (size, protocol) = protocol_of((program, binding), slab, protocols, link, (src, buffer));
    let state = SendState::new(binding.digest, protocol).with_size(size);
    let state = if binding.confirmed { state.with_match_ack() } else { state };
    if program.is_awaited { state.awaited() } else { state }
}

/// Returns the size class of a message to send, and the way in which it travels.
#[inline(always)]
pub(super) fn protocol_of(
    (program, binding): (&Program, &Binding<'_>),
    slab: &Slab,
    protocols: &Protocols,
    link: &dyn Link,
    (src, buffer): (Span<'_>, Buffer),
) -> (SizeClass, Protocol) {
    let registered = || slab.locate(src.as_ptr(), src.len()).is_some();
    let size = binding.constants.size_of(protocols, src.len());
    let combined = || binding.combines_into(buffer);
    let owner = if buffer == Buffer::Input { Owner::Program } else { Owner::Call };
    let gathered = (binding.constants.gathers && program.exchanges).then_some(owner);
    let message = (size, binding.constants.counted(src.len()));
    (size, protocols.choose(|| link.capabilities(), message, gathered, combined, registered))
}
